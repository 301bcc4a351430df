"""All open streams of a process: how many, when their heartbeats are due, and when they end."""

from __future__ import annotations

import asyncio

from magent2.bus.interface import Engine
from magent2.gateway.auth import Access
from magent2.gateway.fanout import Fanout
from magent2.gateway.limits import Limits
from magent2.gateway.problems import Problem
from magent2.gateway.reader import Reader
from magent2.gateway.sse import Wanted
from magent2.telemetry import Metrics

BEATS = 15  # heartbeats are spread over this many moments of their interval


class Streams:
    """The readers of a process. One timer for all their heartbeats; an idle reader costs no other."""

    def __init__(self, bus: Engine, limits: Limits, access: Access, metrics: Metrics) -> None:
        self.limits = limits
        self.metrics = metrics
        self._bus = bus
        self._access = access
        self._fanout = Fanout(bus)
        self._wheel: list[set[Reader]] = [set() for _ in range(BEATS)]
        self._next = 0  # where the next reader goes
        self._now = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pass = access.token
        self.open = 0
        self.draining = False

    def enter(self, wanted: Wanted) -> Reader:
        """A new reader, if there is room."""
        if self.draining:
            raise Problem.draining()
        if self.open >= self.limits.streams_max:
            raise Problem.too_many_streams(self.limits.streams_max)
        reader = Reader(self._bus, self._fanout, wanted)
        self.open += 1
        self.metrics.streams_open.set(self.open)
        reader.slot = self._next = (self._next + 1) % BEATS
        self._wheel[reader.slot].add(reader)
        if self._timer is None:
            self._pass = self._access.token
            self._arm()
        return reader

    def leave(self, reader: Reader) -> None:
        self.open -= 1
        self.metrics.streams_open.set(self.open)
        self._wheel[reader.slot].discard(reader)
        reader.close()
        if not self.open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def drain(self) -> None:
        """End every stream so that its client comes back to another gateway."""
        self.draining = True
        for reader in self.readers():
            reader.end("drain")

    # --- the timer

    def _arm(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.limits.heartbeat_s / BEATS, self._tick)

    def _tick(self) -> None:
        self._arm()
        self._now = (self._now + 1) % BEATS
        for reader in self._wheel[self._now]:
            reader.beat = True
            reader.wake()
        if self._access.token != self._pass:
            self._pass = self._access.token
            for reader in self.readers():
                reader.end("revoked")

    def readers(self) -> list[Reader]:
        return [reader for slot in self._wheel for reader in slot]
