"""Dependencies shared by all routes."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from starlette.requests import HTTPConnection

from magent2.background import log_error
from magent2.bus.interface import Engine
from magent2.bus.operations import WRITE_PROBE, Workers
from magent2.bus.records import WorkerInfo
from magent2.bus.v1_adapter import EngineRequired
from magent2.errors import Magent2Error, StorageError
from magent2.gateway.catalogue import Catalogue
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.limits.rate_limits import RequestRates
from magent2.gateway.reply_waiter import ReplyWaiter
from magent2.gateway.streaming.open_streams import OpenStreams
from magent2.gateway.streaming.session_list import LiveSessionLists
from magent2.models.address import INTERNAL_AGENTS
from magent2.sessions.history import HistoryCache
from magent2.sessions.store import SessionStore
from magent2.telemetry import Metrics

PRESENCE_MAX_AGE_S = 2.0  # how long the list of live workers is cached
PRESENCE_WAIT_MAX_S = 1.0  # how long a request waits for the list
WRITE_PROBE_MAX_AGE_S = 2.0  # how long the outcome of a write probe is used


class WorkerPresence:
    """The agents that have a live worker, read from the bus at most every two seconds.

    One read serves all requests that need it. If it fails or takes too long, the presence is unknown: it is a hint for
    senders, and no request may fail because of it. A request that is cancelled does not cancel the read of the others.
    """

    def __init__(self, bus: Engine) -> None:
        self._bus = bus
        self._agents: frozenset[str] = frozenset()
        self._fresh_until = 0.0
        self._refresh: asyncio.Task[None] | None = None

    def refresh(self) -> None:
        """Start a read if the cache is old and no read is in progress."""
        if not self.known and (self._refresh is None or self._refresh.done()):
            self._refresh = asyncio.create_task(self._read(), name="magent2-worker-presence")

    async def refreshed(self) -> None:
        """Wait for the read in progress, if there is one, for at most `PRESENCE_WAIT_MAX_S`."""
        if self._refresh is not None and not self._refresh.done():
            # `wait` neither raises what the read raises nor cancels the read with the caller.
            await asyncio.wait([self._refresh], timeout=PRESENCE_WAIT_MAX_S)

    async def ensure_fresh(self) -> None:
        """Read if the cache is old, and wait for it. If the bus does not answer, `known` is false afterwards."""
        self.refresh()
        await self.refreshed()

    async def _read(self) -> None:
        try:
            self._agents = served_agents(await self._bus.acall(Workers()))
        except Exception as error:  # noqa: BLE001  the last answer is kept, and the next request reads again
            log_error("cannot read which agents have a worker", error)
        else:
            self._fresh_until = time.monotonic() + PRESENCE_MAX_AGE_S

    @property
    def agents(self) -> frozenset[str]:
        """The agents that had a live worker at the last read."""
        return self._agents

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
    """Return the agents of workers whose lease has not expired, without those that are internal to the runtime."""
    return frozenset(agent for worker in workers if worker.lease_s > 0 for agent in worker.agents) - INTERNAL_AGENTS


class WriteProbe:
    """Whether the store takes writes. All callers share one small write, at most every two seconds."""

    def __init__(self, bus: Engine) -> None:
        self._bus = bus
        self._failure: Magent2Error | None = None
        self._fresh_until = 0.0
        self._write: asyncio.Task[None] | None = None

    async def failure(self) -> Magent2Error | None:
        """Return why the store takes no writes; `None` if it does."""
        if time.monotonic() >= self._fresh_until:
            if self._write is None or self._write.done():
                self._write = asyncio.create_task(self._probe())
            await asyncio.shield(self._write)  # others may wait for it too when this caller is cancelled
        return self._failure

    def note(self, error: Magent2Error) -> None:
        """Take an error of another write as the outcome of a probe.

        A store that is almost full may take the small write of the probe and refuse a message.
        """
        if isinstance(error, StorageError):
            self._set(error)

    async def _probe(self) -> None:
        try:
            await self._bus.acall(WRITE_PROBE)
        except EngineRequired:
            self._set(None)  # a v1 bus has no write without a reader
        except Magent2Error as error:
            self._set(error)
        except Exception as error:  # noqa: BLE001  the probes that wait for it must get an answer
            log_error("the write probe failed", error)
            # Without the text of the error: callers of `/ready` need no credential.
            self._set(
                StorageError(f"the store failed unexpectedly ({type(error).__name__}); see the log of the gateway")
            )
        else:
            self._set(None)

    def _set(self, failure: Magent2Error | None) -> None:
        self._failure = failure
        self._fresh_until = time.monotonic() + WRITE_PROBE_MAX_AGE_S


@dataclass(frozen=True, slots=True)
class Services:
    """Dependencies shared by all routes. `has_keys` is false for a bus that cannot store API keys."""

    bus: Engine
    has_keys: bool
    sessions: SessionStore
    streams: OpenStreams
    presence: WorkerPresence
    writes: WriteProbe
    limits: GatewayLimits
    metrics: Metrics
    catalogue: Catalogue
    histories: HistoryCache
    replies: ReplyWaiter
    session_lists: LiveSessionLists
    rates: RequestRates


def services_of(request: HTTPConnection) -> Services:
    """The services of the application that handles a request."""
    services: Services = request.app.state.services
    return services
