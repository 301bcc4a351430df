"""Routing: keywords or the supervisor's model decide which agent of a scenario answers a message. Pure functions.

Keywords are compared as whole, case-folded words, in the inflections that `ENDINGS` lists. At each position of the text
the longest keyword wins, so that a phrase of weight 0 ("no problem") cancels the word inside it. Each keyword counts
once.

The supervisor decides by calling the function `route`. If its model makes no valid call, the keywords decide.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import product

from magent2.roster.spec import AgentSpec, Scenario

EVIDENCE_MIN = 1.0  # the score that an agent needs before mail moves to it
TEXT_MAX_CHARS = 20_000  # of the text that is searched; a request is stated before that
FORMS_MAX = 512  # of one keyword

# (ending that a word may lose, ending that it may get instead)
ENDINGS = (
    ("", "s"), ("", "es"), ("", "ed"), ("", "ing"),
    ("e", "ed"), ("e", "ing"), ("y", "ies"), ("y", "ied"),
)  # fmt: skip
DOUBLED = "bdgmnpt"  # stop → stopped, log → logging
INFLECTED_MIN_CHARS = 3  # "in", "is" and "to" have no other forms

# "can't" is compared as "can not" and "doesn't" as "does not"; possessives and contracted verbs are cut off.
CONTRACTIONS = {"can't": "can not", "cannot": "can not", "won't": "will not", "shan't": "shall not"}
CONTRACTED_ENDINGS = ("'s", "'d", "'m", "'re", "'ve", "'ll", "'")

ROUTE = "route"  # name of the supervisor's function
ROUTE_REASON_MAX_CHARS = 300

# Why the keywords decided although a supervisor was asked
NO_CALL, BAD_CALL, UNKNOWN_TARGET, TIMED_OUT = "no_call", "bad_call", "unknown_target", "timed_out"

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")

Words = tuple[str, ...]
KeywordIndex = Mapping[
    str, tuple[tuple[Words, str, float], ...]
]  # first word → (words, keyword, weight), longest first


@dataclass(frozen=True, slots=True)
class RouteDecision:
    """The agent that answers, and why. `evidence` lists the keywords that were found, for each agent that has any.

    `by` says what decided: `keywords`, `current` (there was no reason to leave the current agent) or `supervisor`.
    `fallback` says why the supervisor did not decide although it was asked.
    """

    agent: str
    reason: str
    changed: bool
    scores: Mapping[str, float] = field(default_factory=dict)
    evidence: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    by: str = "keywords"
    fallback: str | None = None


# ---- routing by keywords ---------------------------------------------------------------------------------------------


def route_by_keywords(scenario: Scenario, text: str, current: str | None) -> RouteDecision:
    """Choose the agent with the highest score; without enough evidence or on a tie, the current agent.

    The scenario's root takes the place of a current agent that is missing or cannot answer.
    """
    words = split_words(text)
    found = {name: _find_keywords(agent, words) for name, agent in scenario.route_targets.items()}
    scores = {name: round(sum(weights.values()), 3) for name, weights in found.items()}
    evidence = {name: tuple(weights) for name, weights in found.items() if weights}
    stays = current if current is not None and current in scores else scenario.root
    agent, reason = _highest(scores, evidence, stays)
    by = "current" if agent == stays else "keywords"
    return RouteDecision(agent, reason, is_change(scenario, current, agent), scores, evidence, by)


def is_change(scenario: Scenario, current: str | None, agent: str) -> bool:
    """Whether routing to `agent` moves the session; a session without a current agent starts with the root."""
    return agent != (scenario.root if current is None else current)


def _highest(scores: Mapping[str, float], evidence: Mapping[str, tuple[str, ...]], stays: str) -> tuple[str, str]:
    best = max(scores.values(), default=0.0)
    leaders = [name for name, score in scores.items() if score == best]
    if best < EVIDENCE_MIN:
        return stays, "no evidence for another agent"
    if len(leaders) > 1:
        return stays, f"equal scores for {' and '.join(leaders)}"
    return leaders[0], f"{leaders[0]}: {', '.join(evidence[leaders[0]])}"


def _find_keywords(agent: AgentSpec, words: Words) -> dict[str, float]:
    """Return the agent's keywords in the text, each once, with their weights."""
    index = _keyword_index(tuple(agent.keywords.items()))
    found: dict[str, float] = {}
    position = 0
    while position < len(words):
        length = 1
        for form, keyword, weight in index.get(words[position], ()):
            if words[position : position + len(form)] == form:
                if weight:
                    found[keyword] = weight
                length = len(form)
                break
        position += length
    return found


@lru_cache(maxsize=1024)
def _keyword_index(keywords: tuple[tuple[str, float], ...]) -> KeywordIndex:
    entries: dict[str, list[tuple[Words, str, float]]] = {}
    for keyword, weight in keywords:
        for form in inflected_forms(keyword):
            entries.setdefault(form[0], []).append((form, keyword, weight))
    return {first: tuple(sorted(found, key=lambda entry: -len(entry[0]))) for first, found in entries.items()}


def inflected_forms(keyword: str) -> tuple[Words, ...]:
    """Return all spellings of a keyword. A phrase with more than `FORMS_MAX` of them is matched only as written."""
    words = split_words(keyword)
    choices = [tuple(dict.fromkeys(_inflections(word))) for word in words]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > FORMS_MAX:
        return (words,)
    return tuple(product(*choices)) if words else ()


def _inflections(word: str) -> Iterator[str]:
    yield word
    if len(word) < INFLECTED_MIN_CHARS:
        return
    for lost, gained in ENDINGS:
        if word.endswith(lost):
            yield word.removesuffix(lost) + gained
    if word[-1] in DOUBLED and word[-2] in "aeiou":
        yield word + word[-1] + "ed"
        yield word + word[-1] + "ing"


def split_words(text: str) -> Words:
    """Split a text into the words that keywords are compared with: case-folded, contractions expanded."""
    plain = unicodedata.normalize("NFKC", text[:TEXT_MAX_CHARS]).casefold().replace("’", "'").replace("‘", "'")
    return tuple(word for match in _WORD.finditer(plain) for word in _expand(match[0]))


def _expand(word: str) -> Words:
    if word in CONTRACTIONS:
        return tuple(CONTRACTIONS[word].split())
    if word.endswith("n't"):
        return (word.removesuffix("n't"), "not")
    for ending in CONTRACTED_ENDINGS:
        if word.endswith(ending):
            return (word.removesuffix(ending),)
    return (word,)


# ---- routing by a supervisor -----------------------------------------------------------------------------------------


def route_schema(scenario: Scenario) -> dict[str, object]:
    """JSON Schema of the parameters of `route`. Only agents that answer can be named."""
    return {
        "type": "object",
        "properties": {
            "agent": {"type": "string", "enum": list(scenario.route_targets), "description": "The agent that answers."},
            "reason": {"type": "string", "description": "Why, in one short sentence."},
        },
        "required": ["agent", "reason"],
        "additionalProperties": False,
    }


def route_description(scenario: Scenario, current: str | None) -> str:
    """The description of `route` for the model: its purpose and the agents with their roles."""
    lines = [f"- {name}: {agent.role or 'no role given'}" for name, agent in scenario.route_targets.items()]
    kept = f" {current} has the conversation now: keep it there unless another fits better." if current else ""
    return "\n".join([f"Choose the agent that answers the person's last message.{kept}", *lines])


def decision_from_call(
    scenario: Scenario, text: str, current: str | None, arguments: str | Mapping[str, object] | None
) -> RouteDecision:
    """Turn a model's call of `route` into a decision. None stands for no call; invalid calls fall back to keywords."""
    if arguments is None:
        return fall_back_to_keywords(scenario, text, current, NO_CALL)
    call = _parse_call(arguments)
    if call is None:
        return fall_back_to_keywords(scenario, text, current, BAD_CALL)
    target, reason = call
    if target not in scenario.route_targets:
        return fall_back_to_keywords(scenario, text, current, UNKNOWN_TARGET)
    return RouteDecision(target, reason, is_change(scenario, current, target), by="supervisor")


def fall_back_to_keywords(scenario: Scenario, text: str, current: str | None, why: str) -> RouteDecision:
    """Decide by keywords in place of a supervisor that did not decide, and record why it did not."""
    return replace(route_by_keywords(scenario, text, current), fallback=why)


def _parse_call(arguments: str | Mapping[str, object]) -> tuple[str, str] | None:
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return None
    target = value.get("agent") if isinstance(value, Mapping) else None
    if not isinstance(target, str):
        return None
    reason = value.get("reason")
    words = " ".join(reason.split()) if isinstance(reason, str) else ""
    return target.strip(), words[:ROUTE_REASON_MAX_CHARS] or "the supervisor gave no reason"
