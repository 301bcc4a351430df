"""The time to resume reading near the end of a short topic and of a very long one."""

from __future__ import annotations

import asyncio
import random
import time
from statistics import median

from bench.support.report import Pair, Scale, paired, run
from magent2.bus.base import EngineBase
from magent2.bus.operations import RECORDS_PER_APPEND_MAX, Append
from magent2.bus.records import NewRecord, assigned_seq

FILLERS = 4  # appends under way at a time
NEAR_THE_END = 500  # records; the cursors are ids of these
NAMED_EVERY = 20  # records
LIMIT = 10  # records read after the cursor


def seek(bus: EngineBase, scale: Scale) -> Pair:
    """Milliseconds per read: `ours` in the long topic, `raw` in the short one."""
    run(fill(bus, "stream:short", scale.seek_small))
    run(fill(bus, "stream:long", scale.seek_large))
    cursors = {topic: _cursors(bus, topic) for topic in ("stream:short", "stream:long")}
    turns = []
    for _ in range(scale.rounds + 1):  # the first warms up
        samples = [
            (_read_ms(bus, "stream:short", cursors), _read_ms(bus, "stream:long", cursors)) for _ in range(scale.seeks)
        ]
        turns.append((median(long for _, long in samples), median(short for short, _ in samples)))
    return paired(turns[1:])


async def fill(bus: EngineBase, topic: str, count: int) -> None:
    starts = iter(range(0, count, RECORDS_PER_APPEND_MAX))

    async def filler() -> None:
        for start in starts:
            numbers = range(start, min(start + RECORDS_PER_APPEND_MAX, count))
            await bus.acall(Append(records=tuple(_token(topic, number) for number in numbers)))

    await asyncio.gather(*(filler() for _ in range(FILLERS)))


def _token(topic: str, number: int) -> NewRecord:
    """A token record. Few records have an id from their sender; the log assigns the other ids."""
    record_id = None if number % NAMED_EVERY else f"token-{number}"
    return NewRecord(topic, {"event": "token", "text": " word", "index": number}, record_id)


def _cursors(bus: EngineBase, topic: str) -> list[str]:
    """Cursors of both kinds in equal numbers, each with enough records after it."""
    ids = [record.id for record in bus.read(topic, limit=NEAR_THE_END)][:-LIMIT]
    named = [record_id for record_id in ids if assigned_seq(record_id) is None]
    return named + [record_id for record_id in ids if assigned_seq(record_id) is not None][: len(named)]


def _read_ms(bus: EngineBase, topic: str, cursors: dict[str, list[str]]) -> float:
    cursor = random.choice(cursors[topic])
    begun = time.perf_counter()
    records = bus.read(topic, cursor, LIMIT)
    taken = time.perf_counter() - begun
    if len(records) != LIMIT:
        raise RuntimeError(f"read {len(records)} records after {cursor!r} of {topic!r}, not {LIMIT}")
    return taken * 1e3
