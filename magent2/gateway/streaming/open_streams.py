"""The open streams of a process: their number, heartbeats and end."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Protocol, TypeVar

from magent2.bus.interface import Engine
from magent2.gateway.access.auth import Access
from magent2.gateway.access.identity import TOKEN_IDENTITY, Identity
from magent2.gateway.access.keys import KeyCache
from magent2.gateway.limits.limits import GatewayLimits
from magent2.gateway.problems import Problem
from magent2.gateway.streaming.fanout import Fanout
from magent2.gateway.streaming.reader import Reader
from magent2.gateway.streaming.sse import EndReason, FrameFormat, StreamRequest
from magent2.telemetry import Metrics

BEATS = 15  # heartbeats are spread over this many moments of their interval


class OpenStream(Protocol):
    """An open stream, as far as its registration needs it."""

    identity: Identity
    slot: int
    beat: bool

    def wake(self) -> None: ...
    def end(self, reason: EndReason) -> None: ...
    def close(self) -> None: ...
    @property
    def is_idle(self) -> bool: ...


G = TypeVar("G", bound=OpenStream)


class OpenStreams:
    """The readers of a process. One timer for all their heartbeats; an idle reader costs no other."""

    def __init__(self, bus: Engine, limits: GatewayLimits, access: Access, metrics: Metrics) -> None:
        self.limits = limits
        self.metrics = metrics
        self._bus = bus
        self._access = access
        self._fanouts: dict[FrameFormat, Fanout] = {}
        self._wheel: list[set[OpenStream]] = [set() for _ in range(BEATS)]
        self._next = 0  # where the next reader goes
        self._now = 0
        self._timer: asyncio.TimerHandle | None = None
        self._pass = access.token
        self._by_name: Counter[str] = Counter()  # streams of those who are not admins
        self._by_key: dict[str, set[OpenStream]] = {}
        self.keys = KeyCache(bus, self.revoke, self._by_key.__contains__)
        self.open = 0
        self.draining = False

    def enter(self, wanted: StreamRequest, identity: Identity = TOKEN_IDENTITY) -> Reader:
        """A new reader, if there is room."""
        self.check(identity)
        return self.admit(Reader(self._bus, self.fanout(wanted.rendering), wanted, identity))

    def fanout(self, rendering: FrameFormat) -> Fanout:
        """The one follower of all who read in this rendering."""
        return self._fanouts.setdefault(rendering, Fanout(self._bus, rendering))

    def check(self, identity: Identity) -> None:
        """Whether there is room for one more, before anything is opened for it."""
        if self.draining:
            raise Problem.draining()
        if self.open >= self.limits.streams_max:
            raise Problem.too_many_streams(self.limits.streams_max)
        if self.keys.has_ended(identity.key):
            raise Problem.unauthorized()

    def admit(self, reader: G) -> G:
        self._note(reader)
        self.open += 1
        self.metrics.streams_open.set(self.open)
        reader.slot = self._next = (self._next + 1) % BEATS
        self._wheel[reader.slot].add(reader)
        if self._timer is None:
            self._pass = self._access.token
            self._arm()
        return reader

    def _note(self, reader: OpenStream) -> None:
        identity = reader.identity
        name = identity.principal.bound
        if name is not None:
            if self._by_name[name] >= self.limits.streams_per_principal_max:
                reader.close()
                raise Problem.too_many_of_yours(self.limits.streams_per_principal_max)
            self._by_name[name] += 1
        if identity.key is not None:
            self._by_key.setdefault(identity.key, set()).add(reader)

    def _strike(self, reader: OpenStream) -> None:
        name, key = reader.identity.principal.bound, reader.identity.key
        if name is not None:
            self._by_name[name] -= 1
            if not self._by_name[name]:
                del self._by_name[name]
        if key is not None:
            self._by_key[key].discard(reader)
            if not self._by_key[key]:
                del self._by_key[key]

    def revoke(self, key: str) -> int:
        """End the streams that were opened by this key."""
        readers = self._by_key.get(key, set())
        for reader in readers:
            reader.end("revoked")
        return len(readers)

    def leave(self, reader: OpenStream) -> None:
        self._strike(reader)
        self.open -= 1
        self.metrics.streams_open.set(self.open)
        self._wheel[reader.slot].discard(reader)
        reader.close()
        if not self.open and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """Stop listening for what becomes of keys."""
        self.keys.close()

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
                if reader.identity.key is None:
                    reader.end("revoked")

    def readers(self) -> list[OpenStream]:
        return [reader for slot in self._wheel for reader in slot]
