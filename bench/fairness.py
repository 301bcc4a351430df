"""Measure how long a user waits beside another user's flood of slow runs: `make bench-fairness`.

Prints a table and, as its last line, one JSON object. `--quick` measures everything once with small counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.support.redis_server import redis_server
from bench.support.report import Benchmark, Connect, Figures, Goal
from bench.support.worker.flood import FULL, QUICK, FloodScale, flooded_answers

GOALS = {
    "redis_flooded_p50_ratio": Goal(3.0, at_most=True),
    "redis_flooded_p95_ratio": Goal(3.0, at_most=True),
    "sqlite_flooded_p50_ratio": Goal(3.0, at_most=True),
    "sqlite_flooded_p95_ratio": Goal(3.0, at_most=True),
}


def measure_redis(figures: Figures, scale: FloodScale) -> None:
    from magent2.bus.redis_adapter import RedisBus

    with redis_server() as url:
        _measure(figures, "redis", partial(RedisBus, url, prefix="bench"), scale)


def measure_sqlite(figures: Figures, scale: FloodScale) -> None:
    from magent2.bus.sqlite import SqliteBus

    with tempfile.TemporaryDirectory(prefix="magent2-bench-") as name:
        _measure(figures, "sqlite", partial(SqliteBus, Path(name, "flood.db")), scale)


def _measure(figures: Figures, engine: str, connect: Connect, scale: FloodScale) -> None:
    middle, late, slow_runs = flooded_answers(connect, scale)
    figures.add_pair(f"{engine}_flooded_p50_ratio", middle, "ms")
    figures.add_pair(f"{engine}_flooded_p95_ratio", late, "ms")
    note = f"of {scale.flood:,} slow messages of one user, at {scale.slots:,} slots"
    figures.add(f"{engine}_slow_runs", slow_runs, note)


PARTS: dict[str, Callable[[Figures, FloodScale], None]] = {"redis": measure_redis, "sqlite": measure_sqlite}


BENCHMARK = Benchmark("bench.fairness", __doc__, GOALS, PARTS, FULL, QUICK)


if __name__ == "__main__":
    BENCHMARK.main()
