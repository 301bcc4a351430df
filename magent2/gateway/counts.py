"""Counting together: gateways on one log tell each other whom they have let in.

A request is counted where it arrives, without asking anybody. Half a second after the first count a gateway appends all
that it has counted since, and charges what the others append to its own buckets. With n gateways, rate r and burst b
nobody gets more than b + r·t + (n - 1)(b + r·T) in any time t, where T is how long it takes until all have heard: that
half second, and the way of a record to its followers. Names are hashed: the log need not know who asks how often.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from magent2.bus.face import FOLLOW_RETRY_S
from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Trim
from magent2.bus.records import NewRecord
from magent2.errors import Magent2Error
from magent2.gateway.limits import Rate, RouteKind
from magent2.gateway.ratelimit import RateLimits
from magent2.models.address import counts_topic

log = logging.getLogger(__name__)

SHARE_S = 0.5
BUCKETS_PER_RECORD = 30  # fits into the smallest payload that a log can be told to take
KEPT_RECORDS = 500
TRIM_EVERY = 200  # appends


class SharedRates(RateLimits):
    """Rate limits over all gateways on a log. While the bus is away each counts for itself, and what it counted then
    stays with it."""

    def __init__(self, bus: Engine, rates: Mapping[RouteKind, Rate], clock: Callable[[], float] | None = None) -> None:
        super().__init__(rates, *(() if clock is None else (clock,)))
        self._bus = bus
        self._gateway = uuid.uuid4().hex
        self._fresh: dict[str, int] = {}  # counted here, and not told yet
        self._some = asyncio.Event()
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    def take(self, name: str, kind: RouteKind) -> str:
        bucket = super().take(name, kind)
        self._fresh[bucket] = self._fresh.get(bucket, 0) + 1
        if len(self._fresh) == 1 and not self._some.is_set():
            self._some.set()
            self.open()
        return bucket

    def open(self) -> None:
        """Listen to the others; the first request does it too."""
        if not self._tasks:
            self._tasks = (
                asyncio.create_task(self._tell(), name="magent2-counts"),
                asyncio.create_task(self._listen(), name="magent2-counts-of-others"),
            )

    def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._tasks = ()

    async def _tell(self) -> None:
        appends = 0
        while True:
            await self._some.wait()
            await asyncio.sleep(SHARE_S)
            counts, self._fresh = self._fresh, {}
            self._some.clear()
            try:
                await self._bus.acall(Append(records=tuple(self._records(counts))))
                appends += 1
                if appends % TRIM_EVERY == 0:
                    await self._bus.acall(Trim(counts_topic(), keep=KEPT_RECORDS))
            except Magent2Error as error:  # told twice would be worse than not at all
                log.warning("counts of requests were not shared", extra={"error": str(error)})

    def _records(self, counts: Mapping[str, int]) -> Iterator[NewRecord]:
        told = list(counts.items())
        for start in range(0, len(told), BUCKETS_PER_RECORD):
            part = dict(told[start : start + BUCKETS_PER_RECORD])
            yield NewRecord(counts_topic(), {"gateway": self._gateway, "counts": part})

    async def _listen(self) -> None:
        """From now on, and again from now on when the log was away: what is old is no longer owed."""
        while True:
            try:
                async for record in self._bus.follow(counts_topic()):
                    if record.payload.get("gateway") != self._gateway:
                        self._charge(record.payload.get("counts"))
            except Magent2Error as error:
                log.warning("counts of other gateways are not heard", extra={"error": str(error)})
            await asyncio.sleep(FOLLOW_RETRY_S)

    def _charge(self, counts: Any) -> None:
        for bucket, count in counts.items() if isinstance(counts, Mapping) else ():
            if isinstance(count, int) and count > 0:
                self.charge(str(bucket), count)
