"""The pen of a call: what it leaves on the log before it has a result."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from magent2.bus.operations import Append, SetHead


class Pen(Protocol):
    """Writes for a call, under the token of the run's owner, what must be on the log before the call has a result."""

    def left(self, place: int) -> Mapping[str, Any] | None:
        """What an earlier attempt has sent at once from this place: `{id, tool, digest, topics}`."""
        ...

    def places(self) -> frozenset[int]:
        """Where earlier attempts have sent something at once."""
        ...

    def alone(self) -> AbstractAsyncContextManager[None]:
        """Around the plan of such a send and its append: those of a run go one after another, so each is planned after
        the one before it has left."""
        ...

    async def leave(self, place: int, facts: Mapping[str, Any], append: Append) -> None:
        """Send, and note it, in one append. `Refused` and `TopicDeleted`: nothing was written, plan again."""
        ...

    async def begin(self, tool: str, digest: str) -> None:
        """Note that a tool which must not be run twice is about to. `OutcomeUnknown`: it was begun already."""
        ...

    async def set_head(self, head: SetHead) -> None:
        """Set it with the next append."""
        ...
