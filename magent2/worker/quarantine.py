"""Keeps mail that may be what kills workers apart from other mail that is as suspicious.

When a worker dies, every lane it held has lost an attempt, and only one of them may be to blame. So a suspect runs
while no other suspect is held by the same worker: the rest is handed back first, at no cost. The guilty are counted.
"""

from __future__ import annotations

import asyncio


class Quarantine:
    """One bed. Lanes are named by their owner tokens."""

    def __init__(self) -> None:
        self._inside: str | None = None
        self._undecided: set[str] = set()
        self._all_decided = asyncio.Event()
        self._all_decided.set()

    def expect(self, token: str) -> None:
        """A lane was claimed that may turn out to be a suspect."""
        self._undecided.add(token)
        self._all_decided.clear()

    def decide(self, token: str) -> None:
        """The lane is no suspect, or has been handed back, or is inside."""
        self._undecided.discard(token)
        if not self._undecided:
            self._all_decided.set()

    async def enter(self, token: str) -> bool:
        """Take the bed, and wait until nobody else is undecided; `False` when it is taken."""
        if self._inside is not None:
            return False
        self._inside = token
        self.decide(token)
        await self._all_decided.wait()
        return True

    def leave(self, token: str) -> None:
        if self._inside == token:
            self._inside = None
        self.decide(token)
