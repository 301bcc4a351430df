"""Measure the worker, compared with hand-written code and with the SDK alone: `make bench-worker`.

Prints a table and, as its last line, one JSON object. `--quick` measures everything once with small counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.support.redis_server import redis_server
from bench.support.report import Benchmark, Connect, Figures, Goal, shown
from bench.support.worker.backlog import FULL, QUICK, WorkerScale
from bench.support.worker.drain import drain_words_per_s, redis_drain, sqlite_drain
from bench.support.worker.held_conversations import held_mb
from bench.support.worker.sdk_runs import journal_ms_per_turn, sdk_overhead, sdk_overhead_paced

GOALS = {
    "drain_ratio": Goal(0.7),
    "sqlite_drain_per_s": Goal(2_000),
    "sdk_overhead_ratio": Goal(1.4, at_most=True),
    "sqlite_sdk_overhead_ratio": Goal(1.6, at_most=True),
    "sdk_overhead_paced_ratio": Goal(1.05, at_most=True),
}
WORDS_NOTE = "forty words, so forty tokens a message"


def measure_redis(figures: Figures, scale: WorkerScale) -> None:
    from magent2.bus.redis_adapter import RedisBus

    with redis_server() as url:
        connect = partial(RedisBus, url, prefix="bench")
        figures.add_pair("drain_ratio", redis_drain(url, connect, scale), "/s")
        figures.add("drain_words_per_s", drain_words_per_s(connect, scale), WORDS_NOTE)
        _measure_runs(figures, "", connect, scale)
        figures.add_pair("sdk_overhead_paced_ratio", sdk_overhead_paced(connect, scale), "ms")
        held, empty = held_mb(connect, scale.held)
        note = f"{scale.held:,} SDK runs under way; {shown(empty)} before the first"
        figures.add("rss_mb_1000_conversations", held, note)


def measure_sqlite(figures: Figures, scale: WorkerScale) -> None:
    from magent2.bus.sqlite import SqliteBus

    with tempfile.TemporaryDirectory(prefix="magent2-bench-") as name:

        def file(stem: str) -> Connect:
            return partial(SqliteBus, Path(name, f"{stem}.db"))

        pair = sqlite_drain(Path(name, "raw.db"), file("drain"), scale)
        figures.add_pair("sqlite_drain_ratio", pair, "/s")
        figures.add("sqlite_drain_words_per_s", drain_words_per_s(file("words"), scale), WORDS_NOTE)
        _measure_runs(figures, "sqlite_", file("runs"), scale)


def _measure_runs(figures: Figures, prefix: str, connect: Connect, scale: WorkerScale) -> None:
    """The time of single runs, one after another; then the time per run of a worker with many runs at once."""
    figures.add_pair(f"{prefix}sdk_overhead_ratio", sdk_overhead(connect, scale), "ms")
    figures.add_pair(f"{prefix}sdk_overhead_busy_ratio", sdk_overhead(connect, scale, busy=True), "ms")
    per_turn, pair = journal_ms_per_turn(connect, scale)
    note = f"{shown(pair.ours)} ms, raw {shown(pair.raw)}, for {scale.turns} turns with a tool"
    figures.add(f"{prefix}journal_ms_per_turn", per_turn, note)


PARTS: dict[str, Callable[[Figures, WorkerScale], None]] = {"redis": measure_redis, "sqlite": measure_sqlite}


BENCHMARK = Benchmark("bench.worker", __doc__, GOALS, PARTS, FULL, QUICK)


if __name__ == "__main__":
    BENCHMARK.main()
