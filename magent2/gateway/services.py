"""Dependencies shared by all routes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from magent2.bus.interface import Engine
from magent2.bus.operations import Workers
from magent2.bus.records import WorkerInfo
from magent2.errors import TransientError
from magent2.gateway.catalogue import Catalogue
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.limits.rate_limits import RequestRates
from magent2.gateway.reply_waiter import ReplyWaiter
from magent2.gateway.streaming.open_streams import OpenStreams
from magent2.gateway.streaming.session_list import LiveSessionLists
from magent2.sessions.history import HistoryCache
from magent2.sessions.store import SessionStore
from magent2.telemetry import Metrics

PRESENCE_MAX_AGE_S = 2.0  # how long the list of live workers is cached


class WorkerPresence:
    """The agents that have a live worker, read from the bus at most every two seconds."""

    def __init__(self, bus: Engine) -> None:
        self._bus = bus
        self._agents: frozenset[str] = frozenset()
        self._fresh_until = 0.0
        self._refresh: asyncio.Task[None] | None = None

    def refresh(self) -> asyncio.Task[None] | None:
        """Start a read if the cache is old. Return the read in progress, if there is one."""
        if self._refresh is not None and not self._refresh.done():
            return self._refresh
        if self.known:
            return None
        self._refresh = asyncio.create_task(self._read())
        return self._refresh

    async def ensure_fresh(self) -> None:
        """Wait until the cache is fresh, or the bus has failed to answer."""
        read = self.refresh()
        if read is not None:
            await read

    async def _read(self) -> None:
        try:
            self._agents = served_agents(await self._bus.acall(Workers()))
        except TransientError:
            return  # keep the last answer; the next request reads again
        self._fresh_until = time.monotonic() + PRESENCE_MAX_AGE_S

    def __contains__(self, agent: str) -> bool:
        return agent in self._agents

    @property
    def known(self) -> bool:
        """Whether the cache is fresh enough to tell a sender that an agent has no worker."""
        return time.monotonic() < self._fresh_until


class UnknownPresence(WorkerPresence):
    """The presence on a bus that does not list its workers. Senders get no notice that an agent has no worker."""

    def refresh(self) -> None:
        return None

    @property
    def known(self) -> bool:
        return False


def served_agents(workers: tuple[WorkerInfo, ...]) -> frozenset[str]:
    """Return the agents of workers whose lease has not expired."""
    return frozenset(agent for worker in workers if worker.lease_s > 0 for agent in worker.agents)


@dataclass(frozen=True, slots=True)
class Services:
    """Dependencies shared by all routes. `has_keys` is false for a bus that cannot store API keys."""

    bus: Engine
    has_keys: bool
    sessions: SessionStore
    streams: OpenStreams
    presence: WorkerPresence
    limits: GatewayLimits
    metrics: Metrics
    catalogue: Catalogue
    histories: HistoryCache
    replies: ReplyWaiter
    session_lists: LiveSessionLists
    rates: RequestRates
