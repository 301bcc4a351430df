"""How often one principal may ask, by the kind of request.

Counts are kept by this process alone, so that a request costs a look into a dictionary: with n gateways behind one
address a principal gets up to n times the rate. An admin is not counted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from magent2.gateway.limits import Rate, RouteKind
from magent2.gateway.problems import Problem

MISSES_PER_S, MISSES_BURST = 50.0, 500
ROUNDING_S = 1e-6
COUNTED_MAX = 20_000  # principals and kinds that are remembered at a time
STREAM_PREFIX, STREAM_SUFFIX = "/stream/", "/stream"
SENDS = frozenset({"/send", "/api/sdk/session/message", "/api/tools/execute"})


def kind_of(method: str, path: str) -> RouteKind:
    if path in SENDS:
        return "send"
    if method not in ("GET", "HEAD"):
        return "write"
    if path.startswith(STREAM_PREFIX) or path.endswith(STREAM_SUFFIX):
        return "stream"
    return "read"


class RateLimits:
    """Token buckets, each as one number: the moment at which it is full again."""

    def __init__(self, rates: Mapping[RouteKind, Rate], clock: Callable[[], float] = time.monotonic) -> None:
        self._costs = {kind: (1 / rate.per_s, rate.burst / rate.per_s) for kind, rate in rates.items()}
        self._full_at: dict[tuple[str, str], float] = {}
        self._clock = clock

    def take(self, name: str, kind: RouteKind) -> None:
        """Count one request; a refusal that says when to come again, when there were too many."""
        cost_s, burst_s = self._costs[kind]
        now = self._clock()
        full_at = max(self._full_at.get((name, kind), now), now) + cost_s
        wait_s = full_at - now - burst_s
        if wait_s > ROUNDING_S:
            raise too_often(kind, wait_s)
        self._full_at[name, kind] = full_at
        if len(self._full_at) > COUNTED_MAX:
            self._forget(now)

    def _forget(self, now: float) -> None:
        """A full bucket is as good as none; if all are in use, the fullest half goes."""
        emptiest = sorted((moment, key) for key, moment in self._full_at.items() if moment > now)
        self._full_at = {key: moment for moment, key in emptiest[-COUNTED_MAX // 2 :]}


class Misses:
    """Keys that nobody made may be looked for so often, by all clients together: guesses must not keep the log busy.

    Keys that are known need no look and are not held up.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._full_at = 0.0
        self._clock = clock

    def check(self) -> None:
        wait_s = self._full_at - self._clock() - (MISSES_BURST - 1) / MISSES_PER_S
        if wait_s > ROUNDING_S:
            raise too_often("unknown key", wait_s)

    def count(self) -> None:
        self._full_at = max(self._full_at, self._clock()) + 1 / MISSES_PER_S


def too_often(kind: str, wait_s: float) -> Problem:
    seconds = max(1, math.ceil(wait_s))
    return Problem(
        429,
        "rate_limited",
        f"too many requests of the kind {kind!r}; try again in {seconds} s",
        {"retry-after": str(seconds)},
        retry_after_s=seconds,
    )
