"""A conversation's history inside one process, in the shape that the SDK calls a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from agents import SessionSettings, TResponseInputItem


class MemorySession:
    """The items of one conversation. Gone with the process."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self.session_settings: SessionSettings | None = None
        self._items: list[TResponseInputItem] = []

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        if limit is None:
            return list(self._items)
        return self._items[-limit:] if limit > 0 else []

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        self._items.extend(items)

    async def pop_item(self) -> TResponseInputItem | None:
        return self._items.pop() if self._items else None

    async def clear_session(self) -> None:
        self._items.clear()

    def snapshot(self) -> tuple[TResponseInputItem, ...]:
        return tuple(self._items)

    def restore(self, snapshot: tuple[TResponseInputItem, ...]) -> None:
        """Forget what a run added that did not end: the next attempt starts where this one did."""
        self._items = list(snapshot)
