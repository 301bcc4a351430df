"""A Redis server for benchmarks, and hand-written code on it to compare with."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import orjson
import redis
import redis.asyncio

from bench.support.report import Envelope, Stopwatch

START_TIMEOUT_S = 10.0
STOP_TIMEOUT_S = 10.0
PIPELINE = 100  # commands per round trip, the usual advice

# Persistence as in compose.yaml. The file is never rewritten: a fork in the middle would hit one side only.
OPTIONS = (
    *("--bind", "127.0.0.1"),
    *("--appendonly", "yes"),
    *("--appendfsync", "everysec"),
    *("--auto-aof-rewrite-percentage", "0"),
    *("--save", ""),
    *("--maxmemory-policy", "noeviction"),
)


@contextmanager
def redis_server() -> Iterator[str]:
    """The URL of a server that lives as long as the `with`."""
    program = shutil.which("redis-server") or shutil.which("valkey-server")
    if program is None:
        raise SystemExit("bench: no redis-server on PATH; run scripts/ensure redis, or leave it out with SKIP=redis")
    with tempfile.TemporaryDirectory(prefix="magent2-bench-") as folder:
        port = free_port()
        command = (program, "--port", str(port), "--dir", folder, *OPTIONS)
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            url = f"redis://127.0.0.1:{port}/0"
            _wait_until_up(url, process)
            yield url
        finally:
            process.terminate()
            process.wait(STOP_TIMEOUT_S)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_until_up(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    with redis.Redis.from_url(url) as client:
        while process.poll() is None and time.monotonic() < deadline:
            try:
                client.ping()
                return
            except redis.ConnectionError:
                time.sleep(0.02)
    raise SystemExit("bench: the Redis server did not start; try `redis-server --port 0` to see why")


def flush(url: str) -> None:
    with redis.Redis.from_url(url) as client:
        client.flushall()


def used_bytes(url: str) -> int:
    """Memory that the data takes, without what connections and the append-only file buffer."""
    with redis.Redis.from_url(url) as client:
        memory = client.info("memory")
    buffers = ("mem_aof_buffer", "mem_clients_normal", "mem_clients_slaves")
    return int(memory["used_memory"]) - sum(int(memory[name]) for name in buffers)


def server_cpu_s(url: str) -> float:
    """User and system CPU time of the server so far."""
    with redis.Redis.from_url(url) as client:
        used = client.info("cpu")
    return float(used["used_cpu_user"]) + float(used["used_cpu_sys"])


# --- hand-written code -------------------------------------------------------------------------------------------


async def raw_publish_s(client: redis.asyncio.Redis, topic: str, batch: list[Envelope]) -> float:
    """Seconds to append all with redis-py's own pipeline."""
    with Stopwatch() as watch:
        for start in range(0, len(batch), PIPELINE):
            pipeline = client.pipeline(transaction=False)
            for item in batch[start : start + PIPELINE]:
                pipeline.xadd(topic, {"payload": orjson.dumps(item)})
            await pipeline.execute()
    return watch.seconds


def raw_sync_publish_s(client: redis.Redis, topic: str, batch: list[Envelope]) -> float:
    with Stopwatch() as watch:
        for item in batch:
            client.xadd(topic, {"payload": orjson.dumps(item)})
    return watch.seconds


async def raw_follow(client: redis.asyncio.Redis, topics: Iterable[str], arrived: Callable[[], None]) -> None:
    """One blocking XREAD over all topics, for ever; each record is decoded, as a reader would."""
    cursors: dict[Any, Any] = {topic.encode(): b"0" for topic in topics}
    while True:
        news: Any = await client.xread(cursors, block=0)
        for topic, entries in news:
            cursors[topic] = entries[-1][0]
            for _, fields in entries:
                orjson.loads(fields[b"payload"])
                arrived()


async def cancelled(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel endless tasks, and raise the error of a task that has failed."""
    waiting = list(tasks)
    for task in waiting:
        task.cancel()
    for result in await asyncio.gather(*waiting, return_exceptions=True):
        if isinstance(result, Exception):
            raise result
