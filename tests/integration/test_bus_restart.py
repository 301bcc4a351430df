"""Redis restarts while followers, writers and workers are active."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from tests.support.audit import assert_clean, sequence_findings, series_findings, whole_log
from tests.support.processes import Child, ProcessGroup
from tests.support.redis_server import KEEP_ALL, RedisServer, skip_if_left_out
from tests.support.worker_pool import WorkerPool

pytestmark = pytest.mark.redis

WRITER = "tests.integration.children.writer"
FOLLOWER = "tests.integration.children.follower"
TOPIC = "stream:one"
RESTARTS, RESTARTS_SOAK = 2, 20
BURST = 2000  # appends
BEFORE_RESTART_MAX = 200  # of them
LANES = 40
WORKERS = 2


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that keeps what it acknowledged."""
    skip_if_left_out()
    server = RedisServer(tmp_path, *KEEP_ALL)
    server.start()
    yield server
    server.stop()


@pytest.fixture
def engine(server: RedisServer) -> Iterator[Engine]:
    engine = connect(server.url)
    yield engine
    engine.close()


def restart(server: RedisServer, number: signal.Signals) -> None:
    """SIGTERM is an orderly SHUTDOWN, SIGKILL a crash."""
    os.kill(server.pid, number)
    server.stop()
    server.start()


def next_report(child: Child, count: int) -> list[dict[str, Any]]:
    return [child.next_report() for _ in range(count)]


def check_restarts(
    restarts: int,
    number: signal.Signals,
    server: RedisServer,
    engine: Engine,
    process_group: ProcessGroup,
    rng: random.Random,
) -> None:
    """Nothing acknowledged is lost and nothing doubled, numbers are dense, and everybody goes on."""
    writer = process_group.spawn(WRITER, url=server.url, name="w", topics=[TOPIC], burst=BURST, start=1, patient=True)
    follower = process_group.spawn(FOLLOWER, url=server.url, topic=TOPIC)
    shift = WorkerPool(server.url, engine, process_group, rng)
    for _ in range(WORKERS):
        shift.start_worker()
    shift.await_ready()
    next_report(writer, 1)
    next_report(follower, 1)

    acknowledged = []
    for _ in range(restarts):
        shift.post([f"lane-{lane}" for lane in range(LANES)])
        writer.write_line("go")
        before = rng.randint(1, BEFORE_RESTART_MAX)
        acknowledged += next_report(writer, before)
        restart(server, number)
        acknowledged += next_report(writer, BURST - before)
    shift.wait_for_the_rest()
    shift.drain_all()

    records = whole_log(engine, TOPIC)
    assert_clean(sequence_findings(records) + series_findings(records) + shift.findings())
    assert [record.seq for record in records] == [answer["seq"] for answer in acknowledged]
    assert next_report(follower, len(records)) == [{"seq": record.seq, "id": record.id} for record in records]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_followers_writers_and_workers_go_on_after_a_restart(
    number: signal.Signals, server: RedisServer, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    check_restarts(RESTARTS, number, server, engine, process_group, rng)


@pytest.mark.soak
def test_a_server_that_is_killed_many_times_loses_nothing(
    server: RedisServer, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    check_restarts(RESTARTS_SOAK, signal.SIGKILL, server, engine, process_group, rng)
