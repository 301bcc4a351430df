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

from magent2.bus.face import EngineBase
from magent2.bus.operations import Dump, Info, Load, Operation
from magent2.bus.records import LogInfo, Page
from magent2.bus.redis_engine.codec import decode_news
from magent2.bus.redis_engine.drivers import Links, run_on
from magent2.bus.redis_engine.errors import RETRY_FOR_S
from magent2.bus.redis_engine.flows import FLOWS, Place
from magent2.bus.redis_engine.link import Server
from magent2.bus.redis_engine.moving import dump, load
from magent2.bus.redis_engine.opening import info
from magent2.bus.redis_engine.scripts import Exchange
from magent2.bus.redis_engine.watch import LoopHub, LoopThread, RedisWatch
from magent2.bus.redis_engine.wire import CLOSED, Wire
from magent2.bus.watch import Watch
from magent2.errors import BusUnavailable, SettingsError
from magent2.settings import PAYLOAD_MAX_BYTES

log = logging.getLogger(__name__)

R = TypeVar("R")

DEFAULT_URL = "redis://localhost:6379/0"
DEFAULT_PREFIX = "magent2"
PREFIX_MAX_CHARS = 128

_FLOWS: dict[type[Operation[Any]], Callable[[Place, Any], Exchange[Any]]] = {
    **FLOWS,
    Dump: dump,
    Load: load,
    Info: info,
}


@dataclass(frozen=True, slots=True)
class LoopSide:
    """What the bus keeps on one event loop."""

    wire: Wire
    hub: LoopHub
    opening: asyncio.Lock = field(default_factory=asyncio.Lock)

    def close(self) -> None:
        self.wire.close()
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
        self._server = Server.parse(redis_url or DEFAULT_URL)
        self._place = Place(prefix, payload_max_bytes)
        self._retry_for_s = retry_for_s
        self._found: LogInfo | None = None
        self._closed = False
        self._begin()
        _BUSES.add(self)

    def _begin(self) -> None:
        """With no connection: at first, and in a child process, which must not touch those of its parent."""
        self._lock = threading.Lock()
        self._links = Links(self._server, self._retry_for_s)
        self._sides: dict[asyncio.AbstractEventLoop, LoopSide] = {}
        self._thread: tuple[LoopThread, LoopHub] | None = None

    def _abandon(self) -> None:
        """In a child process: let go of the parent's connections without a word to the server."""
        self._links.close()
        for side in self._sides.values():
            side.wire.abandon()
            side.hub.abandon()
        if self._thread is not None:
            self._thread[1].abandon()

    # --- operations

    def call(self, operation: Operation[R]) -> R:
        if self._found is None:
            self._opened(self._links.run(info(self._place, Info())))
        return self._links.run(self._exchange(operation))

    async def acall(self, operation: Operation[R]) -> R:
        side = self._sides.get(asyncio.get_running_loop()) or self._side()
        if self._found is None:
            await self._open(side)
        return await run_on(side.wire, self._exchange(operation), self._retry_for_s)

    async def _open(self, side: LoopSide) -> None:
        async with side.opening:
            if self._found is None:
                self._opened(await run_on(side.wire, info(self._place, Info()), self._retry_for_s))

    def _exchange(self, operation: Operation[R]) -> Exchange[R]:
        return _FLOWS[type(operation)](self._place, operation)

    def _opened(self, found: LogInfo) -> None:
        with self._lock:
            first, self._found = self._found is None, found
        for warning in found.warnings if first else ():
            log.warning("redis cannot keep a promise", extra={"server": str(self._server), "warning": warning})

    # --- watching

    def watch(self, topics: Iterable[str] = ()) -> RedisWatch:
        watch = RedisWatch(lambda: self._side().hub, self._thread_hub)
        watch.add(*topics)
        return watch

    async def next_page(self, watch: Watch, topic: str, cursor: int | str) -> Page:
        """Records that come with the news are not read again."""
        told = _told(watch, topic, cursor) if isinstance(watch, RedisWatch) else None
        return told if told is not None else await super().next_page(watch, topic, cursor)

    # --- connections

    def _check_open(self) -> None:
        if self._closed:
            raise BusUnavailable(CLOSED)

    def _side(self) -> LoopSide:
        """Where this event loop keeps its connections; those of loops that are closed go."""
        loop = asyncio.get_running_loop()
        with self._lock:
            self._check_open()
            for other in [other for other in self._sides if other.is_closed()]:
                self._sides.pop(other).close()
            if loop not in self._sides:
                hub = LoopHub(self._server, self._place.prefix, loop, self._retry_for_s)
                self._sides[loop] = LoopSide(Wire(self._server, loop, self._retry_for_s), hub)
            return self._sides[loop]

    def _thread_hub(self) -> LoopHub:
        with self._lock:
            self._check_open()
            if self._thread is None:
                thread = LoopThread()
                self._thread = thread, LoopHub(self._server, self._place.prefix, thread.loop, self._retry_for_s)
            return self._thread[1]

    def close(self) -> None:
        """From any thread; no event loop need run."""
        with self._lock:
            self._closed = True
            sides, self._sides = self._sides, {}
            thread, self._thread = self._thread, None
        self._links.close()
        for side in sides.values():
            side.close()
        if thread is not None:
            thread[1].close()
            thread[0].stop()

    async def aclose(self) -> None:
        if self._thread is not None:
            await asyncio.to_thread(self.close)
        self.close()


def _told(watch: RedisWatch, topic: str, cursor: int | str) -> Page | None:
    """The records that came with the news, if they go on right after the cursor."""
    news = watch.take_news(topic)
    if not news or isinstance(cursor, str):
        return None
    records = [record for record in decode_news(topic, news) if record.seq > cursor]
    if not records or records[0].seq != cursor + 1 or records[-1].seq != cursor + len(records):
        return None
    return Page(tuple(records), records[-1].seq, 0, deleted=False)
