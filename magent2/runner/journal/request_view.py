"""What a model gets of a request that is too long: where it may be cut, and what is shown in place of the rest. Pure.

The SDK sends the whole conversation with each turn. A `RequestLayout` says what its items are: the earlier runs, the
message that the run answers (the question), and the turns of the run. A view is the same request without its oldest
part, which a summary replaces. Each view has the question, or the last message of the user, and of each tool call
either both the call and its result or none of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TypeAlias, cast

from magent2.models.json_types import JsonObject
from magent2.runner.tokens import estimate_tokens
from magent2.sessions.folds import InputItem, SummaryFacts, summary_item
from magent2.sessions.history import Through

Items: TypeAlias = Sequence[InputItem]

TEXT_MIN_CHARS = 400  # a text is not shortened below this length
FILE_KINDS = frozenset({"input_image", "input_file", "input_audio"})
LEFT_OUT: SummaryFacts = {}  # a summary that there is not
SHORTENED = "\n[… {count} characters left out: the request was too long for the model …]\n"
FILE_LEFT_OUT = "[attached file left out: the request was too long for the model]"


@dataclass(frozen=True, slots=True)
class CutPoint:
    """A place where a request may be cut. `index` is the number of items before it, `runs` that of runs behind it."""

    index: int
    through: Through
    runs: int = 0


@dataclass(frozen=True, slots=True)
class RequestLayout:
    """A request of the SDK, and where it may be cut. `question` is the range of the items that the run answers."""

    items: Items
    points: Sequence[CutPoint] = ()
    question: tuple[int, int] = (0, 0)
    cut: int = 0  # number of items that are replaced by `summary`
    summary: SummaryFacts | None = None
    runs: int = 0  # earlier runs behind the cut

    def view(self) -> list[InputItem]:
        """The request as the model gets it."""
        if not self.cut:
            return list(self.items)
        head = [] if self.summary is None else [summary_item(self.summary)]
        return without_orphans([*head, *(self.items[index] for index in self.kept(self.cut))])

    def kept(self, cut: int) -> list[int]:
        """The items that a cut leaves: those behind it, the question, and the last message of the user."""
        first, end = self.question
        left = list(range(cut, len(self.items)))
        if cut > first:
            left = [*range(first, min(end, cut)), *left]
        if cut and not any(is_user_message(self.items[index]) for index in left if not first <= index < end):
            said = (index for index in range(cut - 1, end - 1, -1) if is_user_message(self.items[index]))
            left = sorted({*left, *([last] if (last := next(said, None)) is not None else ())})
        return left

    def at(self, point: CutPoint, summary: SummaryFacts) -> RequestLayout:
        return replace(self, cut=point.index, summary=summary, runs=point.runs)

    def covered_by(self, point: CutPoint) -> list[InputItem]:
        """What a cut at this point takes away from the view, in order."""
        return list(self.items[self.cut : point.index])


@dataclass(frozen=True, slots=True)
class CutGoal:
    """What a cut is for. `room`: tokens for the items that are left. `runs_max`: earlier runs that are left."""

    room: int
    runs_max: int | None = None
    worth: int = 0  # tokens that a cut has to take away at least


def choose_cut(layout: RequestLayout, goal: CutGoal) -> CutPoint | None:
    """The first cut that reaches the goal, else the last one; `None` if there is no cut that is worth it."""
    sizes = [estimate_tokens(item) for item in layout.items]
    before, whole = [0, *accumulate(sizes)], whole_cuts(layout.items)
    last: CutPoint | None = None
    for point in layout.points:
        if point.index <= layout.cut or before[point.index] - before[layout.cut] < goal.worth:
            continue
        if not whole[point.index]:
            continue
        last = point
        size = sum(sizes[index] for index in layout.kept(point.index))
        if size <= goal.room and (goal.runs_max is None or point.runs <= goal.runs_max):
            break
    return last


# --- calls and their results


def is_user_message(item: Mapping[str, object]) -> bool:
    return item.get("role") == "user"


def called_id(item: Mapping[str, object]) -> object:
    """The id of the call that an item makes; `None` if it makes none."""
    kind = str(item.get("type", ""))
    if kind == "mcp_approval_request":
        return item.get("id")
    return None if kind.endswith("_output") else item.get("call_id")


def answered_id(item: Mapping[str, object]) -> object:
    """The id of the call whose result an item is; `None` if it is none."""
    kind = str(item.get("type", ""))
    if kind == "mcp_approval_response":
        return item.get("approval_request_id")
    return item.get("call_id") if kind.endswith("_output") else None


def whole_cuts(items: Items) -> list[bool]:
    """For each index up to the end: whether a cut there separates no result from its call.

    Nor does it separate reasoning from what it led to. Servers may use the id of a call again, so a result belongs to
    the last call of its id.
    """
    crossed = [0] * (len(items) + 2)  # changes of the number of pairs that a cut would separate
    called: dict[object, int] = {}
    for index, item in enumerate(items):
        call = called.get(answered_id(item))
        if call is not None:
            crossed[call + 1] += 1
            crossed[index + 1] -= 1
        if (name := called_id(item)) is not None:
            called[name] = index
        if item.get("type") == "reasoning":
            crossed[index + 1] += 1
            crossed[index + 2] -= 1
    return [count == 0 for count in accumulate(crossed[: len(items)])] + [True]


def without_orphans(items: Items) -> list[InputItem]:
    """The items without results whose call is not there: models refuse them.

    A cut never makes one (`whole_cuts`). Handoffs with a filter of their own, and clients that send items, may.
    """
    calls: set[object] = set()
    kept: list[InputItem] = []
    for item in items:
        answered = answered_id(item)
        if answered is not None and answered not in calls:
            continue
        if (called := called_id(item)) is not None:
            calls.add(called)
        kept.append(item)
    return kept


# --- when nothing is left to be cut


def leave_out(items: Items, room: int) -> list[InputItem]:
    """The newest items that fit, with the last message of the user, and a note in place of the others."""
    sizes = [estimate_tokens(item) for item in items]
    pinned = next((index for index in range(len(items) - 1, -1, -1) if is_user_message(items[index])), len(items))
    size, best, whole = 0, len(items), whole_cuts(items)
    for index in range(len(items) - 1, -1, -1):
        size += sizes[index]
        if size > room and best < len(items):
            break
        if whole[index]:
            best = index
    if best == 0:
        return list(items)
    said = [items[pinned]] if pinned < best else []
    return without_orphans([summary_item(LEFT_OUT), *said, *items[best:]])


@dataclass(slots=True)
class _Text:
    """A text of a request that may be shortened."""

    item: int
    part: int | None  # of the content; `None` if the text is the content
    key: str
    text: str
    rank: int = field(default=0)  # 0: a result of a tool, 1: another text, 2: the last message


def shorten(items: Items, excess: int, *, files: bool = False) -> list[InputItem]:
    """The request without the middle of its longest texts, and with `files` without attached files: `excess` tokens.

    Results of tools are shortened first, the last message of the user last.
    """
    made = [dict(item) for item in items]
    if files:
        excess -= _leave_files_out(made)
    texts = sorted(_texts(made), key=lambda text: (text.rank, -len(text.text)))
    for text in texts:
        if excess <= 0:
            break
        size = estimate_tokens(text.text)
        left = len(text.text) * max(0, size - excess) // max(1, size) - len(SHORTENED)
        length = max(TEXT_MIN_CHARS, left)
        if length < len(text.text):
            _put(made, text, middle_cut(text.text, length))
            excess -= size * (len(text.text) - length) // len(text.text)
    return made


def middle_cut(text: str, length: int) -> str:
    """The beginning and the end of a text, `length` characters together, and how many are missing."""
    if len(text) <= length:
        return text
    head = length * 2 // 3
    return text[:head] + SHORTENED.format(count=len(text) - length) + text[len(text) - (length - head) :]


def _texts(items: Items) -> Iterable[_Text]:
    last = max((index for index, item in enumerate(items) if is_user_message(item)), default=-1)
    for index, item in enumerate(items):
        key = "output" if answered_id(item) is not None else "content"
        rank = 0 if key == "output" else 2 if index == last else 1
        for place, text in _texts_in(item.get(key)):
            yield _Text(index, place, key, text, rank)


def _texts_in(content: object) -> list[tuple[int | None, str]]:
    """The texts of a content, each with its place among the parts; `None` if the content is a text itself."""
    if isinstance(content, str):
        return [(None, content)]
    parts = enumerate(content if isinstance(content, list) else ())
    texts = ((place, part.get("text")) for place, part in parts if isinstance(part, Mapping))
    return [(place, text) for place, text in texts if isinstance(text, str)]


def _put(items: list[InputItem], text: _Text, short: str) -> None:
    if text.part is None:
        items[text.item][text.key] = short
        return
    parts = list(cast("Sequence[JsonObject]", items[text.item][text.key]))
    parts[text.part] = {**parts[text.part], "text": short}
    items[text.item][text.key] = parts


def file_tokens(items: Items) -> int:
    """The tokens of the attached files in a request, of which the estimate is rough."""
    contents = (item.get("content") for item in items)
    return sum(
        estimate_tokens(part) for content in contents if isinstance(content, list) for part in content if _is_file(part)
    )


def _leave_files_out(items: list[InputItem]) -> int:
    """Replace attached files by a note. Return how many tokens that saves."""
    saved = 0
    for item in items:
        content = item.get("content")
        if not isinstance(content, list) or not any(_is_file(part) for part in content):
            continue
        saved += sum(estimate_tokens(part) for part in content if _is_file(part))
        note = {"type": "input_text", "text": FILE_LEFT_OUT}
        item["content"] = [note if _is_file(part) else part for part in content]
    return saved


def _is_file(part: object) -> bool:
    return isinstance(part, Mapping) and part.get("type") in FILE_KINDS
