"""Measure steering: `make bench-steer`. First the message bus inside a run, then steers through a service.

Prints a table and, as its last line, one JSON object. `--quick` measures everything once with small counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from bench.support.context import (
    FULL,
    QUICK,
    ContextScale,
    bytes_per_delivery,
    bytes_per_message,
    consume_own_us,
    duplicate_send_us,
    full_sends,
    has_pending_us,
    inject_ms,
)
from bench.support.report import Benchmark, Figures, Goal, shown

GOALS = {
    "send_floor_ratio": Goal(5.0, at_most=True),
    "has_pending_us": Goal(2.0, at_most=True),
    "consume_own_us": Goal(10.0, at_most=True),
    "duplicate_send_us": Goal(2.0, at_most=True),
    "inject_100_templated_ms": Goal(3.0, at_most=True),
}
SERVICE = "bench.support.steering"  # `async def measure() -> dict[str, float]`: steer_accept_ms, steer_visible_ms


def measure_context(figures: Figures, scale: ContextScale) -> None:
    small, large = full_sends(scale.small, scale), full_sends(scale.large, scale)
    figures.add("send_full_500_per_s", scale.sends / small.ours, f"a queue of {scale.small:,}")
    figures.add("send_full_100k_per_s", scale.sends / large.ours, f"a queue of {scale.large:,}")
    note = f"{shown(small.ratio)} and {shown(large.ratio)}, over a lock, a deque and a dict"
    figures.add("send_floor_ratio", max(small.ratio, large.ratio), note)
    behind = f"behind {scale.large:,} messages for others"
    figures.add("has_pending_us", has_pending_us(scale), behind)
    figures.add("consume_own_us", consume_own_us(scale), behind)
    figures.add("duplicate_send_us", duplicate_send_us(scale), "the dearest of oldest, middle and newest")
    figures.add("inject_100_templated_ms", inject_ms(scale), "read, rendered, escaped, put in their places")
    figures.add("bytes_per_message", bytes_per_message(scale), "a short message and its place")
    figures.add("bytes_per_delivery", bytes_per_delivery(scale), "unread, for each subscriber")


def measure_service(figures: Figures, scale: ContextScale) -> None:
    """Steers through a gateway to a run on a worker."""
    if find_spec(SERVICE) is None:
        return
    for name, value in asyncio.run(import_module(SERVICE).measure()).items():
        figures.add(name, value)


PARTS: dict[str, Callable[[Figures, ContextScale], None]] = {"context": measure_context, "service": measure_service}


BENCHMARK = Benchmark("bench.steer", __doc__, GOALS, PARTS, FULL, QUICK)


if __name__ == "__main__":
    BENCHMARK.main()
