"""What every open stream does between two reads: wait, be woken, be told to end."""

from __future__ import annotations

import asyncio

from magent2.gateway.identity import Identity
from magent2.gateway.sse import EndReason


class Waiting:
    """A future while there is nothing to send, and nothing else: an idle stream costs memory, not time."""

    __slots__ = ("_ending", "_waiter", "beat", "gone", "identity", "slot")

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.slot = 0
        self.beat = False  # a heartbeat is due
        self.gone = False  # the client has closed its end
        self._ending: EndReason | None = None
        self._waiter: asyncio.Future[None] | None = None

    def wake(self) -> None:
        waiter = self._waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    @property
    def is_idle(self) -> bool:
        return self._waiter is not None

    def leave(self) -> None:
        self.gone = True
        self.wake()

    def end(self, reason: EndReason) -> None:
        """Send no more, but for the reason."""
        self._ending = self._ending or reason
        self.wake()

    async def wait(self) -> None:
        """Until there may be something to send."""
        if self.is_due():
            return
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def is_due(self) -> bool:
        return bool(self.gone or self.beat or self._ending or self._has_news())

    def _has_news(self) -> bool:
        raise NotImplementedError
