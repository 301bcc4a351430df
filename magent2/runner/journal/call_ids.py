"""Ids of tool calls. A model chooses them, and some servers use one again: in each answer, or twice in one.

The SDK keeps one call and one result for each id, so the model would lose its earlier calls, and two calls of one
answer would share a result. Such calls get new ids before the answer is recorded, and the model sees these from then
on.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable

from agents.items import TResponseOutputItem

from magent2.runner.journal.request_view import Items, called_id


class CallIds:
    """Makes the ids of the calls in one answer unique. An answer is seen twice: item by item, and then as a whole."""

    def __init__(self, request: Items) -> None:
        self._taken: set[object] = {"", *map(called_id, request)}
        self._chosen: dict[tuple[str, int], str] = {}  # (id of the model, how many calls before had it) → id
        self._streamed: Counter[str] = Counter()

    def next_item(self, item: TResponseOutputItem) -> TResponseOutputItem:
        """The next streamed item with its id."""
        return self._with_id(item, self._streamed)

    def all_items(self, items: Iterable[TResponseOutputItem]) -> list[TResponseOutputItem]:
        """The items of the whole answer. Calls that were streamed have the same ids as then."""
        seen: Counter[str] = Counter()
        return [self._with_id(item, seen) for item in items]

    def _with_id(self, item: TResponseOutputItem, seen: Counter[str]) -> TResponseOutputItem:
        if item.type != "function_call":
            return item
        key = item.call_id, seen[item.call_id]
        seen[item.call_id] += 1
        if key not in self._chosen:
            chosen = f"call_{uuid.uuid4().hex}" if item.call_id in self._taken else item.call_id
            self._chosen[key] = chosen
            self._taken.add(chosen)
        return item if self._chosen[key] == item.call_id else item.model_copy(update={"call_id": self._chosen[key]})
