"""A standby of PostgreSQL is promoted: which server clients use, and what their callers see."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from typing import TypeAlias

import psycopg
import pytest

from magent2.bus import postgres
from magent2.bus.connect import connect
from magent2.bus.operations import (
    OLDEST,
    Append,
    Claim,
    Compact,
    Delete,
    Describe,
    Expire,
    Info,
    OwnedAppend,
    Read,
    Renew,
    Settle,
    Trim,
)
from magent2.bus.postgres import PostgresBus
from magent2.bus.postgres_engine import connection, notifications
from magent2.bus.records import ClaimResult, NewRecord
from magent2.bus.servers import RETRY_FOR_S
from magent2.errors import BusUnavailable, SettingsError
from tests.support.audit import whole_log
from tests.support.postgres_server import FAST, PostgresPair, PostgresServer, Schemas
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.postgres

TOPIC = "stream:one"
NEVER_S = 3600.0
IMPATIENT_S = 0.2
PATIENT_S = 2 * DEADLINE_S  # longer than a promotion takes on a busy machine
REPLY_MAX_S = 1.0
SHORT_S = 0.5  # longer than a wake-up that is still under way

OpenBus: TypeAlias = Callable[..., PostgresBus]


@pytest.fixture(scope="module")
def servers() -> Iterator[PostgresPair]:
    with PostgresPair(FAST) as pair:
        pair.start()
        yield pair


@pytest.fixture
def pair(servers: PostgresPair) -> Iterator[PostgresPair]:
    """A primary and a synchronous standby. Tests have logs of their own."""
    yield servers
    if not is_standby(servers.standby):
        servers.primary.kill()
        servers.rejoin()


@pytest.fixture
def open_bus(pair: PostgresPair) -> Iterator[OpenBus]:
    """Opens a log of this test, on both servers or at another URL."""
    prefix = uuid.uuid4().hex
    with ExitStack() as stack:

        def open_log(url: str = pair.url, retry_for_s: float = RETRY_FOR_S) -> PostgresBus:
            bus = PostgresBus(url, prefix=prefix, retry_for_s=retry_for_s)
            stack.callback(bus.close)
            return bus

        yield open_log


def is_standby(server: PostgresServer) -> bool:
    with psycopg.connect(server.admin_url) as connection:
        (found,) = connection.execute("SELECT pg_is_in_recovery()").fetchone() or (False,)
        return bool(found)


def put(n: int, topic: str = TOPIC) -> Append:
    return Append(records=(NewRecord(topic, {"conversation_id": "one", "n": n}, f"id-{n}"),))


def numbers(bus: PostgresBus, topic: str = TOPIC) -> list[int]:
    return [record.payload["n"] for record in whole_log(bus, topic)]


def execute(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def cut_connections(server: PostgresServer) -> None:
    """End the connections of clients, as a restart does."""
    execute(server.admin_url, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'magent2'")


def warnings_of(bus: PostgresBus) -> str:
    return "\n".join(bus.call(Info()).warnings)


def claim_one(bus: PostgresBus, worker: str) -> ClaimResult:
    return bus.call(Claim(worker=worker, agents=("Ada",), limit=1, lease_s=60.0))


def is_refused(bus: PostgresBus, operation: Append) -> bool:
    try:
        bus.call(operation)
    except BusUnavailable:
        return True
    return False


def test_clients_find_the_promoted_server_and_callers_wait_for_a_bounded_time(
    pair: PostgresPair, open_bus: OpenBus, caplog: pytest.LogCaptureFixture
) -> None:
    bus, impatient = open_bus(), open_bus(retry_for_s=IMPATIENT_S)
    bus.call(put(1))
    bus.call(put(1, "chat:Ada"))
    (lane,) = claim_one(bus, "w1").lanes
    bus.call(OwnedAppend(owner=lane.owner, n=1))  # a claim may be lost, but not with what was written under it
    assert impatient.call(Read(TOPIC, OLDEST)).last == 1

    pair.primary.kill()
    operation = put(2)
    for refused in (operation, Read(TOPIC, OLDEST), Renew("w1", 60.0)):
        with pytest.raises(BusUnavailable, match=str(pair.primary.port)):
            impatient.call(refused)
    pair.standby.promote()

    assert impatient.call(operation).seqs == (2,)
    assert bus.call(put(3)).seqs == (3,)
    assert numbers(bus) == [1, 2, 3]
    bus.call(Settle(owner=lane.owner, mail=(lane.mail[0].ref,)))
    assert not claim_one(bus, "w2").lanes
    assert caplog.messages.count("a standby of the postgres log was promoted") == 2  # once per bus


def test_watches_hear_of_changes_on_the_promoted_server(
    pair: PostgresPair, open_bus: OpenBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notifications, "SWEEP_S", NEVER_S)  # so only a notification can wake the watch
    bus, other = open_bus(), open_bus()
    bus.call(put(1))
    with bus.watch([TOPIC]) as watch:
        pair.fail_over()
        other.call(put(2))
        eventually(lambda: bus._hub._thread is not None and bus._hub._thread.is_listening)
        while watch.wait(SHORT_S):
            pass

        other.call(put(3))

        assert watch.wait(DEADLINE_S) == {TOPIC}


def test_an_old_primary_that_comes_back_is_not_used(pair: PostgresPair, open_bus: OpenBus) -> None:
    bus, impatient = open_bus(), open_bus(retry_for_s=IMPATIENT_S)
    bus.call(put(1))
    impatient.call(put(1))
    pair.fail_over()
    bus.call(put(2))
    eventually(lambda: not is_refused(impatient, put(2)))

    pair.primary.start()
    cut_connections(pair.standby)

    assert bus.call(put(3)).seqs == (3,)
    assert numbers(open_bus(pair.standby.url)) == [1, 2, 3]
    pair.standby.kill()
    with pytest.raises(BusUnavailable, match="old primary"):
        impatient.call(put(4))
    pair.standby.start()


def test_a_server_that_hangs_is_left_for_the_promoted_one(
    pair: PostgresPair, open_bus: OpenBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_bus().call(put(1))  # creating the log may take longer than a reply below
    monkeypatch.setattr(connection, "REPLY_TIMEOUT_S", REPLY_MAX_S)
    bus = open_bus(f"{pair.url}&connect_timeout=2", PATIENT_S)
    bus.call(put(1))

    pair.primary.suspend()
    waiting = threading.Thread(target=bus.call, args=(put(2),))
    waiting.start()
    pair.standby.promote()

    waiting.join(DEADLINE_S)
    is_left = not waiting.is_alive()
    pair.primary.kill()  # otherwise a failed test would wait for it, too
    assert is_left
    assert numbers(bus) == [1, 2]


def test_a_server_that_becomes_read_only_is_left_for_the_promoted_one(pair: PostgresPair, open_bus: OpenBus) -> None:
    bus, impatient = open_bus(retry_for_s=PATIENT_S), open_bus(retry_for_s=0.0)
    bus.call(put(1))
    impatient.call(put(2))

    execute(pair.primary.admin_url, "ALTER SYSTEM SET default_transaction_read_only = on", "SELECT pg_reload_conf()")
    eventually(lambda: is_refused(impatient, put(2)))
    waiting = threading.Thread(target=bus.call, args=(put(3),))
    waiting.start()
    pair.standby.promote()

    waiting.join(DEADLINE_S)
    assert numbers(bus) == [1, 2, 3]


def test_a_standby_alone_is_refused(pair: PostgresPair, open_bus: OpenBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "FIRST_CONTACT_S", IMPATIENT_S)
    open_bus().call(put(1))
    alone = open_bus(pair.standby.url)

    with pytest.raises(BusUnavailable, match="standby"):
        alone.call(Read(TOPIC, OLDEST))


def test_an_append_waits_for_the_synchronous_standby(pair: PostgresPair, open_bus: OpenBus) -> None:
    bus = open_bus()
    bus.call(put(1))
    assert "synchronous" not in warnings_of(bus)
    pair.standby.kill()
    waiting = threading.Thread(target=bus.call, args=(put(2),))
    waiting.start()

    await_waiting_commit(pair.primary)
    assert waiting.is_alive()
    pair.standby.start()

    waiting.join(DEADLINE_S)
    assert numbers(bus) == [1, 2]


def await_waiting_commit(primary: PostgresServer) -> None:
    """Wait until a commit waits for the standby."""
    waits = "SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
    with psycopg.connect(primary.admin_url, autocommit=True) as connection:
        eventually(lambda: connection.execute(waits).fetchall())


def test_a_deletion_waits_for_the_synchronous_standby_and_retention_does_not(
    pair: PostgresPair, open_bus: OpenBus
) -> None:
    bus = open_bus()
    draft, text = NewRecord(TOPIC, {}, draft="d"), NewRecord(TOPIC, {}, closes="d")
    bus.call(Append(records=(draft, text, NewRecord("stream:two", {}))))
    pair.standby.kill()

    assert bus.call(Compact(TOPIC, 0.0)).dropped == 1
    assert bus.call(Trim(TOPIC, keep=0)).dropped == 1
    eventually(lambda: bus.call(Expire("one", 0.0)))
    deleting = threading.Thread(target=bus.call, args=(Delete(("stream:two",), conversation="two"),))
    deleting.start()
    await_waiting_commit(pair.primary)
    assert deleting.is_alive()
    pair.standby.start()

    deleting.join(DEADLINE_S)
    assert [info.deleted for info in bus.call(Describe((TOPIC, "stream:two")))] == [True, True]


# --- one server


def test_several_hosts_without_a_synchronous_standby_are_warned_about(
    postgres_server: PostgresServer, postgres_schemas: Schemas
) -> None:
    host = f"127.0.0.1:{postgres_server.port}"
    several = postgres_server.url.replace(host, f"{host},{host}")
    prefix = postgres_schemas.new_name()

    with closing(PostgresBus(several, prefix=prefix)) as bus:
        assert "synchronous_standby_names" in warnings_of(bus)
    with closing(PostgresBus(postgres_server.url, prefix=prefix)) as bus:
        assert "synchronous_standby_names" not in warnings_of(bus)


def test_a_server_that_does_not_tell_its_timeline_can_be_used(
    postgres_server: PostgresServer, postgres_schemas: Schemas
) -> None:
    function = "FUNCTION pg_walfile_name(pg_lsn)"
    execute(postgres_server.admin_url, f"REVOKE EXECUTE ON {function} FROM PUBLIC")
    try:
        with closing(PostgresBus(postgres_server.url, prefix=postgres_schemas.new_name())) as bus:
            assert bus.call(put(1)).seqs == (1,)
    finally:
        execute(postgres_server.admin_url, f"GRANT EXECUTE ON {function} TO PUBLIC")


def test_a_url_that_may_choose_a_standby_is_refused() -> None:
    for wanted in ("any", "standby", "prefer-standby", "read-only"):
        with pytest.raises(SettingsError, match="read-write"):
            connect(f"postgresql://ann@one,two/log?target_session_attrs={wanted}")
    with pytest.raises(SettingsError, match="port"):
        connect("postgresql://ann@one,two,three/log?port=4,5")


def test_a_log_whose_creation_a_server_has_lost_is_created_again(
    postgres_server: PostgresServer, postgres_schemas: Schemas
) -> None:
    prefix = postgres_schemas.new_name()
    with closing(PostgresBus(postgres_server.url, prefix=prefix)) as bus:
        bus.call(put(1))

        cut_connections(postgres_server)
        postgres_server.drop_schema(prefix)

        assert bus.call(put(2)).seqs == (1,)
