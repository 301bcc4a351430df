"""Redis goes away and comes back, in the middle of everything."""

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
from tests.support.chaos import Shift
from tests.support.processes import Child, Crew
from tests.support.redis_server import RedisServer, skip_if_left_out

pytestmark = pytest.mark.redis

WRITER = "tests.integration.children.writer"
FOLLOWER = "tests.integration.children.follower"
TOPIC = "stream:one"
KEEP_ALL = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
RESTARTS = 2
BURST = 2000  # appends
APPENDS_BEFORE_RESTART = 30
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


def hear(child: Child, count: int) -> list[dict[str, Any]]:
    return [child.hear() for _ in range(count)]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_followers_writers_and_workers_go_on_after_a_restart(
    number: signal.Signals, server: RedisServer, engine: Engine, crew: Crew, dice: random.Random
) -> None:
    writer = crew.spawn(WRITER, url=server.url, name="w", topics=[TOPIC], burst=BURST, start=1, patient=True)
    follower = crew.spawn(FOLLOWER, url=server.url, topic=TOPIC)
    shift = Shift(server.url, engine, crew, dice)
    for _ in range(WORKERS):
        shift.hire()
    shift.await_ready()
    hear(writer, 1)
    hear(follower, 1)

    acknowledged = []
    for _ in range(RESTARTS):
        shift.post([f"lane-{lane}" for lane in range(LANES)])
        writer.tell("go")
        acknowledged += hear(writer, APPENDS_BEFORE_RESTART)
        restart(server, number)
        acknowledged += hear(writer, BURST - APPENDS_BEFORE_RESTART)
    shift.wait_for_the_rest()
    shift.go_home()

    records = whole_log(engine, TOPIC)
    assert_clean(sequence_findings(records) + series_findings(records) + shift.findings())
    assert [record.seq for record in records] == [answer["seq"] for answer in acknowledged]
    assert hear(follower, len(records)) == [{"seq": record.seq, "id": record.id} for record in records]
