"""The Redis engine: a library of functions on the server does the work, called from threads and from event loops."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from magent2.bus.base import EngineBase
from magent2.bus.operations import AnyOperation, Delete, Dump, Erase, Expire, Info, Load, Operation, Scrub
from magent2.bus.records import LogInfo, Page, page_after
from magent2.bus.redis_engine.codec import decode_notification
from magent2.bus.redis_engine.exchanges import EXCHANGES, AnyExchange, scrub, scrub_wait
from magent2.bus.redis_engine.execute import ConnectionPool, execute_pipelined
from magent2.bus.redis_engine.functions import Exchange
from magent2.bus.redis_engine.handshake import info
from magent2.bus.redis_engine.pipeline import CLOSED, PipelinedConnection
from magent2.bus.redis_engine.primary import LogServer
from magent2.bus.redis_engine.replication import ReplicatedConnection
from magent2.bus.redis_engine.transfer import dump, load
from magent2.bus.redis_engine.watch import EventLoopThread, RedisWatch, SubscriptionHub
from magent2.bus.scrub import Scrubber
from magent2.bus.servers import DEFAULT_PREFIX, RETRY_FOR_S
from magent2.bus.watch import Watch
from magent2.errors import BusUnavailable, SettingsError
from magent2.settings import PAYLOAD_MAX_BYTES

log = logging.getLogger(__name__)

R = TypeVar("R")

DEFAULT_URL = "redis://localhost:6379/0"
PREFIX_MAX_CHARS = 128
OPENING_THREADS_MAX = 4  # threads that open connections for event loops

_ALL_EXCHANGES: dict[type[AnyOperation], AnyExchange] = {
    **EXCHANGES,
    Dump: dump,
    Load: load,
    Info: info,
}
_DELETIONS = (Delete, Erase, Expire)


@dataclass(frozen=True, slots=True)
class LoopResources:
    """The connections of a bus on one event loop."""

    pipeline: PipelinedConnection
    hub: SubscriptionHub
    handshake: asyncio.Lock = field(default_factory=asyncio.Lock)

    def close(self) -> None:
        self.pipeline.close()
        self.hub.close()


_BUSES: weakref.WeakSet[RedisBus] = weakref.WeakSet()


def _reset_after_fork() -> None:
    for bus in list(_BUSES):
        bus._abandon()
        bus._begin()


os.register_at_fork(after_in_child=_reset_after_fork)


class RedisBus(EngineBase):
    """A log under a key prefix of a Redis or Valkey server. The first operation contacts the server.

    Threads share a pool of blocking connections. Each event loop has one pipelined connection and, while something is
    watched, one subscriber connection. A forked child starts without connections and leaves those of its parent alone.
    """

    def __init__(
        self,
        redis_url: str | None = None,
        *,
        prefix: str = DEFAULT_PREFIX,
        payload_max_bytes: int = PAYLOAD_MAX_BYTES,
        retry_for_s: float = RETRY_FOR_S,
    ) -> None:
        if not 0 < len(prefix) <= PREFIX_MAX_CHARS or not prefix.isprintable():
            raise SettingsError(f"invalid key prefix {prefix[:80]!r}: use 1 to {PREFIX_MAX_CHARS} printable characters")
        self._server = LogServer.parse(redis_url or DEFAULT_URL, prefix, payload_max_bytes)
        self._keyspace = self._server.keyspace
        self._retry_for_s = retry_for_s
        self._info: LogInfo | None = None
        self._closed = False
        self._begin()
        _BUSES.add(self)

    def _begin(self) -> None:
        """Set up without any connection: at creation, and in a forked child."""
        self._lock = threading.Lock()
        self._opener = ThreadPoolExecutor(OPENING_THREADS_MAX, "magent2-redis-connect")
        self._pool = ConnectionPool(self._server, self._retry_for_s)
        pool, keyspace = self._pool, self._keyspace
        self._scrubber = Scrubber(
            "redis", lambda: pool.execute(scrub_wait(keyspace)), lambda: pool.execute(scrub(keyspace, Scrub()))
        )
        self._resources: dict[asyncio.AbstractEventLoop, LoopResources] = {}
        self._thread: tuple[EventLoopThread, SubscriptionHub] | None = None

    def _abandon(self) -> None:
        """In a forked child: close the copies of the parent's sockets, and send nothing on them.

        The parent's executor is only dropped: its lock may have been held at the fork.
        """
        self._pool.close()
        for resources in self._resources.values():
            resources.pipeline.abandon()
            resources.hub.abandon()
        if self._thread is not None:
            self._thread[1].abandon()

    # --- operations

    def call(self, operation: Operation[R]) -> R:
        if self._info is None:
            self._set_info(self._pool.execute(info(self._keyspace, Info())))
        result = self._pool.execute(self._exchange(operation))
        self._scrubber.operation_ended(deleted=isinstance(operation, _DELETIONS))
        return result

    async def acall(self, operation: Operation[R]) -> R:
        resources = self._resources.get(asyncio.get_running_loop()) or self._loop_resources()
        keyspace = self._keyspace
        if self._info is None:
            async with resources.handshake:
                if self._info is None:
                    self._set_info(await execute_pipelined(resources.pipeline, keyspace, info(keyspace, Info())))
        result = await execute_pipelined(resources.pipeline, keyspace, self._exchange(operation))
        self._scrubber.operation_ended(deleted=isinstance(operation, _DELETIONS))
        return result

    def _exchange(self, operation: Operation[R]) -> Exchange[R]:
        return _ALL_EXCHANGES[type(operation)](self._keyspace, operation)

    def _set_info(self, found: LogInfo) -> None:
        with self._lock:
            first, self._info = self._info is None, found
        for warning in found.warnings if first else ():
            log.warning("redis server is not set up safely", extra={"server": str(self._server), "warning": warning})

    # --- watching

    def watch(self, topics: Iterable[str] = ()) -> RedisWatch:
        watch = RedisWatch(lambda: self._loop_resources().hub, self._thread_hub)
        watch.add(*topics)
        return watch

    async def next_page(self, watch: Watch, topic: str, cursor: int | str) -> Page:
        """Return the records that came with notifications, or read them if they do not follow the cursor."""
        message = watch.take_notifications(topic) if isinstance(watch, RedisWatch) else None
        notified = page_after(cursor, decode_notification(topic, message)) if message else None
        return notified if notified is not None else await super().next_page(watch, topic, cursor)

    # --- connections

    def _loop_resources(self) -> LoopResources:
        """The connections on the running event loop. Those of closed loops are closed."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._check_open()
            for other in [other for other in self._resources if other.is_closed()]:
                self._resources.pop(other).close()
            if loop not in self._resources:
                kind = ReplicatedConnection if self._server.replicas else PipelinedConnection
                pipeline = kind(self._server, self._opener, loop, self._retry_for_s)
                self._resources[loop] = LoopResources(pipeline, self._subscription_hub(loop))
            return self._resources[loop]

    def _thread_hub(self) -> SubscriptionHub:
        """The subscriptions for watches of threads, on an event loop of the bus."""
        with self._lock:
            self._check_open()
            if self._thread is None:
                thread = EventLoopThread()
                self._thread = thread, self._subscription_hub(thread.loop)
            return self._thread[1]

    def _subscription_hub(self, loop: asyncio.AbstractEventLoop) -> SubscriptionHub:
        return SubscriptionHub(self._server, self._opener, self._keyspace.prefix, loop, self._retry_for_s)

    def _check_open(self) -> None:
        if self._closed:
            raise BusUnavailable(CLOSED)

    def close(self) -> None:
        """Close all connections, from any thread; event loops may have ended."""
        with self._lock:
            self._closed = True
            per_loop, self._resources = self._resources, {}
            thread, self._thread = self._thread, None
        self._scrubber.close()
        self._pool.close()
        for resources in per_loop.values():
            resources.close()
        if thread is not None:
            thread[1].close()
            thread[0].stop()
        self._opener.shutdown(wait=False, cancel_futures=True)

    async def aclose(self) -> None:
        if self._thread is not None or self._scrubber.is_working:  # `close` waits for their threads
            await asyncio.get_running_loop().run_in_executor(self._opener, self.close)
        self.close()
