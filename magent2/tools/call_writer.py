"""The port through which one tool call writes to the log before it has a result."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from magent2.bus.operations import Append, SetHead
from magent2.sessions.history import SendFacts


class CallWriter(Protocol):
    """Writes what must be on the log before the call has a result.

    Every append is made under the token of the run's owner: a worker that has lost the lane writes nothing.
    """

    def earlier_send(self, position: int) -> SendFacts | None:
        """Return what an earlier attempt sent immediately at this position."""
        ...

    def earlier_positions(self) -> frozenset[int]:
        """Return the positions of the call at which earlier attempts sent something immediately."""
        ...

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        """Serialize sends of a run: hold this while a send is planned and appended, so that each plan sees the last."""
        ...

    async def send_now(self, position: int, facts: SendFacts, append: Append) -> None:
        """Send, and record the send, in one append.

        Raises `Refused` or `TopicDeleted` when nothing was written; plan the send again.
        """
        ...

    async def begin_once(self, tool: str, digest: str) -> None:
        """Record that a tool that must not run twice is about to run. Raises `OutcomeUnknown` if it was started."""
        ...

    async def set_head(self, head: SetHead) -> None:
        """Set a head with the next append."""
        ...
