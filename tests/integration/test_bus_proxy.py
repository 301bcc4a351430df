"""A network that loses connections: replies of commands that ran, and commands that never arrived."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

import pytest

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Claim
from magent2.bus.records import ClaimedLane, MailRef, NewRecord
from tests.support.audit import assert_clean, lane_findings, sequence_findings, whole_log
from tests.support.audited_lane import acall_with_retry, call_with_retry, mail_to, settle_append, start_append
from tests.support.postgres_server import PostgresServer, Schemas
from tests.support.proxy import LossyProxy
from tests.support.redis_server import RedisServer

AGENT, TRAIL, TOPIC = "Ada", "audit:lanes", "stream:one"
# Chances per piece of traffic that a request and a reply are lost. Connecting to PostgreSQL takes more pieces.
LOSSES = {"redis": (0.1, 0.25), "postgres": (0.025, 0.06)}
LOSSES_SYNC = {"redis": (0.03, 0.1), "postgres": (0.01, 0.03)}  # one call at a time: each loss is waited for
APPENDS, SETTLES = 1000, 300  # each settle waits for several replies in turn
APPENDS_SYNC, SETTLES_SYNC = 200, 100
LANES = 100
AT_A_TIME = 8
LOSSES_MIN = 10
LOSSES_SYNC_MIN = 10
LEASE_S = 600.0


@dataclass(frozen=True, slots=True)
class Server:
    """A server with an empty log."""

    kind: str
    port: int
    url: str


@pytest.fixture(
    params=[pytest.param("redis", marks=pytest.mark.redis), pytest.param("postgres", marks=pytest.mark.postgres)]
)
def server(request: pytest.FixtureRequest) -> Server:
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis_server")
        return Server("redis", redis.port, f"{redis.url}?prefix={uuid.uuid4().hex[:12]}")
    postgres: PostgresServer = request.getfixturevalue("postgres_server")
    schemas: Schemas = request.getfixturevalue("postgres_schemas")
    return Server("postgres", postgres.port, schemas.new_url())


@pytest.fixture
def direct(server: Server) -> Iterator[Engine]:
    """The log as it is, past the proxy."""
    engine = connect(server.url)
    yield engine
    engine.close()


@pytest.fixture
def proxy(server: Server, rng: random.Random) -> Iterator[LossyProxy]:
    with LossyProxy(server.port, rng, *LOSSES[server.kind]) as proxy:
        yield proxy


@pytest.fixture
async def bus(proxy: LossyProxy, server: Server) -> AsyncIterator[Engine]:
    """The log through the proxy."""
    engine = connect(proxy.address(server.url))
    yield engine
    proxy.behave()
    await engine.aclose()


def numbered(n: int) -> Append:
    return Append(records=(NewRecord(TOPIC, {"n": n}, f"id-{n}"),))


def check_losses(proxy: LossyProxy, at_least: int) -> None:
    print(proxy.losses)
    assert proxy.losses.replies + proxy.losses.requests >= at_least
    assert proxy.losses.requests > 0


async def test_appends_are_neither_lost_nor_duplicated(bus: Engine, direct: Engine, proxy: LossyProxy) -> None:
    room = asyncio.Semaphore(AT_A_TIME)

    async def append(n: int) -> tuple[str, int]:
        async with room:
            return f"id-{n}", (await acall_with_retry(bus, numbered(n))).seqs[0]

    answers = await asyncio.gather(*(append(n) for n in range(APPENDS)))

    records = whole_log(direct, TOPIC)
    assert_clean(sequence_findings(records))
    assert {record.id: record.seq for record in records} == dict(answers)
    assert len(answers) == APPENDS
    check_losses(proxy, LOSSES_MIN)


async def test_settles_are_neither_lost_nor_duplicated(bus: Engine, direct: Engine, proxy: LossyProxy) -> None:
    lanes = [f"lane-{n % LANES}" for n in range(SETTLES)]
    seqs = direct.call(mail_to(AGENT, lanes)).seqs
    settled = 0

    async def run(lane: ClaimedLane) -> None:
        assert (await acall_with_retry(bus, start_append(TRAIL, lane))).seqs
        assert (await acall_with_retry(bus, settle_append(TRAIL, lane, 2))).seqs

    while settled < SETTLES:
        claim = Claim(worker="w1", agents=(AGENT,), limit=AT_A_TIME, lease_s=LEASE_S)
        claims = await acall_with_retry(bus, claim)
        assert claims.lanes or claims.more, f"{settled} settled, the rest has no owner"
        await asyncio.gather(*(run(lane) for lane in claims.lanes))
        settled += len(claims.lanes)

    mail = {
        lane: [MailRef(f"chat:{AGENT}", seq) for seq in seqs[number::LANES]]
        for number, lane in enumerate(lanes[:LANES])
    }
    trail = whole_log(direct, TRAIL)
    assert_clean(sequence_findings(trail) + lane_findings(mail, trail))
    assert len(trail) == 2 * SETTLES
    check_losses(proxy, LOSSES_MIN)


async def test_a_follower_sees_every_record_once(bus: Engine, direct: Engine, proxy: LossyProxy) -> None:
    async def append_all() -> None:
        for n in range(APPENDS_SYNC):
            await direct.acall(numbered(n))

    appending = asyncio.create_task(append_all())
    seen = []
    async for record in bus.follow(TOPIC, after=0):
        seen.append(record.id)
        if len(seen) == APPENDS_SYNC:
            break
        if len(seen) % 20 == 0:
            proxy.cut()
    await appending
    await direct.aclose()

    assert seen == [f"id-{n}" for n in range(APPENDS_SYNC)]


def test_synchronous_calls_neither_lose_nor_duplicate_records(
    proxy: LossyProxy, direct: Engine, server: Server
) -> None:
    proxy.request_loss, proxy.reply_loss = LOSSES_SYNC[server.kind]
    bus = connect(proxy.address(server.url))
    seqs = direct.call(mail_to(AGENT, ["one"] * SETTLES_SYNC)).seqs

    answers = {f"id-{n}": call_with_retry(bus, numbered(n)).seqs[0] for n in range(APPENDS_SYNC)}
    for _ in range(SETTLES_SYNC):
        (lane,) = call_with_retry(bus, Claim(worker="w1", agents=(AGENT,), limit=1, lease_s=LEASE_S)).lanes
        call_with_retry(bus, start_append(TRAIL, lane))
        call_with_retry(bus, settle_append(TRAIL, lane, 2))
    proxy.behave()
    bus.close()

    records = whole_log(direct, TOPIC)
    assert {record.id: record.seq for record in records} == answers
    mail = {"one": [MailRef(f"chat:{AGENT}", seq) for seq in seqs]}
    assert_clean(sequence_findings(records) + lane_findings(mail, whole_log(direct, TRAIL)))
    check_losses(proxy, LOSSES_SYNC_MIN)
