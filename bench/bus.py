"""Measure the log, compared with hand-written code on the same store: `make bench-bus`.

Prints a table and, as its last line, one JSON object. `--quick` measures everything once with small counts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from bench.support.bus.lanes import lanes_per_s
from bench.support.bus.postgres import postgres_publish, postgres_publish_of_processes, postgres_wake
from bench.support.bus.publish import redis_publish, redis_sync_publish, sqlite_publish, sync_publish
from bench.support.bus.seek import seek
from bench.support.bus.size import (
    disk_bytes_per_record,
    heap_bytes_per_record,
    payload_bytes,
    postgres_bytes_per_record,
    redis_bytes_per_conversation,
    redis_bytes_per_record,
)
from bench.support.bus.wake import redis_wake
from bench.support.postgres_server import drop_log, postgres_pair, postgres_server
from bench.support.redis_server import flush, redis_server
from bench.support.report import FULL, QUICK, Benchmark, Connect, Figures, Goal, Scale, run
from magent2.bus.base import EngineBase
from magent2.bus.interface import BusMessage
from magent2.bus.postgres import PostgresBus

GOALS = {
    "redis_publish_ratio": Goal(0.9),
    "redis_sync_publish_ratio": Goal(0.75),
    "redis_wake_ratio": Goal(2.0, at_most=True),
    "redis_wake_2000_ratio": Goal(2.0, at_most=True),
    "sqlite_publish_ratio_64": Goal(0.4),
    "sqlite_publish_ratio_512": Goal(0.5),
    "seek_ratio_sqlite": Goal(1.5, at_most=True),
    "seek_ratio_redis": Goal(1.5, at_most=True),
    "lanes_per_s_redis": Goal(8_000),
    "lanes_per_s_sqlite": Goal(6_000),
    "postgres_publish_ratio_64": Goal(0.5),
    "postgres_publish_ratio_512": Goal(0.5),
    "postgres_publish_ratio_4proc": Goal(0.5),
    "postgres_publish_ratio_4proc_standby": Goal(0.5),
    "postgres_wake_ratio": Goal(3.0, at_most=True),
    "lanes_per_s_postgres": Goal(2_000),
    "seek_ratio_postgres": Goal(1.5, at_most=True),
}
FOLLOWED = "redis_wake_2000_ratio"


def measure_memory(figures: Figures, scale: Scale) -> None:
    from magent2.bus.memory import MemoryBus

    figures.add("memory_publish_per_s", sync_publish(MemoryBus, scale))
    figures.add("bytes_per_record_memory", heap_bytes_per_record(MemoryBus, scale), payload_note())


def measure_sqlite(figures: Figures, scale: Scale) -> None:
    from magent2.bus.sqlite import SqliteBus

    with tempfile.TemporaryDirectory(prefix="magent2-bench-") as name:

        def file(stem: str) -> Connect:
            return lambda: SqliteBus(Path(name, f"{stem}.db"))

        for concurrency in (64, 512):
            raw = Path(name, f"raw-{concurrency}.db")
            pair = sqlite_publish(raw, file(f"ours-{concurrency}"), scale, concurrency)
            figures.add_pair(f"sqlite_publish_ratio_{concurrency}", pair, "/s")
        figures.add("lanes_per_s_sqlite", run(_lanes(file("lanes"), scale)))
        _seek(figures, "sqlite", file("seek"), scale)
        size = disk_bytes_per_record(Path(name, "sized.db"), file("sized"), scale)
        figures.add("bytes_per_record_sqlite", size, payload_note())


def measure_redis(figures: Figures, scale: Scale) -> None:
    from magent2.bus.redis_adapter import RedisBus

    with redis_server() as url:

        def empty() -> EngineBase:
            flush(url)
            return RedisBus(url, prefix="bench")

        figures.add_pair("redis_publish_ratio", redis_publish(url, empty, scale), "/s")
        figures.add_pair("redis_sync_publish_ratio", redis_sync_publish(url, empty, scale), "/s")
        _wake(figures, url, empty, scale)
        figures.add("lanes_per_s_redis", run(_lanes(empty, scale)))
        figures.add("bytes_per_record_redis", redis_bytes_per_record(url, empty, scale), payload_note())
        size = redis_bytes_per_conversation(url, empty, scale)
        figures.add("bytes_per_conversation_redis", size, "7 records in 4 topics, a head, an empty lane")
        _seek(figures, "redis", empty, scale)


def measure_postgres(figures: Figures, scale: Scale) -> None:
    prefix = "bench"
    with postgres_server() as server:
        url = server.url

        def empty() -> EngineBase:
            drop_log(url, prefix)
            return PostgresBus(url, prefix=prefix)

        for concurrency in (64, 512):
            pair = postgres_publish(url, empty, scale, concurrency)
            figures.add_pair(f"postgres_publish_ratio_{concurrency}", pair, "/s")
        _publish_of_processes(figures, "postgres_publish_ratio_4proc", url, prefix, scale)
        drop_log(url, prefix)
        figures.add_pair(
            "postgres_wake_ratio", postgres_wake(url, partial(PostgresBus, url, prefix=prefix), scale), "ms"
        )
        figures.add("lanes_per_s_postgres", run(_lanes(empty, scale)))
        size = postgres_bytes_per_record(url, prefix, empty, scale)
        figures.add("bytes_per_record_postgres", size, payload_note())
        _seek(figures, "postgres", empty, scale)
    with postgres_pair() as url:
        _publish_of_processes(figures, "postgres_publish_ratio_4proc_standby", url, prefix, scale)


def _publish_of_processes(figures: Figures, name: str, url: str, prefix: str, scale: Scale) -> None:
    drop_log(url, prefix)
    with closing(PostgresBus(url, prefix=prefix)) as bus:  # the processes need not create the tables
        bus.publish("note:first", BusMessage("note:first", {}))
    figures.add_pair(name, postgres_publish_of_processes(url, prefix, scale), "/s")


def payload_note() -> str:
    return f"payload {payload_bytes()} bytes"


def _wake(figures: Figures, url: str, connect: Connect, scale: Scale) -> None:
    pair, _ = redis_wake(url, connect, scale, 1)
    figures.add_pair("redis_wake_ratio", pair, "ms")
    pair, raw_many = redis_wake(url, connect, scale, scale.followed)
    figures.add_pair(FOLLOWED, pair, "ms")
    figures.notes[FOLLOWED] += f" with one topic, {raw_many:.3g} with {scale.followed:,}"
    figures.values["redis_wake_2000_raw_2000_ms"] = raw_many


async def _lanes(connect: Connect, scale: Scale) -> float:
    bus = connect()
    try:
        return await lanes_per_s(bus, scale)
    finally:
        await bus.aclose()


def _seek(figures: Figures, engine: str, connect: Connect, scale: Scale) -> None:
    begun, bus = time.monotonic(), connect()
    pair = seek(bus, scale)
    bus.close()
    name = f"seek_ratio_{engine}"
    note = f"{pair.ours:.3g} ms at {scale.seek_large:,} records, {pair.raw:.3g} ms at {scale.seek_small:,}"
    figures.add(name, pair.ratio, note)
    figures.values |= {f"seek_large_{engine}_ms": pair.ours, f"seek_small_{engine}_ms": pair.raw}
    print(f"bench: seek on {engine} took {time.monotonic() - begun:.0f} s", file=sys.stderr)


PARTS: dict[str, Callable[[Figures, Scale], None]] = {
    "memory": measure_memory,
    "sqlite": measure_sqlite,
    "redis": measure_redis,
    "postgres": measure_postgres,
}


BENCHMARK = Benchmark("bench.bus", __doc__, GOALS, PARTS, FULL, QUICK)


if __name__ == "__main__":
    BENCHMARK.main()
