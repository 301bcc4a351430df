"""The requests of one run, with the compactions that apply to them. Pure.

The SDK does not know of compactions: its list of items only grows. The window knows what the items are, from the input
of the run and from the length of the list at each turn, so that every attempt finds the same cut again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

from magent2.models.json_types import JsonObject
from magent2.runner.journal.request_view import CutPoint, Items, RequestLayout
from magent2.runner.tokens import correction_of
from magent2.sessions.folds import InputItem, ModelInput, SummaryFacts
from magent2.sessions.history import CompactionRecord, History, RunRecord, Through, sum_usage


class RequestWindow:
    """What is known of the requests of one run. `compaction` is the last one of the run, `usage` that of all."""

    def __init__(self, run: RunRecord) -> None:
        self.compaction: CompactionRecord | None = run.compactions[-1] if run.compactions else None
        self.usage: JsonObject = {}
        for recorded in run.compactions:
            self.usage = sum_usage(self.usage, recorded.get("usage", {}))
        self._run = run.run
        self._given = ModelInput([], 0)
        self._lengths: dict[int, int] = {}  # turn → the number of the SDK's items in its request
        self._rewritten = -1  # the last turn whose request does not continue the one before it
        self._corrections: dict[str, float] = {}  # by agent
        self._refused: dict[str, int] = {}  # by agent: the smallest size that its model has refused

    def begin(self, given: ModelInput) -> None:
        self._given = given

    def pass_turn(self, turn: int, length: int) -> None:
        """Note how long the SDK's request of a turn is. A handoff with a filter of its own may shorten it."""
        if turn > 0 and length < self._lengths.get(turn - 1, 0):
            self._rewritten = turn
        self._lengths[turn] = length

    def add(self, made: CompactionRecord) -> None:
        self.compaction = made
        self.usage = sum_usage(self.usage, made.get("usage", {}))

    def was_compacted_at(self, turn: int) -> bool:
        """Whether a compaction was made for the request of this turn, in this attempt or an earlier one."""
        return self.compaction is not None and self.compaction["turn"] == turn

    def layout(self, turn: int, items: Items, shift: Callable[[int], int]) -> RequestLayout:
        """The request of a turn with its steers. `shift` returns how many of these are before an item of the SDK."""
        if self._rewritten < 0 and not self._begins_with_input(items):
            return RequestLayout(items)
        points = self._points(turn, shift)
        question = self._given.question, len(self._given.items)
        if self._rewritten >= 0:
            question = 0, 0
        layout = RequestLayout(items, points, question, runs=len(self._given.runs) if self._rewritten < 0 else 0)
        if self.compaction is None:
            return layout
        through = self.compaction["through"]
        point = next((point for point in points if point.through == through), None) or self._last_turn(through, shift)
        return layout if point is None else layout.at(point, cast(SummaryFacts, self.compaction))

    def _begins_with_input(self, items: Items) -> bool:
        """Whether the input of the run is still the beginning of its request.

        The SDK removes earlier calls whose ids are used again. Histories of releases before 0.3 may have such calls
        (`call_ids`). Then it is not known where an earlier run ends.
        """
        given = self._given.items
        return len(given) <= len(items) and all(map(_is_same, given, items))

    def _points(self, turn: int, shift: Callable[[int], int]) -> list[CutPoint]:
        """Where the request may be cut: behind each earlier run, and each turn but the last."""
        points: list[CutPoint] = []
        if self._rewritten < 0:
            runs = self._given.runs
            points = [
                CutPoint(end + shift(end), {"run": name}, len(runs) - number)
                for number, (name, end) in enumerate(runs, 1)
            ]
        ends = (
            self._last_turn({"run": self._run, "turn": later - 1}, shift)
            for later in range(max(1, self._rewritten + 1), turn)
        )
        return [*points, *(point for point in ends if point is not None)]

    def _last_turn(self, through: Through, shift: Callable[[int], int]) -> CutPoint | None:
        """The end of a turn of this run: where the request of the next turn ended."""
        later = through.get("turn", -2) + 1
        if through["run"] != self._run or later <= self._rewritten or later not in self._lengths:
            return None
        end = self._lengths[later]
        return CutPoint(end + shift(end), through)

    # --- sizes

    def correction(self, speaker: str) -> float:
        return self._corrections.get(speaker, 1.0)

    def correct(self, speaker: str, usage: object, estimated: int) -> None:
        """Correct later estimates by what the model has reported for a request of this size."""
        reported = usage.get("input_tokens") if isinstance(usage, Mapping) else None
        if isinstance(reported, int) and reported > 0 and estimated > 0:
            self._corrections[speaker] = correction_of(reported, estimated)

    def learn_from(self, history: History, run: RunRecord) -> None:
        """Take the corrections from the last answers of each agent in the input of the run, and of the run itself."""
        for other in (*history.earlier_runs(run)[0], run):
            for answer in other.answers.values():
                self.correct(answer["speaker"], answer["response"].get("usage"), answer.get("estimate", 0))

    def refuse(self, speaker: str, size: int) -> None:
        """Note that the model of an agent has refused a request of this size."""
        self._refused[speaker] = min(size, self._refused.get(speaker, size))

    def refused_size(self, speaker: str) -> int | None:
        return self._refused.get(speaker)


def _is_same(first: InputItem, second: InputItem) -> bool:
    """Whether two items are the same one. The SDK may add fields to an item."""
    return all(first.get(name) == second.get(name) for name in ("role", "call_id")) and first.get(
        "type", "message"
    ) == second.get("type", "message")
