"""Who gets the mail: words that speak for an agent, counted. Pure.

Words are compared whole and case-folded, in the few forms that `ENDINGS` lists. At each place of the text the longest
keyword wins, so a phrase of weight 0 ("no problem") silences the word inside it; each keyword counts once.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

from magent2.roster.spec import AgentSpec, Scenario

EVIDENCE_MIN = 1.0  # what an agent's keywords must weigh together before mail moves to it
TEXT_MAX_CHARS = 20_000  # of the text; what a person wants is said before that
FORMS_MAX = 512  # of one keyword

# (what a word may lose at its end, what it may get there)
ENDINGS = (
    ("", "s"), ("", "es"), ("", "ed"), ("", "ing"),
    ("e", "ed"), ("e", "ing"), ("y", "ies"), ("y", "ied"),
)  # fmt: skip
DOUBLED = "bdgmnpt"  # stop → stopped, log → logging
INFLECTED_MIN_CHARS = 3  # "in", "is" and "to" have no other forms

# "can't" is "can not", as "does not" is "doesn't"; possessives and short verbs say nothing.
CONTRACTIONS = {"can't": "can not", "cannot": "can not", "won't": "will not", "shan't": "shall not"}
TAILS = ("'s", "'d", "'m", "'re", "'ve", "'ll", "'")

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")

Words = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """Who answers, and why. `evidence` has the words that were found, for each agent that has any.

    `by` is who decided: `keywords`, `current` (nothing spoke against the one who has it), or `supervisor`. `fallback`
    says why the supervisor did not, when it was asked.
    """

    agent: str
    reason: str
    changed: bool
    scores: Mapping[str, float] = field(default_factory=dict)
    evidence: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    by: str = "keywords"
    fallback: str | None = None


def choose(scenario: Scenario, text: str, current: str | None) -> Choice:
    """The agent that the words of `text` speak for; the current one without evidence or on a tie.

    Without a current agent that can answer, the scenario's root stands in.
    """
    words = words_of(text)
    found = {name: _found(agent, words) for name, agent in scenario.answering.items()}
    scores = {name: round(sum(weights.values()), 3) for name, weights in found.items()}
    evidence = {name: tuple(weights) for name, weights in found.items() if weights}
    stays = current if current is not None and current in scores else scenario.root
    agent, reason = _best(scores, evidence, stays)
    by = "current" if agent == stays else "keywords"
    return Choice(agent, reason, is_change(scenario, current, agent), scores, evidence, by)


def is_change(scenario: Scenario, current: str | None, agent: str) -> bool:
    """Whether mail moves; a session without a current agent starts with the root."""
    return agent != (scenario.root if current is None else current)


def _best(scores: Mapping[str, float], evidence: Mapping[str, tuple[str, ...]], stays: str) -> tuple[str, str]:
    best = max(scores.values(), default=0.0)
    leaders = [name for name, score in scores.items() if score == best]
    if best < EVIDENCE_MIN:
        return stays, "no evidence for another agent"
    if len(leaders) > 1:
        return stays, f"as much speaks for {' as for '.join(leaders)}"
    words = ", ".join(evidence[leaders[0]])
    return leaders[0], f"{leaders[0]}: {words}"


def _found(agent: AgentSpec, words: Words) -> dict[str, float]:
    """The agent's keywords in the text, each once, with their weights."""
    index = _index(tuple(agent.keywords.items()))
    found: dict[str, float] = {}
    place = 0
    while place < len(words):
        keyword, weight, length = _longest(index, words, place)
        if weight:
            found[keyword] = weight
        place += length or 1
    return found


Index = Mapping[str, tuple[tuple[Words, str, float], ...]]


def _longest(index: Index, words: Words, place: int) -> tuple[str, float, int]:
    for forms, keyword, weight in index.get(words[place], ()):
        if words[place : place + len(forms)] == forms:
            return keyword, weight, len(forms)
    return "", 0.0, 0


@lru_cache(maxsize=1024)
def _index(keywords: tuple[tuple[str, float], ...]) -> Index:
    """Every form of every keyword, by its first word, longest first."""
    entries: dict[str, list[tuple[Words, str, float]]] = {}
    for keyword, weight in keywords:
        for forms in forms_of(keyword):
            entries.setdefault(forms[0], []).append((forms, keyword, weight))
    return {first: tuple(sorted(found, key=lambda entry: -len(entry[0]))) for first, found in entries.items()}


def forms_of(keyword: str) -> tuple[Words, ...]:
    """All the ways to write a keyword; a phrase that has too many is taken as it is written."""
    words = words_of(keyword)
    choices = [tuple(dict.fromkeys(_forms(word))) for word in words]
    count = 1
    for choice in choices:
        count *= len(choice)
    if count > FORMS_MAX:
        return (words,)
    return tuple(product(*choices)) if words else ()


def _forms(word: str) -> Iterator[str]:
    yield word
    if len(word) < INFLECTED_MIN_CHARS:
        return
    for lost, gained in ENDINGS:
        if word.endswith(lost):
            yield word.removesuffix(lost) + gained
    if word[-1] in DOUBLED and word[-2] in "aeiou":
        yield word + word[-1] + "ed"
        yield word + word[-1] + "ing"


def words_of(text: str) -> Words:
    """The words of a text, as they are compared."""
    plain = unicodedata.normalize("NFKC", text[:TEXT_MAX_CHARS]).casefold().replace("’", "'").replace("‘", "'")
    return tuple(word for match in _WORD.finditer(plain) for word in _opened(match[0]))


def _opened(word: str) -> Words:
    if word in CONTRACTIONS:
        return tuple(CONTRACTIONS[word].split())
    if word.endswith("n't"):
        return (word.removesuffix("n't"), "not")
    for tail in TAILS:
        if word.endswith(tail):
            return (word.removesuffix(tail),)
    return (word,)
