"""The script of the demo model: what it answers to a message. Pure functions, deterministic.

It understands these messages and echoes all others, character by character:
- `use TOOL {"argument": "value"}`, one or more lines: calls these tools in one turn;
- `what time is it`: calls a tool that returns the time;
- `tell agent:NAME something`: calls `chat_send`;
- `talk to NAME`: hands the conversation off;
- `run a block` and `run a block that fails`: run Python that sends messages, and Python that fails after two of them;
- a message that is one fenced block of Python: runs it;
- `weather in CITY`, `search for THINGS`, `echo context SOMETHING`: call `weather`, `product_search`, `echo_context`;
- `refund order NUMBER`: calls `refund`, which needs approval;
- `compare the weather in CITY, CITY and CITY`: calls `weather` for one city after another, slowly.
It does so only if the agent has the tool or the handoff.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from html import unescape
from typing import Final, TypeAlias

from magent2.models.json_types import JsonObject

DEMO: Final = "demo"  # the name of the model
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

# Tool → the message that asks for it. The groups of the pattern are the arguments.
_REQUESTS = {
    "weather": re.compile(r"(?:what(?:'s| is) the )?weather (?:like )?in (?P<city>\S.*)", re.IGNORECASE),
    "product_search": re.compile(r"(?:search|look) for (?P<query>\S.*)", re.IGNORECASE),
    "refund": re.compile(r"(?:please )?refund (?:order )?(?P<order>\S.*)", re.IGNORECASE),
    "echo_context": re.compile(r"echo context(?: (?P<text>\S.*))?", re.IGNORECASE),
}


@dataclass(frozen=True, slots=True)
class ScriptedText:
    """An answer without tool calls."""

    text: str


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """A tool call. A handoff is one too."""

    tool: str
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ScriptedStep:
    """Text, streamed slowly, and the tool call that it announces."""

    text: str
    call: ScriptedCall


Line: TypeAlias = ScriptedText | ScriptedStep | tuple[ScriptedCall, ...]
Items: TypeAlias = Sequence[Mapping[str, object]]  # of a model request, as the SDK defines them


# --- The answer to a request.


def next_line(items: Items, tools: Collection[str], handoffs: Mapping[str, str]) -> Line:
    """The next answer of a conversation: a report of the last tool results, else the script's line for the message."""
    results = _last_results(items)
    if results:
        return ScriptedText("\n".join(report(result) for result in results))
    messages = (text_of(item.get("content")) for item in reversed(items) if item.get("role") == "user")
    return script(next(messages, ""), tools, handoffs)


def script(text: str, tools: Collection[str], handoffs: Mapping[str, str]) -> Line:
    """The answer to a message. `handoffs`: an agent's name → the tool that hands off to it."""
    message = text.strip()
    question = message.rstrip("?!.")
    calls = _use(message, tools) or _tell(message, tools) or _clock(question, tools) or _talk(question, handoffs)
    return calls or _block(message, question, tools) or _request(question, tools) or ScriptedText(text)


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
    except (ValueError, RecursionError):  # not a call: the text is echoed
        return None


def _tell(text: str, tools: Collection[str]) -> tuple[ScriptedCall, ...]:
    match = _TELL.fullmatch(text)
    if match is None or "chat_send" not in tools:
        return ()
    return (ScriptedCall("chat_send", {**match.groupdict(), "conversation_id": None}),)


def _clock(text: str, tools: Collection[str]) -> tuple[ScriptedCall, ...]:
    clock = next((name for name in CLOCKS if name in tools), None)
    return (ScriptedCall(clock),) if clock is not None and _TIME.fullmatch(text) else ()


def _talk(text: str, handoffs: Mapping[str, str]) -> tuple[ScriptedCall, ...]:
    match = _TALK.fullmatch(text)
    wanted = match["name"].strip().casefold() if match else ""
    reason = {"reason": "The user asked for this agent."}
    return tuple(ScriptedCall(tool, reason) for name, tool in handoffs.items() if name.casefold() == wanted)[:1]


def _block(text: str, question: str, tools: Collection[str]) -> tuple[ScriptedCall, ...]:
    fenced = _FENCED.fullmatch(text)
    code = fenced["code"] if fenced else _BLOCKS.get(question.casefold())
    return (ScriptedCall("run_python", {"code": code}),) if code and "run_python" in tools else ()


def _request(text: str, tools: Collection[str]) -> tuple[ScriptedCall, ...]:
    for tool, pattern in _REQUESTS.items():
        match = pattern.fullmatch(text) if tool in tools else None
        if match is not None:
            return (ScriptedCall(tool, {name: value.strip() for name, value in match.groupdict().items() if value}),)
    return ()


# --- Reports of tool results.


def _last_results(items: Items) -> list[str]:
    """The results at the end of the conversation, in order."""
    results: list[str] = []
    for item in reversed(items):
        if item.get("type") != "function_call_output":
            break
        results.append(text_of(item.get("output")))
    return results[::-1]


def text_of(content: object) -> str:
    """The text of a message or of a result: a string, or parts with a `text`."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def report(result: str) -> str:
    """A sentence about a result of a handoff or of an example tool. Any other result is repeated as it is."""
    try:
        value = json.loads(result)
    except ValueError:  # plain text, which is what most tools return
        return result
    if not isinstance(value, dict):
        return result
    if len(value) == 1 and value.get("assistant") is not None:  # the result of a handoff
        return f"{value['assistant']} here. What can I do for you?"
    sentence = next((describe for fields, describe in _SENTENCES.items() if fields <= value.keys()), None)
    return result if sentence is None else sentence(value)


def _weather(result: JsonObject) -> str:
    return f"In {result['city']} it is {result['temperature_c']} °C with {result['sky']} ({result['source']})."


def _products(result: JsonObject) -> str:
    count, source = result["found"], result["source"]
    if not count:
        return f"I found nothing ({source})."
    lines = [f"- **{product['title']}**, {product['price_eur']:.2f} €" for product in result["products"]]
    return "\n".join([f"I found {count} ({source}):", "", *lines])


def _refund(result: JsonObject) -> str:
    return f"Order {result['order']} is paid back ({result['source']})."


# Fields of a result → the function that describes it.
_SENTENCES: dict[frozenset[str], Callable[[JsonObject], str]] = {
    frozenset({"city", "temperature_c", "sky", "source"}): _weather,
    frozenset({"products", "found", "source"}): _products,
    frozenset({"order", "refunded", "source"}): _refund,
}


# --- The weather tour: a run that takes long enough to be steered or stopped, one city after another.

TOOL = "weather"

_TOUR_REQUEST = re.compile(r"compare the weather in (?P<cities>\S.*)", re.IGNORECASE)
_BETWEEN = re.compile(r",\s*(?:and\s+)?|\s+and\s+", re.IGNORECASE)
_STEER = re.compile(r"<bus-message [^>]*>\n(?P<text>.*)\n</bus-message>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class DemoTour:
    """The progress of a tour: its cities, the visited ones, the results there, and the steers since its start."""

    cities: tuple[str, ...]
    visited: tuple[str, ...]
    results: tuple[str, ...]
    steers: tuple[str, ...]

    @property
    def skipped(self) -> list[str]:
        """The cities that a steer names before they are visited."""
        text = "\n".join(self.steers).casefold()
        return [city for city in self.cities if city not in self.visited and city.casefold() in text]

    @property
    def next(self) -> str | None:
        done = {*self.visited, *self.skipped}
        return next((city for city in self.cities if city not in done), None)


def tour_line(items: Items, tools: Collection[str]) -> Line | None:
    """The next answer of a tour. `None` if the last message of the user did not start one."""
    tour = _tour(items) if TOOL in tools else None
    if tour is None:
        return None
    if tour.next is not None:
        call = ScriptedCall(TOOL, {"city": tour.next})
        return ScriptedStep(f"Looking at {tour.next}. Write to me meanwhile, or stop me.", call)
    if tour.skipped:
        remarks = [f"Left out, as you said meanwhile: {', '.join(tour.skipped)}."]
    else:
        remarks = [f"You said meanwhile: {steer}" for steer in tour.steers]
    return ScriptedText("\n\n".join([*map(report, tour.results), *remarks]))


def _tour(items: Items) -> DemoTour | None:
    """Read the progress of a tour from the conversation, backwards to the message that started it."""
    visited: list[str] = []
    results: list[str] = []
    steers: list[str] = []
    for item in reversed(items):
        if item.get("type") == "function_call_output":
            results.insert(0, text_of(item.get("output")))
        elif item.get("type") == "function_call" and item.get("name") == TOOL:
            visited.insert(0, _city_of(str(item.get("arguments"))))
        elif item.get("role") == "user":
            text = text_of(item.get("content")).strip()
            steer = _STEER.fullmatch(text)
            if steer is None:
                cities = _cities(text)
                return DemoTour(cities, tuple(visited), tuple(results), tuple(steers)) if cities else None
            steers.insert(0, unescape(steer["text"]))
    return None


def _city_of(arguments: str) -> str:
    try:
        return str(json.loads(arguments)["city"])
    except (ValueError, KeyError, TypeError):  # a call of another model earlier in the conversation
        return ""


def _cities(text: str) -> tuple[str, ...]:
    match = _TOUR_REQUEST.fullmatch(text.rstrip("?!."))
    names = _BETWEEN.split(match["cities"]) if match else []
    return tuple(dict.fromkeys(city.strip() for city in names if city.strip()))
