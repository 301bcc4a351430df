"""`?wait=N`: a write is acknowledged once N replicas have it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from magent2.bus.operations import Append, Read
from magent2.bus.records import AppendResult, NewRecord
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.redis_engine import replication
from magent2.bus.redis_engine.primary import REPLICAS_MAX
from magent2.cli.doctor import check_bus
from magent2.errors import BusUnavailable, NotReplicated, SettingsError
from magent2.settings import Settings
from tests.support.audit import assert_clean, sequence_findings, whole_log
from tests.support.proxy import LossyProxy
from tests.support.redis_server import RedisGroup, redis_url, skip_if_left_out

pytestmark = pytest.mark.redis

TOPIC = "stream:one"
WAIT_S = 0.2  # instead of WAIT_TIMEOUT_S, where the replicas are silent
TOGETHER = 200  # appends at a time
BATCHES_MAX = 20  # of them

Put = Callable[[RedisBus, Append], Awaitable[AppendResult]]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RedisGroup]:
    skip_if_left_out()
    group = RedisGroup(tmp_path, replicas=1, sentinels=0)
    try:
        group.start()
        yield group
    finally:
        group.stop()


@pytest.fixture(params=["sync", "async"])
def put(request: pytest.FixtureRequest) -> Put:
    """An append through either face."""

    async def put(bus: RedisBus, append: Append) -> AppendResult:
        if request.param == "async":
            return await bus.acall(append)
        return await asyncio.to_thread(bus.call, append)

    return put


@pytest.fixture
def shorten_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    def shorten() -> None:
        replication.wait_command.cache_clear()
        monkeypatch.setattr(replication, "WAIT_TIMEOUT_S", WAIT_S)

    yield shorten
    replication.wait_command.cache_clear()


def record(n: int) -> Append:
    return Append(records=(NewRecord(TOPIC, {"n": n}, f"id-{n}"),))


def waits(group: RedisGroup) -> int:
    """How often the primary was asked to wait."""
    stats: str = group.primary.ask("INFO", "commandstats")
    return int(stats.partition("cmdstat_wait:calls=")[2].partition(",")[0] or 0)


async def test_an_acknowledged_write_is_on_the_replica(group: RedisGroup, put: Put) -> None:
    bus = RedisBus(f"{group.primary.url}?wait=1")
    (replica,) = group.replicas

    for n in range(1, 21):
        assert (await put(bus, record(n))).seqs == (n,)
        assert replica.ask("XLEN", f"magent2:t:{TOPIC}") >= n
    await bus.aclose()


async def test_a_write_that_too_few_replicas_confirm_is_a_transient_error(
    group: RedisGroup, put: Put, shorten_waits: Callable[[], None]
) -> None:
    bus, other = (RedisBus(f"{group.primary.url}?wait=1") for _ in range(2))
    (replica,) = group.replicas
    await put(bus, record(1))
    await put(other, record(1))
    replica.suspend()
    shorten_waits()

    with pytest.raises(NotReplicated, match=r"0 of 1 replicas have confirmed it within 0\.2 s.*write it again"):
        await put(bus, record(2))
    with pytest.raises(BusUnavailable):  # a repeat is no proof, also not on a connection that has written nothing
        await put(other, record(2))
    assert [found.seq for found in (await bus.acall(Read(TOPIC, 0))).records] == [1, 2]
    replica.resume()
    group.await_replicas()

    repeated = await put(bus, record(2))
    assert (repeated.seqs, repeated.repeat) == ((2,), True)
    assert replica.ask("XLEN", f"magent2:t:{TOPIC}") == 2
    for each in (bus, other):
        await each.aclose()


async def test_writes_at_a_time_share_a_wait(group: RedisGroup) -> None:
    bus = RedisBus(f"{group.primary.url}?wait=1")
    await bus.acall(record(0))
    before = waits(group)

    await asyncio.gather(*(bus.acall(record(n)) for n in range(1, TOGETHER)))

    assert 1 <= waits(group) - before <= BATCHES_MAX
    before = waits(group)
    await asyncio.gather(*(bus.acall(Read(TOPIC, n)) for n in range(TOGETHER)))
    assert waits(group) == before
    await bus.aclose()


async def test_writes_and_reads_survive_lost_connections(group: RedisGroup, rng: random.Random) -> None:
    with LossyProxy(group.primary.port, rng, request_loss=0.05, reply_loss=0.05) as proxy:
        bus = RedisBus(f"{redis_url(proxy.port)}?wait=1", retry_for_s=60.0)

        async def write(writer: int) -> None:
            for n in range(20):
                await bus.acall(record(100 * writer + n))
                await bus.acall(Read(TOPIC, 0, 1))

        await asyncio.gather(*(write(writer) for writer in range(20)))
        proxy.behave()

        records = await asyncio.to_thread(whole_log, bus, TOPIC)
        assert_clean(sequence_findings(records))
        assert len(records) == 20 * 20
        assert proxy.losses.total > 0
        await bus.aclose()


@pytest.mark.parametrize("text", ["", "-1", "one", "1.5", str(REPLICAS_MAX + 1)])
def test_a_number_of_replicas_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match="not a number of replicas from 0 to 16"):
        RedisBus(f"redis://localhost/0?wait={text}")


def test_doctor_checks_how_many_replicas_a_write_needs(
    group: RedisGroup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGENT2_DATA_DIR", str(tmp_path / "data"))
    settings = Settings.read()
    before = list(check_bus(group.primary.url, settings))
    group.primary.ask("CONFIG", "SET", "min-replicas-to-write", 1)
    after = list(check_bus(group.primary.url, settings))

    assert [finding.status for finding in before] == ["ok", "warn"]
    assert "epoch 1, min-replicas-to-write 0" in before[0].text
    assert before[1].text.startswith("min-replicas-to-write is 0")
    assert [finding.status for finding in after] == ["ok"]
    assert "epoch 1, min-replicas-to-write 1" in after[0].text


def test_without_enough_replicas_the_log_can_be_read_and_not_written(group: RedisGroup) -> None:
    group.primary.ask("CONFIG", "SET", "min-replicas-to-write", 1)
    bus = RedisBus(group.primary.url, retry_for_s=WAIT_S)
    bus.call(record(1))
    group.primary.ask("CONFIG", "SET", "min-replicas-to-write", 2)
    other = RedisBus(group.primary.url, retry_for_s=WAIT_S)

    with pytest.raises(BusUnavailable, match="NOREPLICAS"):
        bus.call(record(2))
    with pytest.raises(BusUnavailable, match="NOREPLICAS"):
        other.call(record(2))
    assert len(bus.call(Read(TOPIC, 0)).records) == 1
    group.primary.ask("CONFIG", "SET", "min-replicas-to-write", 0)
    assert (bus.call(record(2)).seqs, other.call(record(2)).seqs) == ((2,), (2,))
    for each in (bus, other):
        each.close()
