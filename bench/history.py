"""Measure histories: `make bench-history`. What a read that misses the cache costs, and the memory of a worker.

Prints a table and, as its last line, one JSON object. `--quick` measures everything once with small counts.
With `BENCH_MILLION=1` in the environment, histories of a million records are measured too.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.support.history import (
    Memory,
    answer_one,
    answers_in_turn_per_s,
    longest_wait_ms,
    measure_memory,
    read_ms,
    write_history,
)
from bench.support.redis_server import flush, redis_server
from bench.support.report import Benchmark, Connect, Figures, Goal, run
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.sqlite import SqliteBus

GOALS = {
    "miss_ratio_sqlite": Goal(2.0, at_most=True),
    "miss_ratio_redis": Goal(2.0, at_most=True),
    "memory_idle_ratio": Goal(1.5, at_most=True),
}


@dataclass(frozen=True, slots=True)
class HistoryScale:
    """How much is done per measurement."""

    rounds: int
    lengths: tuple[int, ...]  # records of a history
    conversations: int  # answered in turn
    conversation_records: int
    answers: int  # large ones
    answer_chars: int
    idle_s: float  # until memory is measured again


FULL = HistoryScale(9, (1_000, 10_000, 100_000), 300, 400, 2_000, 200_000, 130.0)
QUICK = HistoryScale(1, (1_000, 2_000), 10, 20, 10, 20_000, 0.1)


def measure_engine(figures: Figures, scale: HistoryScale, engine: str, connect: Connect) -> None:
    lengths = scale.lengths + ((1_000_000,) if os.environ.get("BENCH_MILLION") else ())
    costs: dict[int, float] = {}
    for length in lengths:
        bus, begun = connect(), time.monotonic()
        conversation = f"history-{length}"
        write_history(bus, conversation, length)
        run(answer_one(bus, conversation))
        costs[length] = median(run(read_ms(bus, conversation)) for _ in range(scale.rounds + 1))
        wait_ms = run(longest_wait_ms(bus, conversation))
        note = f"others on the event loop wait {wait_ms:.3g} ms at most"
        figures.add(f"miss_{length}_{engine}_ms", costs[length], note)
        figures.values[f"miss_wait_{length}_{engine}_ms"] = wait_ms
        bus.close()
        print(f"bench: {length:,} records on {engine} took {time.monotonic() - begun:.0f} s", file=sys.stderr)
    note = f"{lengths[-1]:,} records over {lengths[0]:,}"
    figures.add(f"miss_ratio_{engine}", costs[lengths[-1]] / costs[lengths[0]], note)
    bus = connect()
    rate = run(answers_in_turn_per_s(bus, scale.conversations, scale.conversation_records, min(3, scale.rounds)))
    bus.close()
    note = f"{scale.conversations} conversations with {scale.conversation_records} records each"
    figures.add(f"in_turn_{engine}_per_s", rate, note)


def measure_sqlite(figures: Figures, scale: HistoryScale) -> None:
    with tempfile.TemporaryDirectory(prefix="magent2-bench-") as folder:
        names = iter(range(1000))
        measure_engine(figures, scale, "sqlite", lambda: SqliteBus(Path(folder) / f"{next(names)}.db"))


def measure_redis(figures: Figures, scale: HistoryScale) -> None:
    with redis_server() as url:

        def empty() -> RedisBus:
            flush(url)
            return RedisBus(url, prefix="bench")

        measure_engine(figures, scale, "redis", empty)


def measure_worker_memory(figures: Figures, scale: HistoryScale) -> None:
    """The resident memory of a worker that gives large answers, before, after, and when it was idle for a while."""
    memory: Memory = asyncio.run(measure_memory(scale.answers, scale.answer_chars, scale.idle_s))
    figures.add("memory_before_mb", memory.before_mb)
    figures.add("memory_after_mb", memory.after_mb, f"{scale.answers:,} answers of {scale.answer_chars:,} characters")
    figures.add("memory_idle_mb", memory.idle_mb, f"{scale.idle_s:g} s later")
    figures.add("memory_idle_ratio", memory.idle_mb / memory.before_mb, "idle over before")


PARTS: dict[str, Callable[[Figures, HistoryScale], None]] = {
    "sqlite": measure_sqlite,
    "redis": measure_redis,
    "memory": measure_worker_memory,
}


BENCHMARK = Benchmark("bench.history", __doc__, GOALS, PARTS, FULL, QUICK)


if __name__ == "__main__":
    BENCHMARK.main()
