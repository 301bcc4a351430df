"""What the routes share: the bus, the sessions, the streams, and who is served."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from magent2.bus.interface import Engine
from magent2.bus.operations import Workers
from magent2.bus.records import WorkerInfo
from magent2.errors import TransientError
from magent2.gateway.catalogue import Catalogue
from magent2.gateway.limits.limits import Limits
from magent2.gateway.limits.rate_limits import RateLimits
from magent2.gateway.reply_waiter import Waiters
from magent2.gateway.streaming.open_streams import Streams
from magent2.gateway.streaming.session_list import SessionLists
from magent2.sessions.history import HistoryCache
from magent2.sessions.store import SessionStore
from magent2.telemetry import Metrics

SERVED_FOR_S = 2.0  # how long an answer about workers is good for


class Served:
    """Which agents somebody serves, asked at most every two seconds."""

    def __init__(self, bus: Engine) -> None:
        self._bus = bus
        self._agents: frozenset[str] = frozenset()
        self._good_until = 0.0
        self._asking: asyncio.Task[None] | None = None

    def refresh(self) -> asyncio.Task[None] | None:
        """Ask anew if it is time; the task to wait for, while one is under way."""
        if self._asking is not None and not self._asking.done():
            return self._asking
        if time.monotonic() < self._good_until:
            return None
        self._asking = asyncio.create_task(self._ask())
        return self._asking

    async def _ask(self) -> None:
        try:
            self._agents = agents_of(await self._bus.acall(Workers()))
        except TransientError:
            return  # what was known stands; the next request asks again
        self._good_until = time.monotonic() + SERVED_FOR_S

    def __contains__(self, agent: str) -> bool:
        return agent in self._agents

    @property
    def known(self) -> bool:
        return time.monotonic() < self._good_until


class Unaskable(Served):
    """For a bus that knows nothing of workers: nobody is told that nobody serves."""

    def refresh(self) -> None:
        return None

    @property
    def known(self) -> bool:
        return False


def agents_of(workers: tuple[WorkerInfo, ...]) -> frozenset[str]:
    """Agents of workers whose lease has not run out."""
    return frozenset(agent for worker in workers if worker.lease_s > 0 for agent in worker.agents)


@dataclass(frozen=True, slots=True)
class House:
    """The rooms behind the routes."""

    bus: Engine
    sessions: SessionStore
    streams: Streams
    served: Served
    limits: Limits
    metrics: Metrics
    catalogue: Catalogue
    histories: HistoryCache
    waiters: Waiters
    lists: SessionLists
    rates: RateLimits
