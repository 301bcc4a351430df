"""The Redis engine: scripts on the server do the work; threads and event loops drive the same exchanges."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from magent2.bus.face import FOLLOW_PAGE, FOLLOW_RETRY_S, FOLLOW_SWEEP_S, EngineBase
from magent2.bus.operations import Describe, Dump, Info, Load, Operation, Read
from magent2.bus.records import LogInfo, Record
from magent2.bus.redis_codec import decode_news
from magent2.bus.redis_drivers import Links, run_on
from magent2.bus.redis_errors import RETRY_FOR_S
from magent2.bus.redis_flows import FLOWS, Place
from magent2.bus.redis_link import Server
from magent2.bus.redis_moving import dump, load
from magent2.bus.redis_opening import info
from magent2.bus.redis_scripts import Exchange
from magent2.bus.redis_watch import LoopHub, LoopThread, RedisWatch
from magent2.bus.redis_wire import CLOSED, Wire
from magent2.errors import BusUnavailable, SettingsError, TransientError
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

    def close(self) -> None:
        self.wire.close()
        self.hub.close()


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
        self._lock = threading.Lock()
        self._found: LogInfo | None = None
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        """With no connection; also in a child process, which must not touch those of its parent."""
        self._process = os.getpid()
        self._links = Links(self._server, self._retry_for_s)
        self._sides: dict[asyncio.AbstractEventLoop, LoopSide] = {}
        self._thread: tuple[LoopThread, LoopHub] | None = None

    # --- operations

    def call(self, operation: Operation[R]) -> R:
        self._check_alive()
        if self._found is None:
            self._opened(self._links.run(info(self._place, Info())))
        return self._links.run(self._exchange(operation))

    async def acall(self, operation: Operation[R]) -> R:
        wire = self._side().wire
        if self._found is None:
            self._opened(await run_on(wire, info(self._place, Info()), self._retry_for_s))
        return await run_on(wire, self._exchange(operation), self._retry_for_s)

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

    async def follow(self, topic: str, after: int | str | None = None) -> AsyncIterator[Record]:
        """As every engine does, but a small record that comes with the news is not read again."""
        with self.watch([topic]) as watch:
            cursor = (await self.acall(Describe((topic,))))[0].last if after is None else after
            while True:
                try:
                    page = await self.acall(Read(topic, cursor, FOLLOW_PAGE))
                except TransientError as error:
                    log.warning("follower waits for the bus", extra={"topic": topic, "error": str(error)})
                    await asyncio.sleep(FOLLOW_RETRY_S)
                    continue
                for record in page.records:
                    cursor = record.seq
                    yield record
                if page.deleted:
                    return
                while cursor == page.last or not page.records:
                    await watch.changed(FOLLOW_SWEEP_S)
                    news = watch.take_news(topic)
                    record_ = decode_news(topic, news) if news else None
                    if record_ is None or not isinstance(cursor, int) or record_.seq != cursor + 1:
                        break
                    cursor = record_.seq
                    yield record_

    # --- connections

    def _check_alive(self) -> None:
        if self._closed:
            raise BusUnavailable(CLOSED)
        if self._process != os.getpid():
            self._begin()

    def _side(self) -> LoopSide:
        self._check_alive()
        loop = asyncio.get_running_loop()
        return self._sides.get(loop) or self._new_side(loop)

    def _new_side(self, loop: asyncio.AbstractEventLoop) -> LoopSide:
        with self._lock:
            for other in [other for other in self._sides if other.is_closed()]:
                self._sides.pop(other).close()
            hub = LoopHub(self._server, self._place.prefix, loop, self._retry_for_s)
            side = self._sides[loop] = LoopSide(Wire(self._server, loop, self._retry_for_s), hub)
        return side

    def _thread_hub(self) -> LoopHub:
        self._check_alive()
        with self._lock:
            if self._thread is None:
                thread = LoopThread()
                self._thread = thread, LoopHub(self._server, self._place.prefix, thread.loop, self._retry_for_s)
            return self._thread[1]

    def close(self) -> None:
        """From any thread; no event loop need run."""
        if self._process != os.getpid():
            self._begin()
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
