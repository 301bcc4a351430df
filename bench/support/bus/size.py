"""The storage size of records, including their payload."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import resource
import subprocess
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import orjson

from bench.support.bus.lanes import converse
from bench.support.bus.publish import REDIS_CONCURRENCY, publish_s
from bench.support.postgres_server import log_bytes
from bench.support.redis_server import used_bytes
from bench.support.report import Connect, Scale, envelope, envelopes, run
from magent2.bus.base import EngineBase

CONVERSATION = "sized"
WARM_UP = 500  # records


def payload_bytes() -> int:
    return len(orjson.dumps(envelope(CONVERSATION)))


async def _publish_all(bus: EngineBase, count: int) -> None:
    await publish_s(bus, f"chat:{CONVERSATION}", envelopes(CONVERSATION, count), REDIS_CONCURRENCY)


def heap_bytes_per_record(connect: Connect, scale: Scale) -> float:
    """Memory growth of a new process, because freed memory of this one would hide the growth."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_growth, connect, scale.sized_records).result() / scale.sized_records


def _growth(connect: Connect, count: int) -> int:
    bus = connect()
    run(_publish_slowly(bus, WARM_UP))
    before = resident_bytes()
    run(_publish_slowly(bus, count))
    grown = resident_bytes() - before
    bus.close()
    return grown


async def _publish_slowly(bus: EngineBase, count: int) -> None:
    """Publish in batches, so that the input does not occupy memory beside the stored records."""
    for start in range(0, count, WARM_UP):
        await _publish_all(bus, min(WARM_UP, count - start))


def resident_bytes() -> int:
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # otherwise memory that was freed before hides the growth
    if trim is not None:
        trim(0)
    state = Path("/proc/self/statm")
    if state.exists():
        return int(state.read_text().split()[1]) * resource.getpagesize()
    asked = subprocess.run(["ps", "-o", "rss=", "-p", str(os.getpid())], capture_output=True, check=True)
    return int(asked.stdout) * 1024


def disk_bytes_per_record(path: Path, connect: Connect, scale: Scale) -> float:
    connect().close()
    empty, bus = _on_disk(path), connect()
    run(_publish_all(bus, scale.sized_records))
    bus.close()
    return (_on_disk(path) - empty) / scale.sized_records


def _on_disk(path: Path) -> int:
    return sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*"))


def redis_bytes_per_record(url: str, connect: Connect, scale: Scale) -> float:
    return run(_redis_growth(url, connect(), scale.sized_records, conversing=False))


def redis_bytes_per_conversation(url: str, connect: Connect, scale: Scale) -> float:
    return run(_redis_growth(url, connect(), scale.conversations, conversing=True))


async def _redis_growth(url: str, bus: EngineBase, count: int, *, conversing: bool) -> float:
    try:
        await _publish_all(bus, 1)
        before = used_bytes(url)
        await (converse(bus, "Sized", count) if conversing else _publish_all(bus, count))
        return (used_bytes(url) - before) / count
    finally:
        await bus.aclose()


def postgres_bytes_per_record(url: str, prefix: str, connect: Connect, scale: Scale) -> float:
    bus = connect()
    run(_publish_all(bus, WARM_UP))
    before = log_bytes(url, prefix)
    run(_publish_all(bus, scale.sized_records))
    grown = log_bytes(url, prefix) - before
    bus.close()
    return grown / scale.sized_records
