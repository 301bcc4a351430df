"""What the demo model does about a message. Pure: no SDK, no clock, no chance.

What it understands (all else it echoes, to the last character):
- `use TOOL {"argument": "value"}`, one or more lines of them: calls those tools, together;
- `what time is it`: calls a tool that tells the time;
- `tell agent:NAME something`: calls `chat_send`;
- `talk to NAME`: hands the conversation over;
- `run a block` and `run a block that fails`: run Python that sends messages, and Python that fails after two of them;
- a message that is one fenced block of Python: runs it;
- `weather in CITY`, `search for THINGS`, `echo context SOMETHING`: call `weather`, `product_search`, `echo_context`;
- `refund order NUMBER`: calls `refund`, which needs a person's approval;
- `compare the weather in CITY, CITY and CITY`: one after the other, and slowly (`demo_tour.py`).
It does so only where such a tool or such an agent exists.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from typing import Any, TypeAlias

CLOCKS = ("current_time", "get_time", "now", "time", "clock")

_USE = re.compile(r"use (?P<tool>[\w.-]+)(?:\s+(?P<arguments>\{.*\}))?", re.DOTALL)
_TIME = re.compile(r"what(?:'s| is) the time|what time is it", re.IGNORECASE)
_TELL = re.compile(r"tell (?P<recipient>(?:agent|chat):\S+) (?P<content>.+)", re.IGNORECASE | re.DOTALL)
_TALK = re.compile(r"talk to (?P<name>.+)", re.IGNORECASE)

_FENCED = re.compile(r"```(?:python|py)\n(?P<code>.*?)\n?```", re.DOTALL)

BLOCK = """\
city = weather("Oslo")
for agent in ("sales", "support"):
    chat_send(f"agent:{agent}", f"It is {city['temperature_c']} degrees in {city['city']}.", f"news-for-{agent}")
print("told sales and support")"""

FAILING_BLOCK = """\
chat_send("agent:sales", "the first", "news-for-sales")
chat_send("agent:support", "the second", "news-for-support")
print("two messages wait")
10 // (2 - 2)"""

_BLOCKS = {"run a block": BLOCK, "run a block that fails": FAILING_BLOCK}

# Tool → what asks for it; its groups are the arguments.
_ASKED = {
    "weather": re.compile(r"(?:what(?:'s| is) the )?weather (?:like )?in (?P<city>\S.*)", re.IGNORECASE),
    "product_search": re.compile(r"(?:search|look) for (?P<query>\S.*)", re.IGNORECASE),
    "refund": re.compile(r"(?:please )?refund (?:order )?(?P<order>\S.*)", re.IGNORECASE),
    "echo_context": re.compile(r"echo context(?: (?P<text>\S.*))?", re.IGNORECASE),
}


@dataclass(frozen=True, slots=True)
class ScriptedText:
    text: str


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call; a handoff is one too."""

    tool: str
    arguments: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScriptedStep:
    """Words, said slowly, and the call that they announce."""

    text: str
    use: ScriptedCall


Line: TypeAlias = ScriptedText | ScriptedStep | tuple[ScriptedCall, ...]


def script(text: str, tools: Collection[str], handoffs: Mapping[str, str]) -> Line:
    """What to do about a message. `handoffs`: an agent's name → the tool that hands over to it."""
    asked = text.strip()
    question = asked.rstrip("?!.")
    calls = _use(asked, tools) or _tell(asked, tools) or _clock(question, tools) or _talk(question, handoffs)
    return calls or _block(asked, question, tools) or _asked(question, tools) or ScriptedText(text)


def _use(text: str, tools: Collection[str]) -> tuple[ScriptedCall, ...]:
    whole = _one_use(text)
    calls = [whole] if whole is not None else [_one_use(line.strip()) for line in text.splitlines() if line.strip()]
    known = [call for call in calls if call is not None and call.tool in tools]
    return tuple(known) if len(known) == len(calls) else ()


def _one_use(text: str) -> ScriptedCall | None:
    match = _USE.fullmatch(text)
    if match is None:
        return None
    try:
        return ScriptedCall(match["tool"], json.loads(match["arguments"] or "{}"))
    except (ValueError, RecursionError):  # not a call after all: it will be echoed
        return None


def _tell(text: str, tools: Collection[str]) -> tuple[ScriptedCall, ...]:
    match = _TELL.fullmatch(text)
    if match is None or "chat_send" not in tools:
        return ()
    return (ScriptedCall("chat_send", {**match.groupdict(), "conversation_id": None}),)


def _clock(text: str, tools: Collection[str]) -> tuple[ScriptedCall, ...]:
    clock = next((name for name in CLOCKS if name in tools), None)
    return (ScriptedCall(clock),) if clock is not None and _TIME.fullmatch(text) else ()


def _block(text: str, question: str, tools: Collection[str]) -> tuple[ScriptedCall, ...]:
    fenced = _FENCED.fullmatch(text)
    code = fenced["code"] if fenced else _BLOCKS.get(question.casefold())
    return (ScriptedCall("run_python", {"code": code}),) if code and "run_python" in tools else ()


def _asked(text: str, tools: Collection[str]) -> tuple[ScriptedCall, ...]:
    for tool, pattern in _ASKED.items():
        match = pattern.fullmatch(text) if tool in tools else None
        if match is not None:
            return (ScriptedCall(tool, {name: value.strip() for name, value in match.groupdict().items() if value}),)
    return ()


def _talk(text: str, handoffs: Mapping[str, str]) -> tuple[ScriptedCall, ...]:
    match = _TALK.fullmatch(text)
    wanted = match["name"].strip().casefold() if match else ""
    return tuple(ScriptedCall(tool) for name, tool in handoffs.items() if name.casefold() == wanted)[:1]


def next_line(items: Sequence[Mapping[str, Any]], tools: Collection[str], handoffs: Mapping[str, str]) -> Line:
    """What comes next in a conversation: report what tools have said, else follow the script."""
    results = _last_results(items)
    if results:
        return ScriptedText("\n".join(report(result) for result in results))
    return script(_last_text(items), tools, handoffs)


def _last_results(items: Sequence[Mapping[str, Any]]) -> list[str]:
    found: list[str] = []
    for item in reversed(items):
        if item.get("type") != "function_call_output":
            break
        found.append(text_of(item.get("output")))
    return found[::-1]


def report(result: str) -> str:
    """A handoff's result names the agent that has taken over, an example tool's is put in words; others are quoted."""
    try:
        told = json.loads(result)
    except ValueError:  # plain text, which is what most tools return
        return result
    if not isinstance(told, dict):
        return result
    name = told.get("assistant") if len(told) == 1 else None
    return f"{name} here. What can I do for you?" if name is not None else worded(told) or result


def _last_text(items: Sequence[Mapping[str, Any]]) -> str:
    return next((text_of(item.get("content")) for item in reversed(items) if item.get("role") == "user"), "")


def text_of(content: object) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


# --- How the demo model puts the results of the example tools, as a model would: in a sentence, with its source.


def worded(result: Mapping[str, Any]) -> str | None:
    """The result as a sentence; nothing where it is not one of those known here."""
    for fields, words in _WORDS.items():
        if fields <= result.keys():
            return words(result)
    return None


def _weather(result: Mapping[str, Any]) -> str:
    return f"In {result['city']} it is {result['temperature_c']} °C with {result['sky']} ({result['source']})."


def _products(result: Mapping[str, Any]) -> str:
    found, source = result["found"], result["source"]
    if not found:
        return f"I found nothing ({source})."
    lines = [f"- **{product['title']}**, {product['price_eur']:.2f} €" for product in result["products"]]
    return "\n".join([f"I found {found} ({source}):", "", *lines])


def _refund(result: Mapping[str, Any]) -> str:
    return f"Order {result['order']} is paid back ({result['source']})."


_WORDS: dict[frozenset[str], Callable[[Mapping[str, Any]], str]] = {
    frozenset({"city", "temperature_c", "sky", "source"}): _weather,
    frozenset({"products", "found", "source"}): _products,
    frozenset({"order", "refunded", "source"}): _refund,
}


# --- A demo run that takes its time, so that there is something to steer and to stop: one city after another.

TOOL = "weather"

_TOUR_REQUEST = re.compile(r"compare the weather in (?P<cities>\S.*)", re.IGNORECASE)
_BETWEEN = re.compile(r",\s*(?:and\s+)?|\s+and\s+", re.IGNORECASE)
_STEER = re.compile(r"<bus-message [^>]*>\n(?P<text>.*)\n</bus-message>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DemoTour:
    """Where to go, where it has been, what was told there, and what was said meanwhile."""

    cities: tuple[str, ...]
    visited: tuple[str, ...]
    told: tuple[str, ...]
    steers: tuple[str, ...]

    @property
    def left_out(self) -> list[str]:
        said = "\n".join(self.steers).casefold()
        return [city for city in self.cities if city not in self.visited and city.casefold() in said]

    @property
    def next(self) -> str | None:
        done = {*self.visited, *self.left_out}
        return next((city for city in self.cities if city not in done), None)


def tour_line(items: Sequence[Mapping[str, Any]], tools: Collection[str]) -> Line | None:
    """The next line of a tour, where one is under way."""
    tour = _tour(items) if TOOL in tools else None
    if tour is None:
        return None
    if tour.next is not None:
        return ScriptedStep(
            f"Looking at {tour.next}. Write to me meanwhile, or stop me.", ScriptedCall(TOOL, {"city": tour.next})
        )
    return ScriptedText("\n\n".join([*map(report, tour.told), *_remarks(tour)]))


def _remarks(tour: DemoTour) -> list[str]:
    if tour.left_out:
        return [f"Left out, as you said meanwhile: {', '.join(tour.left_out)}."]
    return [f"You said meanwhile: {steer}" for steer in tour.steers]


def _tour(items: Sequence[Mapping[str, Any]]) -> DemoTour | None:
    """What has happened since a tour was asked for, if that was the last that a person asked for."""
    visited: list[str] = []
    told: list[str] = []
    steers: list[str] = []
    for item in reversed(items):
        if item.get("type") == "function_call_output":
            told.insert(0, text_of(item.get("output")))
        elif item.get("type") == "function_call" and item.get("name") == TOOL:
            visited.insert(0, _city_of(str(item.get("arguments"))))
        elif item.get("role") == "user":
            text = text_of(item.get("content")).strip()
            steer = _STEER.fullmatch(text)
            if steer is None:
                cities = _cities(text)
                return DemoTour(cities, tuple(visited), tuple(told), tuple(steers)) if cities else None
            steers.insert(0, unescape(steer["text"]))
    return None


def _city_of(arguments: str) -> str:
    try:
        return str(json.loads(arguments)["city"])
    except (ValueError, KeyError, TypeError):  # another model's call, in a conversation that it began
        return ""


def _cities(text: str) -> tuple[str, ...]:
    asked = _TOUR_REQUEST.fullmatch(text.rstrip("?!."))
    named = _BETWEEN.split(asked["cities"]) if asked else []
    return tuple(dict.fromkeys(city.strip() for city in named if city.strip()))
