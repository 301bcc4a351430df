"""Rate limits per principal and kind of request. Administrators have none.

A request is checked against counters in this process only. Gateways on one log exchange their counts afterwards, twice
a second, so a request never waits for the bus.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache

from magent2.background import keep_running
from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Trim
from magent2.bus.records import NewRecord
from magent2.gateway.limits import RequestRate, RouteKind
from magent2.gateway.problems import Problem
from magent2.models.address import counts_topic

MISSES_PER_S, MISSES_BURST = 50.0, 500  # lookups of unknown keys, all clients together
CLIENT_MISSES_PER_S, CLIENT_MISSES_BURST = 10.0, 100  # of one address
ROUNDING_S = 1e-6
# The most bursts that one bucket can owe for requests of other gateways. More gateways than that are not expected.
DEBT_BURSTS = 32
COUNTED_MAX = 20_000  # buckets in memory
STREAM_PREFIX, STREAM_SUFFIX = "/stream/", "/stream"
STEER_SUFFIX = "/steer"
SENDS = frozenset({"/send", "/api/sdk/session/message", "/api/tools/execute", "/v1/responses", "/v1/chat/completions"})


def kind_of(method: str, path: str) -> RouteKind:
    """Return the kind of request, which decides the rate limit."""
    if path in SENDS or (method == "POST" and path.endswith(STEER_SUFFIX)):
        return "send"
    if method not in ("GET", "HEAD"):
        return "write"
    if path.startswith(STREAM_PREFIX) or path.endswith(STREAM_SUFFIX):
        return "stream"
    return "read"


@lru_cache(maxsize=COUNTED_MAX)
def bucket_of(name: str, kind: RouteKind) -> str:
    """Return the bucket of a principal: the same in every gateway, and without the name in plain text."""
    return f"{kind}:{hashlib.blake2b(name.encode(), digest_size=8).hexdigest()}"


class RequestRates:
    """Token buckets, each stored as one number: the time at which it is full again."""

    def __init__(self, rates: Mapping[RouteKind, RequestRate], clock: Callable[[], float] = time.monotonic) -> None:
        self._costs: dict[str, tuple[float, float]] = {
            kind: (1 / rate.per_s, rate.burst / rate.per_s) for kind, rate in rates.items()
        }
        self._full_at: dict[str, float] = {}
        self._clock = clock

    def take(self, name: str, kind: RouteKind) -> str:
        """Count one request and return its bucket. Raises a 429 problem with the time to wait if it is empty."""
        cost_s, burst_s = self._costs[kind]
        now = self._clock()
        bucket = bucket_of(name, kind)
        full_at = max(self._full_at.get(bucket, now), now) + cost_s
        wait_s = full_at - now - burst_s
        if wait_s > ROUNDING_S:
            raise rate_limited(kind, wait_s)
        self._set(bucket, full_at, now)
        return bucket

    def charge(self, bucket: str, count: int) -> None:
        """Count requests that other gateways admitted.

        The excess is compensated: this gateway rejects requests until the average is back at the limit.
        """
        costs = self._costs.get(bucket.partition(":")[0])
        if costs is None:  # a kind of request of another release
            return
        cost_s, burst_s = costs
        now = self._clock()
        full_at = max(self._full_at.get(bucket, now), now)
        self._set(bucket, max(full_at, min(full_at + count * cost_s, now + DEBT_BURSTS * burst_s)), now)

    def open(self) -> None:
        """Start background tasks. Counts of one process need none."""

    def close(self) -> None: ...

    def _set(self, bucket: str, full_at: float, now: float) -> None:
        self._full_at[bucket] = full_at
        if len(self._full_at) > COUNTED_MAX:
            self._evict(now)

    def _evict(self, now: float) -> None:
        """Drop full buckets, which limit nothing. If too many are in use, drop the fuller half of them too."""
        emptiest = sorted((moment, key) for key, moment in self._full_at.items() if moment > now)
        self._full_at = {key: moment for moment, key in emptiest[-COUNTED_MAX // 2 :]}


class UnknownKeyLimit:
    """Limit of lookups of unknown keys, per address and in total.

    Guessing must not keep the log busy or slow down other clients. Known keys are not limited. Each of several gateways
    of one address has an equal part of the limit: there, a lookup counts as many times as there are `gateways`.
    """

    def __init__(self, gateways: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._cost = gateways
        self._full_at = 0.0
        self._clients: dict[str, float] = {}
        self._clock = clock

    def check(self, client: str = "") -> None:
        now = self._clock()
        wait_s = max(
            self._full_at - now - (MISSES_BURST - self._cost) / MISSES_PER_S,
            self._clients.get(client, 0.0) - now - (CLIENT_MISSES_BURST - self._cost) / CLIENT_MISSES_PER_S,
        )
        if wait_s > ROUNDING_S:
            raise rate_limited("unknown key", wait_s)

    def count(self, client: str = "") -> None:
        now = self._clock()
        self._full_at = max(self._full_at, now) + self._cost / MISSES_PER_S
        if not client:
            return
        self._clients[client] = max(self._clients.get(client, now), now) + self._cost / CLIENT_MISSES_PER_S
        if len(self._clients) > COUNTED_MAX:
            self._clients = {name: full_at for name, full_at in self._clients.items() if full_at > now}


def rate_limited(kind: str, wait_s: float) -> Problem:
    seconds = max(1, math.ceil(wait_s))
    return Problem(
        429,
        "rate_limited",
        f"too many requests of the kind {kind!r}; try again in {seconds} s",
        {"retry-after": str(seconds)},
        fields={"retry_after_s": seconds},
    )


SHARE_S = 0.5  # between two appends of counts
BUCKETS_PER_RECORD = 30  # fits into the smallest payload limit that a log can be set to
KEPT_RECORDS = 500
TRIM_EVERY_APPENDS = 200


class SharedRequestRates(RequestRates):
    """Rate limits over all gateways of a log.

    While the bus is unavailable, each gateway counts alone, and those counts are not shared later.
    """

    def __init__(
        self, bus: Engine, rates: Mapping[RouteKind, RequestRate], clock: Callable[[], float] | None = None
    ) -> None:
        super().__init__(rates, *(() if clock is None else (clock,)))
        self._bus = bus
        self._gateway = uuid.uuid4().hex
        self._unshared: dict[str, int] = {}  # counted here and not shared yet
        self._has_unshared = asyncio.Event()
        self._appends = 0
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    def take(self, name: str, kind: RouteKind) -> str:
        bucket = super().take(name, kind)
        self._unshared[bucket] = self._unshared.get(bucket, 0) + 1
        if len(self._unshared) == 1 and not self._has_unshared.is_set():
            self._has_unshared.set()
            self.open()
        return bucket

    def open(self) -> None:
        """Start to share and follow counts. The first request does it too."""
        if not self._tasks:
            self._tasks = (
                asyncio.create_task(keep_running("share request counts", self._share), name="magent2-counts"),
                asyncio.create_task(
                    keep_running("follow request counts", self._follow), name="magent2-counts-of-others"
                ),
            )

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = ()

    async def _share(self) -> None:
        """Append the counts of the last `SHARE_S`.

        A failed append is not repeated: counts that are shared twice would refuse valid requests.
        """
        await self._has_unshared.wait()
        await asyncio.sleep(SHARE_S)
        counts, self._unshared = self._unshared, {}
        self._has_unshared.clear()
        await self._bus.acall(Append(records=tuple(self._records(counts))))
        self._appends += 1
        if self._appends % TRIM_EVERY_APPENDS == 0:
            while (await self._bus.acall(Trim(counts_topic(), keep=KEPT_RECORDS))).more:
                pass

    def _records(self, counts: Mapping[str, int]) -> Iterator[NewRecord]:
        items = list(counts.items())
        for start in range(0, len(items), BUCKETS_PER_RECORD):
            part = dict(items[start : start + BUCKETS_PER_RECORD])
            yield NewRecord(counts_topic(), {"gateway": self._gateway, "counts": part})

    async def _follow(self) -> None:
        """Follow new counts only. After an outage of the bus, the counts of that time are skipped: they are too old."""
        async for record in self._bus.follow(counts_topic()):
            if record.payload.get("gateway") != self._gateway:
                self._charge(record.payload.get("counts"))

    def _charge(self, counts: object) -> None:
        for bucket, count in counts.items() if isinstance(counts, Mapping) else ():
            if isinstance(count, int) and count > 0:
                self.charge(str(bucket), count)
