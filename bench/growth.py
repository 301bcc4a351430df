"""Measure what grows with the log: `make bench-growth`. Costs at several sizes, each as a ratio to the smallest size.

First one conversation with ever more turns, then a log with ever more conversations. Costs are processor time, which
other programs on the machine change less than time. Prints a table and, as its last line, one JSON object. `--quick`
measures everything once with small counts.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from statistics import median

from bench.support.growth.fill import ConversationTemplate, fill, sweep, template
from bench.support.growth.service import message_ms, processes, request_ms, request_paths, resident_mb, start_ms
from bench.support.growth.store import Store, redis_store, sqlite_store
from bench.support.growth.turns import ConversationTurns, Turn
from bench.support.processes import ECHO_AGENT
from bench.support.report import Benchmark, Figures, Goal, run, shown
from magent2.bus.log import Log
from magent2.sessions.history import RUNS_MAX

TURN_FIGURES = ("turn", "turn_added", "turn_server", "turn_records", "turn_read", "cold_turn", "cold_turn_records")
LOG_FIGURES = ("message_disk", "message_memory", "sweep", "start", "message", "gateway", "worker", *request_paths(1))
GOALS = {
    f"{engine}_{name}_ratio": Goal(1.5, at_most=True)
    for engine in ("sqlite", "redis")
    for name in (*(f"{figure}_full" for figure in TURN_FIGURES), *LOG_FIGURES)
}
SCANS = ("failed_list", "search", "counts")  # requests that read many sessions


@dataclass(frozen=True, slots=True)
class GrowthScale:
    """How much is done per measurement."""

    turns: tuple[int, ...]  # of one conversation
    turn_samples: int
    cold_samples: int
    conversations: tuple[int, ...]  # in the log
    rounds: int
    messages: int
    requests: int
    scans: int  # requests that read many sessions
    starts: int


FULL = GrowthScale((10, 100, 1_000, 3_000), 20, 5, (1_000, 10_000, 100_000), 3, 256, 300, 10, 3)
QUICK = GrowthScale((2, 4), 2, 1, (20, 40), 1, 8, 4, 2, 1)


@dataclass(slots=True)
class Growth:
    """Measured values of one engine by their name and size."""

    figures: Figures
    engine: str

    def add(self, found: Mapping[int, Mapping[tuple[str, str], float]], base: int | None = None) -> None:
        """Add each figure, which has a name and a unit, as the ratio of the largest size to the smallest.

        `base` is a size between them: then there is also the ratio to that one, under the name `…_full_ratio`.
        """
        smallest, *_, largest = found.values()
        for name, unit in smallest:
            figure = f"{self.engine}_{name}"
            note = ", ".join(f"{shown(values[name, unit])} at {size:,}" for size, values in found.items())
            self.figures.add(f"{figure}_ratio", largest[name, unit] / smallest[name, unit], f"{unit}: {note}")
            if base is not None:
                ratio = largest[name, unit] / found[base][name, unit]
                self.figures.add(f"{figure}_full_ratio", ratio, f"{list(found)[-1]:,} over {base:,}")
            self.figures.values |= {f"{figure}_{size}_{unit}": values[name, unit] for size, values in found.items()}


def progress(what: str, begun: float) -> None:
    print(f"bench: {what} took {time.monotonic() - begun:.0f} s", file=sys.stderr)


# --- one conversation with many turns ----------------------------------------------------------------------------


async def measure_turns(growth: Growth, store: Store, scale: GrowthScale) -> int:
    """Measure turns at each length, and return how many there were in all.

    A request of the model has at most `RUNS_MAX` runs. Until there are so many, it grows with the conversation.
    """
    bus = store.connect()
    conversations = ConversationTurns.open(bus, ECHO_AGENT, store.server_s)
    found: dict[int, Mapping[tuple[str, str], float]] = {}
    for turns in scale.turns:
        begun = time.monotonic()
        warm = await conversations.measure(turns, scale.turn_samples)
        cold = await conversations.measure_cold(turns, scale.cold_samples)
        found[turns] = _turn_values(growth.engine, warm, cold)
        growth.figures.values[f"{growth.engine}_turn_{turns}_items"] = warm[-1].items
        progress(f"{turns:,} turns on {growth.engine}", begun)
    growth.add(found, base=next((turns for turns in scale.turns if turns > RUNS_MAX), scale.turns[-1]))
    await bus.aclose()
    return conversations.turns.total()


def _turn_values(engine: str, warm: list[Turn], cold: list[Turn]) -> Mapping[tuple[str, str], float]:
    values = {
        ("turn", "ms"): median(turn.ms for turn in warm),
        ("turn_added", "ms"): median(turn.added_ms for turn in warm),
        ("turn_records", "records"): median(turn.records for turn in warm),
        ("turn_read", "bytes"): median(turn.read_bytes for turn in warm),
        ("cold_turn", "ms"): median(turn.ms for turn in cold),
        ("cold_turn_records", "records"): median(turn.records for turn in cold),
    }
    return values if engine == "sqlite" else values | {("turn_server", "ms"): median(turn.server_ms for turn in warm)}


def measure_compaction(growth: Growth, store: Store, messages: int) -> None:
    """The bytes of a message with its answer in long conversations, with all tokens and after their compaction."""
    before = store.sizes()
    run(_sweep_once(store))
    after = store.sizes()
    for place in before:
        name = f"{growth.engine}_turn_{place}_bytes"
        growth.figures.add(name, after[place] / messages, f"{shown(before[place] / messages)} before the compaction")


async def _sweep_once(store: Store) -> float:
    """Sweep every conversation, and return the processor time that it takes."""
    bus = store.connect()
    begun = time.process_time() + store.server_s()
    await sweep(Log(bus))
    used = time.process_time() + store.server_s() - begun
    await bus.aclose()
    return used


# --- a log with many conversations -------------------------------------------------------------------------------


def measure_log(growth: Growth, store: Store, scale: GrowthScale) -> None:
    found: dict[int, Mapping[tuple[str, str], float]] = {}
    copied: ConversationTemplate | None = None
    empty: Mapping[str, float] = {}
    before = 0
    for conversations in scale.conversations:
        begun = time.monotonic()
        if copied is None:
            copied = run(_template(store))
            empty = store.sizes()
        run(_fill(store, copied, before, conversations))
        before = conversations
        progress(f"writing {conversations:,} conversations on {growth.engine}", begun)
        begun = time.monotonic()
        found[conversations] = _log_values(store, empty, conversations, scale)
        progress("measuring them", begun)
    growth.add(found)


async def _template(store: Store) -> ConversationTemplate:
    bus = store.connect()
    try:
        return await template(bus, ECHO_AGENT)
    finally:
        await bus.aclose()


async def _fill(store: Store, copied: ConversationTemplate, before: int, after: int) -> None:
    bus = store.connect()
    try:
        await fill(bus, copied, before, after)
    finally:
        await bus.aclose()


def _log_values(
    store: Store, empty: Mapping[str, float], conversations: int, scale: GrowthScale
) -> Mapping[tuple[str, str], float]:
    sizes = store.sizes()
    values = {(f"message_{place}", "bytes"): (size - empty[place]) / conversations for place, size in sizes.items()}
    values["sweep", "us_per_conversation"] = run(_sweep_once(store)) / conversations * 1e6
    values["start", "ms"] = median(start_ms(store.url, store.server_s) for _ in range(scale.starts))
    with processes(store.url, store.server_s) as found:
        values["message", "ms"] = message_ms(found, conversations, scale.messages, scale.rounds)
        for name, path in request_paths(conversations).items():
            requests = scale.scans if name in SCANS else scale.requests
            values[name, "ms"] = request_ms(found, path, requests, scale.rounds)
        values["gateway", "mb"] = resident_mb(found.gateway.pid)
        values["worker", "mb"] = resident_mb(found.worker_pid)
    return values


def _measure(
    engine: str, figures: Figures, scale: GrowthScale, new_store: Callable[[], AbstractContextManager[Store]]
) -> None:
    growth = Growth(figures, engine)
    with new_store() as store:
        messages = run(measure_turns(growth, store, scale))
        measure_compaction(growth, store, messages)
    with new_store() as store:
        measure_log(growth, store, scale)


def measure_sqlite(figures: Figures, scale: GrowthScale) -> None:
    _measure("sqlite", figures, scale, sqlite_store)


def measure_redis(figures: Figures, scale: GrowthScale) -> None:
    _measure("redis", figures, scale, redis_store)


PARTS: dict[str, Callable[[Figures, GrowthScale], None]] = {"sqlite": measure_sqlite, "redis": measure_redis}


BENCHMARK = Benchmark("bench.growth", __doc__, GOALS, PARTS, FULL, QUICK)


if __name__ == "__main__":
    BENCHMARK.main()
