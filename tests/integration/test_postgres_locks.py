"""Operations on PostgreSQL that meet the locks of others."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import TypeVar

import psycopg
import pytest
from psycopg import sql

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Claim, Delete, Lanes, Operation, OwnedAppend, Pending, Settle
from magent2.bus.records import ClaimedLane, ClaimResult, NewRecord
from magent2.gateway.app import create_app
from magent2.telemetry.metrics import Metrics
from magent2.worker.lane_run import Outcome
from tests.support.engine_wrappers import EngineWrapper
from tests.support.postgres_server import PostgresServer, Schemas
from tests.support.runners import GatedRunner
from tests.support.waiting import eventually
from tests.support.worker_fixture import AGENT, command, run_worker, send, until

pytestmark = pytest.mark.postgres

R = TypeVar("R")

CONVERSATION = "c1"
LEASE_S = 60.0
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


@pytest.fixture
def schema(postgres_schemas: Schemas) -> str:
    return postgres_schemas.new_name()


@pytest.fixture
def url(postgres_server: PostgresServer, schema: str) -> str:
    return f"{postgres_server.url}?prefix={schema}"


@pytest.fixture
def bus(url: str) -> Iterator[Engine]:
    engine = connect(url)
    yield engine
    engine.close()


@contextmanager
def held_row(server: PostgresServer, schema: str, row: str) -> Iterator[psycopg.Connection]:
    """Lock a row until the end of the block, as another process would."""
    with psycopg.connect(server.url) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        assert connection.execute(f"SELECT 1 FROM {row} FOR UPDATE").fetchall()
        yield connection


def mail(n: int, kind: str = "chat") -> NewRecord:
    return NewRecord(f"{kind}:{AGENT}", {"conversation_id": CONVERSATION, "n": n}, f"{kind}-{n}")


def claim(worker: str = "w1", limit: int = 1) -> Claim:
    return Claim(worker=worker, agents=(AGENT,), limit=limit, lease_s=LEASE_S)


def claimed_lane(bus: Engine) -> ClaimedLane:
    bus.call(Append(records=(mail(1), NewRecord(f"stream:{CONVERSATION}", {}))))
    (lane,) = bus.call(claim()).lanes
    return lane


@contextmanager
def waiting_write(server: PostgresServer, schema: str, bus: Engine, write: OwnedAppend | Settle) -> Iterator[None]:
    """A write that holds the lock of its lane and waits for that of its topic, until the end of the block."""
    with psycopg.connect(server.admin_url, autocommit=True) as admin:
        with held_row(server, schema, f"topics WHERE name = 'stream:{CONVERSATION}'"):
            thread = threading.Thread(target=bus.call, args=(write,))
            thread.start()
            eventually(lambda: admin.execute(WAITING).fetchall() == [(1,)])
            yield
        thread.join()


def test_commands_and_mail_reach_a_lane_while_its_owner_appends(
    bus: Engine, postgres_server: PostgresServer, schema: str
) -> None:
    lane = claimed_lane(bus)
    append = OwnedAppend(owner=lane.owner, n=1, records=(NewRecord(f"stream:{CONVERSATION}", {"token": 1}),))

    with waiting_write(postgres_server, schema, bus, append):
        bus_of_sender = connect(f"{postgres_server.url}?prefix={schema}")
        bus_of_sender.call(Append(records=(mail(1, "control"), mail(2))))
        claimed = bus_of_sender.call(claim(limit=0))
        pending = bus_of_sender.call(Pending(lane.owner, 10))
        bus_of_sender.close()

    assert not claimed.more
    assert [record.id for record in pending] == ["control-1", "chat-1", "chat-2"]


def test_mail_for_a_lane_that_its_owner_settles_is_put_into_it_by_a_later_claim(
    bus: Engine, postgres_server: PostgresServer, schema: str
) -> None:
    lane = claimed_lane(bus)
    settle = Settle(
        owner=lane.owner, mail=(lane.mail[0].ref,), records=(NewRecord(f"stream:{CONVERSATION}", {"event": "end"}),)
    )

    with waiting_write(postgres_server, schema, bus, settle):
        bus_of_sender = connect(f"{postgres_server.url}?prefix={schema}")
        bus_of_sender.call(Append(records=(mail(2),)))
        during = bus_of_sender.call(claim("w2"))
        bus_of_sender.close()
    (after,) = bus.call(claim("w3")).lanes

    assert (during.lanes, during.more) == ((), True)
    assert [record.id for record in after.mail] == ["chat-2"]


class CountingBus(EngineWrapper):
    """Counts the claims that have left something for the next one."""

    unfinished = 0

    async def acall(self, operation: Operation[R]) -> R:
        answer = await self.inner.acall(operation)
        if isinstance(answer, ClaimResult):
            self.unfinished += answer.more
        return answer


async def test_a_stop_that_a_claim_has_left_outside_its_lane_is_passed_on_after_a_later_claim(
    bus: Engine, postgres_server: PostgresServer, schema: str
) -> None:
    runner, counting = GatedRunner(), CountingBus(bus)
    send(bus, "hello")
    async with run_worker(counting, runner) as service:
        await until(lambda: runner.begun)
        with held_row(postgres_server, schema, f"inboxes WHERE agent = '{AGENT}'"):  # as a claim of another worker
            command(bus, "stop")
            before = counting.unfinished
            await until(lambda: counting.unfinished > before + 2)
        await until(lambda: service.outcomes[Outcome.STOPPED])

    assert (runner.begun, runner.ended) == (["hello"], [])


def delete_conversation() -> Delete:
    return Delete((f"stream:{CONVERSATION}", f"history:{CONVERSATION}"), conversation=CONVERSATION)


@contextmanager
def unfinished_claim(server: PostgresServer, schema: str, url: str) -> Iterator[None]:
    """A claim that has put its mail into lanes and does not commit before the end of the block."""
    with psycopg.connect(server.url) as setup:  # a row to wait for
        setup.execute(sql.SQL("INSERT INTO {}.turns VALUES (%s, '', 1)").format(sql.Identifier(schema)), (AGENT,))
    with closing(connect(url)) as bus:
        with held_row(server, schema, "turns"):
            thread = threading.Thread(target=bus.call, args=(claim("w2"),))
            waited = waiting(server)
            thread.start()
            eventually(lambda: waiting(server) > waited)
            yield
        thread.join()


def waiting(server: PostgresServer) -> int:
    with psycopg.connect(server.admin_url, autocommit=True) as admin:
        ((count,),) = admin.execute(WAITING).fetchall()
    return int(count)


def test_a_deletion_leaves_no_lane_of_a_first_claim_that_has_not_committed(
    bus: Engine, postgres_server: PostgresServer, schema: str, url: str
) -> None:
    bus.call(Append(records=(mail(1), NewRecord(f"stream:{CONVERSATION}", {}))))
    deleting = threading.Thread(target=bus.call, args=(delete_conversation(),))

    with unfinished_claim(postgres_server, schema, url):
        deleting.start()
        eventually(lambda: waiting(postgres_server) == 2 or not deleting.is_alive())
    deleting.join()

    assert bus.call(Lanes(AGENT)) == ()
    assert bus.call(claim("w3")).lanes == ()


def test_a_deletion_leaves_no_lane_of_mail_that_came_after_it_began(
    bus: Engine, postgres_server: PostgresServer, schema: str, url: str
) -> None:
    bus.call(Append(records=(NewRecord(f"stream:{CONVERSATION}", {}),)))
    deleting = threading.Thread(target=bus.call, args=(delete_conversation(),))
    with ExitStack() as claiming, closing(connect(url)) as sender:
        with held_row(postgres_server, schema, f"topics WHERE name = 'stream:{CONVERSATION}'"):
            deleting.start()
            eventually(lambda: waiting(postgres_server) == 1)  # the deletion has looked for inboxes
            sender.call(Append(records=(mail(1),)))
            claiming.enter_context(unfinished_claim(postgres_server, schema, url))
        eventually(lambda: waiting(postgres_server) == 2 or not deleting.is_alive())
    deleting.join()

    assert bus.call(Lanes(AGENT)) == ()
    assert bus.call(claim("w3")).lanes == ()


async def test_a_stop_from_before_the_start_of_a_worker_reaches_a_run_that_began_without_it(
    bus: Engine, postgres_server: PostgresServer, schema: str
) -> None:
    """All claims of the start find the inbox locked, so the stop is outside its lane when the run begins."""
    runner = GatedRunner()
    send(bus, "hello")
    bus.call(claim("w0", limit=0))  # the message is in its lane
    command(bus, "stop")
    with held_row(postgres_server, schema, f"inboxes WHERE agent = '{AGENT}'") as other_claim:
        async with run_worker(bus, runner) as service:
            await until(lambda: runner.begun)
            other_claim.rollback()

            await until(lambda: service.outcomes[Outcome.STOPPED])

    assert (runner.begun, runner.ended) == (["hello"], [])


def test_metrics_tell_of_operations_that_wait_for_a_connection(
    bus: Engine, postgres_server: PostgresServer, schema: str
) -> None:
    metrics = Metrics()
    create_app(bus, metrics=metrics)
    lane = claimed_lane(bus)
    append = OwnedAppend(owner=lane.owner, n=1, records=(NewRecord(f"stream:{CONVERSATION}", {"token": 1}),))

    def shown(state: str) -> float | None:
        return metrics.registry.get_sample_value("magent2_bus_connections", {"state": state})

    with waiting_write(postgres_server, schema, bus, append):
        behind = [threading.Thread(target=bus.call, args=(Append(records=(mail(n),)),)) for n in (2, 3)]
        for thread in behind:
            thread.start()
        eventually(lambda: (shown("busy"), shown("waiting")) == (1.0, 2.0))
    for thread in behind:
        thread.join()

    eventually(lambda: (shown("busy"), shown("waiting")) == (0.0, 0.0))
