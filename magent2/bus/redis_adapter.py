"""The Redis engine: scripts on the server do the work; threads and event loops drive the same exchanges."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from magent2.bus.base import EngineBase
from magent2.bus.operations import Dump, Info, Load, Operation
from magent2.bus.records import LogInfo, Page
from magent2.bus.redis_engine.codec import decode_news
from magent2.bus.redis_engine.connection import ServerAddress
from magent2.bus.redis_engine.errors import RETRY_FOR_S
from magent2.bus.redis_engine.exchanges import EXCHANGES, Keyspace
from magent2.bus.redis_engine.execute import ConnectionPool, execute_pipelined
from magent2.bus.redis_engine.functions import Exchange
from magent2.bus.redis_engine.handshake import info
from magent2.bus.redis_engine.pipeline import CLOSED, PipelinedConnection
from magent2.bus.redis_engine.transfer import dump, load
from magent2.bus.redis_engine.watch import EventLoopThread, RedisWatch, SubscriptionHub
from magent2.bus.watch import Watch
from magent2.errors import BusUnavailable, SettingsError
from magent2.settings import PAYLOAD_MAX_BYTES

log = logging.getLogger(__name__)

R = TypeVar("R")

DEFAULT_URL = "redis://localhost:6379/0"
DEFAULT_PREFIX = "magent2"
PREFIX_MAX_CHARS = 128

_ALL_EXCHANGES: dict[type[Operation[Any]], Callable[[Keyspace, Any], Exchange[Any]]] = {
    **EXCHANGES,
    Dump: dump,
    Load: load,
    Info: info,
}


@dataclass(frozen=True, slots=True)
class LoopResources:
    """What the bus keeps on one event loop."""

    pipeline: PipelinedConnection
    hub: SubscriptionHub
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    def close(self) -> None:
        self.pipeline.close()
        self.hub.close()


_BUSES: weakref.WeakSet[RedisBus] = weakref.WeakSet()


def _begin_again() -> None:
    for bus in list(_BUSES):
        bus._abandon()
        bus._begin()


os.register_at_fork(after_in_child=_begin_again)


class RedisBus(EngineBase):
    """A log under a key prefix of a Redis or Valkey server. Nothing is contacted before the first operation."""

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        payload_max_bytes: int = PAYLOAD_MAX_BYTES,
        retry_for_s: float = RETRY_FOR_S,
    ) -> None:
        if not 0 < len(prefix) <= PREFIX_MAX_CHARS or not prefix.isprintable():
            raise SettingsError(
                f"key prefix {prefix[:80]!r} cannot be used: take 1 to {PREFIX_MAX_CHARS} printable characters"
            )
        self._server = ServerAddress.parse(redis_url or DEFAULT_URL)
        self._keyspace = Keyspace(prefix, payload_max_bytes)
        self._retry_for_s = retry_for_s
        self._found: LogInfo | None = None
        self._closed = False
        self._begin()
        _BUSES.add(self)

    def _begin(self) -> None:
        """With no connection: at first, and in a child process, which must not touch those of its parent."""
        self._lock = threading.Lock()
        self._pool = ConnectionPool(self._server, self._keyspace.library, self._retry_for_s)
        self._resources: dict[asyncio.AbstractEventLoop, LoopResources] = {}
        self._thread: tuple[EventLoopThread, SubscriptionHub] | None = None

    def _abandon(self) -> None:
        """In a child process: let go of the parent's connections without a word to the server."""
        self._pool.close()
        for resources in self._resources.values():
            resources.pipeline.abandon()
            resources.hub.abandon()
        if self._thread is not None:
            self._thread[1].abandon()

    # --- operations

    def call(self, operation: Operation[R]) -> R:
        if self._found is None:
            self._opened(self._pool.execute(info(self._keyspace, Info())))
        return self._pool.execute(self._exchange(operation))

    async def acall(self, operation: Operation[R]) -> R:
        resources = self._resources.get(asyncio.get_running_loop()) or self._loop_resources()
        if self._found is None:
            await self._open(resources)
        return await execute_pipelined(resources.pipeline, self._keyspace.library, self._exchange(operation))

    async def _open(self, resources: LoopResources) -> None:
        async with resources.opening:
            if self._found is None:
                exchange = info(self._keyspace, Info())
                self._opened(await execute_pipelined(resources.pipeline, self._keyspace.library, exchange))

    def _exchange(self, operation: Operation[R]) -> Exchange[R]:
        return _ALL_EXCHANGES[type(operation)](self._keyspace, operation)

    def _opened(self, found: LogInfo) -> None:
        with self._lock:
            first, self._found = self._found is None, found
        for warning in found.warnings if first else ():
            log.warning("redis cannot keep a promise", extra={"server": str(self._server), "warning": warning})

    # --- watching

    def watch(self, topics: Iterable[str] = ()) -> RedisWatch:
        watch = RedisWatch(lambda: self._loop_resources().hub, self._thread_hub)
        watch.add(*topics)
        return watch

    async def next_page(self, watch: Watch, topic: str, cursor: int | str) -> Page:
        """Records that come with the news are not read again."""
        notified = _notified_page(watch, topic, cursor) if isinstance(watch, RedisWatch) else None
        return notified if notified is not None else await super().next_page(watch, topic, cursor)

    # --- connections

    def _check_open(self) -> None:
        if self._closed:
            raise BusUnavailable(CLOSED)

    def _loop_resources(self) -> LoopResources:
        """Where this event loop keeps its connections; those of loops that are closed go."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._check_open()
            for other in [other for other in self._resources if other.is_closed()]:
                self._resources.pop(other).close()
            if loop not in self._resources:
                hub = SubscriptionHub(self._server, self._keyspace.prefix, loop, self._retry_for_s)
                self._resources[loop] = LoopResources(PipelinedConnection(self._server, loop, self._retry_for_s), hub)
            return self._resources[loop]

    def _thread_hub(self) -> SubscriptionHub:
        with self._lock:
            self._check_open()
            if self._thread is None:
                thread = EventLoopThread()
                self._thread = (
                    thread,
                    SubscriptionHub(self._server, self._keyspace.prefix, thread.loop, self._retry_for_s),
                )
            return self._thread[1]

    def close(self) -> None:
        """From any thread; no event loop need run."""
        with self._lock:
            self._closed = True
            per_loop, self._resources = self._resources, {}
            thread, self._thread = self._thread, None
        self._pool.close()
        for resources in per_loop.values():
            resources.close()
        if thread is not None:
            thread[1].close()
            thread[0].stop()

    async def aclose(self) -> None:
        if self._thread is not None:
            await asyncio.to_thread(self.close)
        self.close()


def _notified_page(watch: RedisWatch, topic: str, cursor: int | str) -> Page | None:
    """The records that came with the news, if they go on right after the cursor."""
    news = watch.take_news(topic)
    if not news or isinstance(cursor, str):
        return None
    records = [record for record in decode_news(topic, news) if record.seq > cursor]
    if not records or records[0].seq != cursor + 1 or records[-1].seq != cursor + len(records):
        return None
    return Page(tuple(records), records[-1].seq, 0, deleted=False)
