"""Sentinels promote a replica while followers, writers and workers are active."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Read
from magent2.bus.records import NewRecord
from magent2.errors import BusUnavailable, UnknownCursor
from magent2.models.address import EPOCH_TOPIC
from tests.support.audit import assert_clean, epoch_findings, series_findings, whole_log
from tests.support.numbered_appends import append_id, numbered_append
from tests.support.processes import Child, ProcessGroup
from tests.support.redis_server import PRIMARY_NAME, RedisGroup, skip_if_left_out
from tests.support.worker_pool import WorkerPool

pytestmark = pytest.mark.redis

WRITER = "tests.integration.children.writer"
FOLLOWER = "tests.integration.children.follower"
TOPIC = "stream:one"
BURST = 400  # appends
BEFORE_KILL_MAX = 100  # of them
LANES = 40
WORKERS = 2
FAILOVERS, FAILOVERS_SOAK = 1, 20
UNSEEN = 5  # appends that no replica gets


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RedisGroup]:
    skip_if_left_out()
    group = RedisGroup(tmp_path, replicas=1)
    try:
        group.start()
        yield group
    finally:
        group.stop()


def bases(engine: Engine) -> list[int]:
    return [record.payload["seqs_after"] for record in whole_log(engine, EPOCH_TOPIC)]


def take(child: Child, count: int) -> list[dict[str, Any]]:
    return [child.next_report() for _ in range(count)]


def fail_over(group: RedisGroup) -> None:
    """Kill the primary, wait for the next one, and start the killed server as its replica."""
    killed = group.primary
    killed.kill()
    group.await_promotion()
    group.start_replica(killed)
    group.await_all()


def check_failovers(failovers: int, group: RedisGroup, processes: ProcessGroup, rng: random.Random) -> None:
    """With `wait=1` and one replica no acknowledged append is lost, nothing is doubled, and everybody goes on."""
    url = f"{group.url}?wait=1"
    engine = connect(url)
    writer = processes.spawn(WRITER, url=url, name="w", topics=[TOPIC], burst=BURST, start=1, patient=True)
    follower = processes.spawn(FOLLOWER, url=url, topic=TOPIC)
    pool = WorkerPool(url, engine, processes, rng)
    for _ in range(WORKERS):
        pool.start_worker()
    pool.await_ready()
    take(writer, 1)
    take(follower, 1)

    acknowledged: list[dict[str, Any]] = []
    for _ in range(failovers):
        pool.post([f"lane-{lane}" for lane in range(LANES)])
        writer.write_line("go")
        before = rng.randint(1, BEFORE_KILL_MAX)
        acknowledged += take(writer, before)
        fail_over(group)
        acknowledged += take(writer, BURST - before)
    pool.wait_for_the_rest()
    pool.drain_all()

    records = whole_log(engine, TOPIC)
    assert_clean(epoch_findings(records, bases(engine)) + series_findings(records) + pool.findings())
    found = {record.id: record.seq for record in records}
    assert found == {append_id("w", answer["n"]): answer["seq"] for answer in acknowledged}
    assert len(bases(engine)) >= failovers
    check_followed(follower, [record.seq for record in records])
    engine.close()


def check_followed(follower: Child, seqs: list[int]) -> None:
    """After its last gap, the follower has seen the whole log in order.

    A gap is right also here: it may have seen records that were never acknowledged.
    """
    seen: list[int] = []
    while seen != seqs:
        report = follower.next_report()
        seen = [] if "gap" in report else [*seen, report["seq"]]
        assert len(seen) <= len(seqs), f"{seen} is not {seqs}"


def test_a_failover_loses_nothing_that_a_replica_has_confirmed(
    group: RedisGroup, process_group: ProcessGroup, rng: random.Random
) -> None:
    check_failovers(FAILOVERS, group, process_group, rng)


@pytest.mark.soak
def test_many_failovers_lose_nothing_that_a_replica_has_confirmed(
    group: RedisGroup, process_group: ProcessGroup, rng: random.Random
) -> None:
    check_failovers(FAILOVERS_SOAK, group, process_group, rng)


def test_what_no_replica_had_is_lost_and_everybody_is_told(
    group: RedisGroup, process_group: ProcessGroup, rng: random.Random
) -> None:
    engine = connect(group.url)
    pool = WorkerPool(group.url, engine, process_group, rng)
    for _ in range(WORKERS):
        pool.start_worker()
    pool.await_ready()
    follower = process_group.spawn(FOLLOWER, url=group.url, topic=TOPIC)
    take(follower, 1)
    kept = [engine.call(numbered_append([TOPIC], "w", n)).seqs[0] for n in range(1, 4)]
    group.await_replicas()
    for replica in group.replicas:
        group.cut_off(replica)
    lost = [engine.call(numbered_append([TOPIC], "w", n)).seqs[0] for n in range(4, 4 + UNSEEN)]
    assert [report["seq"] for report in take(follower, len(kept + lost))] == kept + lost
    group.primary.kill()
    for replica in group.replicas:
        replica.resume()
    group.await_promotion()

    new = [engine.call(numbered_append([TOPIC], "v", n)).seqs[0] for n in range(1, 2 * UNSEEN)]

    assert "gap" in follower.next_report()
    assert [report["seq"] for report in take(follower, len(kept + new))] == kept + new
    assert not set(new) & set(lost)
    for cursor in lost:
        with pytest.raises(UnknownCursor):
            engine.call(Read(TOPIC, cursor))
    pool.post([f"lane-{lane}" for lane in range(LANES)])
    pool.wait_for_the_rest()
    pool.drain_all()
    assert_clean(epoch_findings(whole_log(engine, TOPIC), bases(engine)) + pool.findings())
    engine.close()


async def test_a_failover_on_request_and_a_sentinel_that_is_down(group: RedisGroup) -> None:
    engine = connect(group.url)
    appends = [Append(records=(NewRecord(TOPIC, {"n": n}, f"id-{n}"),)) for n in range(30)]
    for append in appends[:10]:
        await engine.acall(append)
    group.sentinels[0].kill()
    asked = group.sentinels.pop()

    await asyncio.to_thread(asked.ask, "SENTINEL", "FAILOVER", PRIMARY_NAME)
    await asyncio.gather(*map(engine.acall, appends[10:20]))
    group.sentinels = [group.sentinels[1], asked]
    await asyncio.to_thread(group.await_promotion)
    await asyncio.gather(*map(engine.acall, appends))

    records = (await engine.acall(Read(TOPIC, 0))).records
    assert sorted(record.payload["n"] for record in records) == list(range(30))
    await engine.aclose()


def test_a_primary_that_no_sentinel_knows_is_reported(group: RedisGroup) -> None:
    engine = connect(group.url.replace(f"/{PRIMARY_NAME}/", "/other/"))

    with pytest.raises(BusUnavailable, match="knows no primary 'other'"):
        engine.call(Read(TOPIC, 0))
    engine.close()
