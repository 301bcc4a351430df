"""The stores whose growth is measured: where they are, what processor time they use, and how large they are."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import redis

from bench.support.postgres_server import log_bytes, postgres_server
from bench.support.postgres_server import server_cpu_s as postgres_cpu_s
from bench.support.redis_server import flush, redis_server, server_cpu_s, used_bytes
from bench.support.report import Connect
from magent2.bus.operations import Scrub
from magent2.bus.servers import DEFAULT_PREFIX

LOOK_AGAIN_S = 0.05


@dataclass(frozen=True, slots=True)
class Store:
    """An empty store. `sizes` are its bytes by place, while no process has it open."""

    url: str
    connect: Connect
    server_s: Callable[[], float]  # processor time of its own process, if it has one
    sizes: Callable[[], dict[str, float]]


@contextmanager
def sqlite_store() -> Iterator[Store]:
    from magent2.bus.sqlite import SqliteBus

    with tempfile.TemporaryDirectory(prefix="magent2-bench-") as folder:
        path = Path(folder, "growth.db")

        def sizes() -> dict[str, float]:
            return {"disk": sum(part.stat().st_size for part in path.parent.glob(f"{path.name}*"))}

        yield Store(f"sqlite:///{path}", partial(SqliteBus, path), lambda: 0.0, sizes)


@contextmanager
def redis_store() -> Iterator[Store]:
    """A server of its own for each store, because memory that was freed hides growth."""
    from magent2.bus.redis_adapter import RedisBus

    with redis_server() as url:
        flush(url)

        def sizes() -> dict[str, float]:
            return {"memory": used_bytes(url), "disk": _rewritten_bytes(url)}

        yield Store(url, partial(RedisBus, url), partial(server_cpu_s, url), sizes)


@contextmanager
def postgres_store() -> Iterator[Store]:
    from magent2.bus.postgres import PostgresBus

    with postgres_server() as server:
        url = server.url

        def sizes() -> dict[str, float]:
            with closing(PostgresBus(url)) as bus:  # the space of dead rows is used again, so it does not count
                bus.call(Scrub(any_size=True))
            return {"disk": log_bytes(url, DEFAULT_PREFIX)}

        yield Store(url, partial(PostgresBus, url), partial(postgres_cpu_s, server), sizes)


def _rewritten_bytes(url: str) -> int:
    """The size of the append-only file after a rewrite."""
    with redis.Redis.from_url(url) as client:
        client.bgrewriteaof()
        while True:
            state = client.info("persistence")
            if not state["aof_rewrite_in_progress"] and not state["aof_rewrite_scheduled"]:
                return int(state["aof_current_size"])
            time.sleep(LOOK_AGAIN_S)
