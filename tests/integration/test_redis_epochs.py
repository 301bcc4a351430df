"""A Redis server that may have lost records: the log gets a new epoch, and no number is used again in silence."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from magent2.bus import base
from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.operations import OLDEST, Append, Claim, Describe, Info, OwnedAppend, Read, Settle
from magent2.bus.records import ClaimedLane, NewRecord
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.redis_engine import pipeline, watch
from magent2.bus.redis_engine.functions import SCHEMA_WITH_EPOCHS, current_library
from magent2.bus.redis_engine.primary import LogServer
from magent2.errors import BusUnavailable, Fenced, UnknownCursor
from magent2.models.address import EPOCH_TOPIC
from magent2.sessions.message_outcome import MessageOutcome
from magent2.tools.wait_for_answer import AgentLane, _until_ended
from tests.support.audit import assert_clean, epoch_findings, whole_log
from tests.support.audited_lane import mail_to
from tests.support.numbered_appends import numbered_append
from tests.support.proxy import LossyProxy
from tests.support.redis_server import KEEP_ALL, RedisGroup, RedisServer, redis_url, skip_if_left_out
from tests.support.waiting import until

pytestmark = pytest.mark.redis

AGENT = "Ada"
TOPIC = "stream:one"
KEPT, LOST = 10, 5  # records that the replica has, and that only the first primary has
RETRY_S = 5.0
NEVER_S = 3600.0
SILENCE_S = 0.3  # instead of REPLY_TIMEOUT_S


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RedisGroup]:
    """A primary and a replica. The tests promote it themselves."""
    skip_if_left_out()
    group = RedisGroup(tmp_path, replicas=1, sentinels=0)
    try:
        group.start()
        yield group
    finally:
        group.stop()


@pytest.fixture
def proxy(group: RedisGroup, rng: random.Random) -> Iterator[LossyProxy]:
    """The address of whatever server is the primary."""
    with LossyProxy(group.primary.port, rng) as proxy:
        yield proxy


def epochs(bus: Engine) -> list[dict[str, Any]]:
    return [record.payload for record in whole_log(bus, EPOCH_TOPIC)]


def bases(bus: Engine) -> list[int]:
    return [epoch["seqs_after"] for epoch in epochs(bus)]


def write(bus: Engine, first: int, count: int) -> list[int]:
    return [bus.call(numbered_append([TOPIC], "w", n)).seqs[0] for n in range(first, first + count)]


def claim(bus: Engine, worker: str) -> tuple[ClaimedLane, ...]:
    return bus.call(Claim(worker=worker, agents=(AGENT,), limit=10, lease_s=3600.0)).lanes


def write_ahead_of_the_replica(group: RedisGroup, bus: Engine) -> None:
    """Append `KEPT` records that both servers have and `LOST` that only the primary has."""
    write(bus, 1, KEPT)
    group.await_replicas()
    group.cut_off(group.replicas[0])
    assert write(bus, KEPT + 1, LOST)[-1] == KEPT + LOST


def fail_over(group: RedisGroup, proxy: LossyProxy) -> None:
    (replica,) = group.replicas
    group.primary.kill()
    replica.resume()
    group.promote(replica)
    proxy.move(replica.port)


def lose_records(group: RedisGroup, proxy: LossyProxy, bus: Engine) -> None:
    write_ahead_of_the_replica(group, bus)
    fail_over(group, proxy)


def check_that_the_loss_is_noticed(group: RedisGroup, proxy: LossyProxy) -> None:
    """Whoever has seen a lost record must not read on as if others had its number."""
    bus = connect(redis_url(proxy.port))
    try:
        lose_records(group, proxy, bus)

        seqs = write(bus, 100, 2 * LOST)

        assert not set(seqs) & set(range(1, KEPT + LOST + 1)), "numbers of lost records were used again"
        for cursor in range(KEPT + 1, KEPT + LOST + 1):
            with pytest.raises(UnknownCursor):
                bus.call(Read(TOPIC, cursor))
        assert [record.seq for record in bus.call(Read(TOPIC, KEPT)).records] == seqs
    finally:
        bus.close()


def test_the_numbers_of_lost_records_are_not_used_again(group: RedisGroup, proxy: LossyProxy) -> None:
    check_that_the_loss_is_noticed(group, proxy)


def test_without_the_check_of_the_epoch_a_loss_is_not_noticed(
    group: RedisGroup, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked = LogServer._check

    def check_once(server: LogServer, connection: Any) -> None:
        if not server.keyspace.epoch.known:
            checked(server, connection)

    monkeypatch.setattr(LogServer, "_check", check_once)

    with pytest.raises(AssertionError, match="numbers of lost records were used again"):
        check_that_the_loss_is_noticed(group, proxy)


def test_a_promotion_is_a_new_epoch_that_an_operator_can_see(group: RedisGroup, proxy: LossyProxy) -> None:
    bus = connect(redis_url(proxy.port))
    replid = group.primary.ask("INFO", "replication").partition("master_replid:")[2][:40]
    lose_records(group, proxy, bus)
    (seq,) = write(bus, 100, 1)

    (epoch,) = epochs(bus)

    assert (epoch["epoch"], epoch["reason"]) == (2, "promoted")
    assert epoch["previous_replication_id"] == replid != epoch["replication_id"]
    assert epoch["seqs_after"] == seq - 1
    assert bus.call(Info()).schema == SCHEMA_WITH_EPOCHS
    assert_clean(epoch_findings(whole_log(bus, TOPIC), bases(bus)))
    bus.close()


async def test_a_follower_that_has_seen_lost_records_is_told(group: RedisGroup, proxy: LossyProxy) -> None:
    bus, writer = connect(redis_url(proxy.port)), connect(redis_url(proxy.port))
    seen: list[int] = []

    async def follow(after: int) -> None:
        async for record in bus.follow(TOPIC, after):
            seen.append(record.seq)  # noqa: PERF401  others look at it meanwhile

    following = asyncio.create_task(follow(OLDEST))
    await asyncio.to_thread(write_ahead_of_the_replica, group, writer)
    await until(lambda: seen == list(range(1, KEPT + LOST + 1)))

    await asyncio.to_thread(fail_over, group, proxy)

    with pytest.raises(UnknownCursor, match="start again from the floor"):
        await following
    seen.clear()
    following = asyncio.create_task(follow(KEPT))  # of a reader that was not so far
    new = await asyncio.to_thread(write, writer, 100, LOST)
    await until(lambda: seen == new)
    following.cancel()
    await bus.aclose()
    writer.close()


def test_owners_of_an_earlier_epoch_are_fenced_and_their_lanes_are_taken_over(
    group: RedisGroup, proxy: LossyProxy
) -> None:
    bus = connect(redis_url(proxy.port))
    bus.call(mail_to(AGENT, ["c1", "c2"]))
    before = claim(bus, "w1")
    assert len(before) == 2

    lose_records(group, proxy, bus)

    for lane in before:
        records = (NewRecord(TOPIC, {"late": True}),)
        with pytest.raises(Fenced):
            bus.call(OwnedAppend(owner=lane.owner, n=1, records=records))
        with pytest.raises(Fenced):
            bus.call(Settle(owner=lane.owner, mail=(lane.mail[0].ref,), records=records))
    after = claim(bus, "w2")
    assert sorted(lane.owner.conversation for lane in after) == ["c1", "c2"]
    assert {lane.attempt for lane in after} == {2}
    for lane in after:
        bus.call(Settle(owner=lane.owner, mail=(lane.mail[0].ref,), records=(NewRecord(TOPIC, {}),)))
    bus.close()


def test_topics_and_mail_of_a_new_epoch_work_as_before(group: RedisGroup, proxy: LossyProxy) -> None:
    bus = connect(redis_url(proxy.port))
    lose_records(group, proxy, bus)

    bus.call(mail_to(AGENT, ["c1", "c2", "c1"]))
    bus.call(mail_to(AGENT, ["c1"], control=True))
    (state,) = bus.call(Describe((f"chat:{AGENT}",)))
    first, second = claim(bus, "w1")

    assert (state.floor, state.last) == (0, bases(bus)[0] + 3)
    assert [record.topic for record in first.mail] == [f"control:{AGENT}", f"chat:{AGENT}", f"chat:{AGENT}"]
    assert second.owner.conversation == "c2"
    assert [record.seq for record in bus.call(Read(f"chat:{AGENT}", None)).records] == [
        state.last - 2 + n for n in range(3)
    ]
    assert bus.call(Read(f"chat:{AGENT}", state.last - 3)).last == state.last
    bus.close()


# --- restarts of one server


@pytest.mark.parametrize(
    ("options", "reasons"),
    [
        (KEEP_ALL, []),
        (("--appendonly", "yes", "--appendfsync", "everysec", "--save", ""), ["restarted"]),
        (("--appendonly", "no", "--save", ""), ["lost"]),
    ],
    ids=["synced", "every second", "nothing kept"],
)
def test_a_restart_is_a_new_epoch_unless_every_write_was_synced(
    options: tuple[str, ...], reasons: list[str], tmp_path: Path
) -> None:
    skip_if_left_out()
    server = RedisServer(tmp_path, *options)
    server.start()
    bus = connect(server.url)
    try:
        write(bus, 1, 3)
        server.kill()
        server.start()

        (seq,) = write(bus, 4, 1)

        assert [epoch["reason"] for epoch in epochs(bus)] == reasons
        assert (seq == 4) == (not reasons)
    finally:
        bus.close()
        server.stop()


def test_a_synced_server_whose_replicas_may_have_taken_its_place_gets_a_new_epoch(
    group: RedisGroup, proxy: LossyProxy
) -> None:
    bus = connect(redis_url(proxy.port))
    write(bus, 1, 1)
    bus.close()
    group.primary.kill()
    group.primary.start()
    bus = connect(redis_url(proxy.port))

    write(bus, 2, 1)

    assert [epoch["reason"] for epoch in epochs(bus)] == ["replaced"]
    bus.close()


def test_a_backup_that_is_restored_under_a_running_process_is_a_new_epoch(tmp_path: Path) -> None:
    skip_if_left_out()
    (tmp_path / "server").mkdir()
    server = RedisServer(tmp_path / "server", *KEEP_ALL)
    server.start()
    bus = connect(server.url)
    try:
        write(bus, 1, 3)
        shutil.copytree(server.folder, tmp_path / "backup")
        write(bus, 4, 3)
        server.kill()
        shutil.rmtree(server.folder)
        shutil.copytree(tmp_path / "backup", server.folder)
        server.start()

        (seq,) = write(bus, 7, 1)

        assert [epoch["reason"] for epoch in epochs(bus)] == ["lost"]
        assert seq > 6
        with pytest.raises(UnknownCursor):
            bus.call(Read(TOPIC, 6))
    finally:
        bus.close()
        server.stop()


# --- epochs of other processes


def test_a_stale_epoch_is_refused_by_name_and_the_engine_looks_again(redis_server: RedisServer, tmp_path: Path) -> None:
    prefix = tmp_path.name
    bus, other = (RedisBus(redis_server.url, prefix=prefix) for _ in range(2))
    write(bus, 1, 3)
    before = bus._keyspace.epoch.text
    other._keyspace.epoch.note("7:1:gone")  # an epoch that the server has lost

    write(other, 4, 1)

    with redis.Redis(port=redis_server.port) as client, pytest.raises(redis.ResponseError, match=r"^STALEEPOCH"):
        client.fcall(f"{current_library().name}_publish", 0, prefix, before, TOPIC, "id", "digest", "", "{}")
    write(bus, 5, 1)
    assert bus._keyspace.epoch.text == other._keyspace.epoch.text != before
    assert [epoch["reason"] for epoch in epochs(bus)] == ["lost"]
    assert [record.payload["n"] for record in whole_log(bus, TOPIC)] == [1, 2, 3, 4, 5]
    for each in (bus, other):
        each.close()


def test_processes_that_know_the_same_lost_epoch_begin_one_new_epoch(redis_server: RedisServer, tmp_path: Path) -> None:
    buses = [RedisBus(redis_server.url, prefix=tmp_path.name) for _ in range(3)]
    for bus in buses:
        bus._keyspace.epoch.note("4:1:gone")

    for n, bus in enumerate(buses):
        write(bus, n, 1)

    assert [epoch["epoch"] for epoch in epochs(buses[0])] == [5]
    for bus in buses:
        bus.close()


async def test_many_appends_at_once_find_the_new_epoch(group: RedisGroup, proxy: LossyProxy) -> None:
    bus = connect(redis_url(proxy.port))
    await bus.acall(Append(records=(NewRecord(TOPIC, {}, "first"),)))
    appends = [numbered_append([TOPIC], f"w{n}", 1) for n in range(200)]
    running = asyncio.gather(*map(bus.acall, appends[:100]))
    await asyncio.to_thread(fail_over, group, proxy)

    await running
    await asyncio.gather(*map(bus.acall, appends[100:]))

    records = await asyncio.to_thread(whole_log, bus, TOPIC)
    assert_clean(epoch_findings(records, await asyncio.to_thread(bases, bus)))
    assert {record.id for record in records} >= {append.records[0].id for append in appends[100:]}
    await bus.aclose()


async def test_a_wait_for_an_answer_looks_back_over_the_jump(redis_server: RedisServer, tmp_path: Path) -> None:
    bus = RedisBus(redis_server.url, prefix=tmp_path.name)
    await bus.acall(Append(records=(NewRecord("stream:c1", {"event": "run", "status": "started"}),)))
    bus._keyspace.epoch.note("7:1:gone")
    bus._keyspace.epoch.forget()
    ended = {"event": "run", "envelope_id": "m1", "run_id": "r1", "status": "finished"}
    await bus.acall(Append(records=(NewRecord("stream:c1", ended),)))
    outcome = MessageOutcome("m1")

    await _until_ended(bus, AgentLane(AGENT, "c1"), outcome)

    assert outcome.status == "finished"
    await bus.aclose()


# --- servers that become replicas


@pytest.mark.parametrize("face", ["sync", "async"])
async def test_a_server_that_became_a_replica_is_left_for_the_primary(
    face: str, group: RedisGroup, proxy: LossyProxy
) -> None:
    bus = RedisBus(redis_url(proxy.port), retry_for_s=RETRY_S)
    first, (second,) = group.primary, group.replicas

    async def put(n: int) -> int:
        append = numbered_append([TOPIC], "w", n)
        result = await bus.acall(append) if face == "async" else await asyncio.to_thread(bus.call, append)
        return result.seqs[0]

    assert await put(1) == 1
    group.promote(second)
    first.ask("REPLICAOF", "127.0.0.1", second.port)
    proxy._upstream_port = second.port  # connections to the first server stay open

    assert await put(2) > 2
    await bus.aclose()


def test_a_replica_alone_is_reported(group: RedisGroup) -> None:
    (replica,) = group.replicas
    bus = RedisBus(replica.url, retry_for_s=0.2)

    with pytest.raises(BusUnavailable, match="is a read-only replica; connect to the primary"):
        write(bus, 1, 1)
    bus.close()


async def test_a_follower_leaves_a_server_that_is_silent(
    group: RedisGroup, proxy: LossyProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pipeline, watch):
        monkeypatch.setattr(module, "REPLY_TIMEOUT_S", SILENCE_S)
    monkeypatch.setattr(base, "FOLLOW_SWEEP_S", NEVER_S)
    bus, seen = connect(redis_url(proxy.port)), list[int]()

    async def follow() -> None:
        async for record in bus.follow(TOPIC, after=OLDEST):
            seen.append(record.payload["n"])

    following = asyncio.create_task(follow())
    await bus.acall(numbered_append([TOPIC], "w", 1))
    await until(lambda: seen == [1])
    first, (second,) = group.primary, group.replicas
    group.await_replicas()
    first.suspend()
    group.promote(second)
    proxy._upstream_port = second.port  # connections to the first server stay open

    await bus.acall(numbered_append([TOPIC], "w", 2))
    await until(lambda: seen == [1, 2])
    following.cancel()
    await bus.aclose()
