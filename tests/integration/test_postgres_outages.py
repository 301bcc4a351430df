"""Faults of a PostgreSQL server, and the errors that the engine raises for them."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from magent2.bus import postgres
from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Claim, Delete, Info, Operation, Scrub
from magent2.bus.postgres import PostgresBus
from magent2.bus.postgres_engine import maintenance
from magent2.bus.postgres_engine import schema as log_schema
from magent2.bus.postgres_engine.connection import Connection
from magent2.bus.postgres_engine.functions import VERSION
from magent2.bus.records import NewRecord
from magent2.errors import (
    BusUnavailable,
    Magent2Error,
    NoPermission,
    SchemaTooNew,
    StorageCorrupt,
    StorageUnwritable,
    UnsupportedServer,
)
from magent2.worker.lane_run import Outcome
from tests.support.audit import assert_clean, whole_log
from tests.support.command_line import CommandLine
from tests.support.fake_postgres import fake_postgres
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres_server import FAST, ROLE, PostgresServer, Schemas
from tests.support.run_audit import run_findings
from tests.support.runners import GatedRunner
from tests.support.waiting import eventually
from tests.support.worker_fixture import run_worker, send, until

pytestmark = pytest.mark.postgres

SECRET = "open-sesame"  # pragma: allowlist secret
GUARDED, WEAK, FULL = "guarded", "weak", "full"  # a role with a password, one without rights, one without connections
TOPIC = "stream:one"
STUCK_S = 60.0  # a bus that waits for a thread of the tools would wait for ever
RETRY_S = 0.3

Run = Callable[[str, Operation[object]], object]


def run_sync(url: str, operation: Operation[object]) -> object:
    bus = connect(url)
    try:
        return bus.call(operation)
    finally:
        bus.close()


def run_async(url: str, operation: Operation[object]) -> object:
    async def run() -> object:
        bus = connect(url)
        try:
            return await bus.acall(operation)
        finally:
            await bus.aclose()

    return asyncio.run(run())


@pytest.fixture(params=[run_sync, run_async], ids=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    """One operation on a bus of its own, through either face."""
    chosen: Run = request.param
    return chosen


def put(n: int = 1) -> Append:
    return Append(records=(NewRecord(TOPIC, {"n": n}, f"id-{n}"),))


@pytest.fixture(scope="module")
def server(postgres_server: PostgresServer) -> PostgresServer:
    """The shared server with some roles and databases that cannot be used."""
    rules = postgres_server.data / "pg_hba.conf"
    if GUARDED in rules.read_text():
        return postgres_server
    rules.write_text(f"host all {GUARDED} all scram-sha-256\n{rules.read_text()}")
    with psycopg.connect(postgres_server.admin_url, autocommit=True) as admin:
        admin.execute(f"CREATE ROLE {GUARDED} LOGIN PASSWORD '{SECRET}'; GRANT CREATE ON DATABASE {ROLE} TO {GUARDED}")
        admin.execute(f"CREATE ROLE {WEAK} LOGIN; CREATE ROLE {FULL} LOGIN CONNECTION LIMIT 0")
        admin.execute("CREATE DATABASE latin ENCODING 'LATIN1' TEMPLATE template0 LOCALE_PROVIDER libc LOCALE 'C'")
        admin.execute(f"CREATE DATABASE closed OWNER {ROLE}")
        admin.execute("REVOKE CONNECT ON DATABASE closed FROM PUBLIC")
        admin.execute("SELECT pg_reload_conf()")
        # The new rules are read by the server, not by its children that run.
        eventually(lambda: not _may_enter(postgres_server))
    return postgres_server


def _may_enter(server: PostgresServer) -> bool:
    try:
        psycopg.connect(address(server, GUARDED)).close()
    except psycopg.OperationalError:
        return False
    return True


def address(server: PostgresServer, user: str = ROLE, database: str = ROLE) -> str:
    return f"postgresql://{user}@127.0.0.1:{server.port}/{database}"


# --- reaching the server


def test_a_server_that_does_not_answer_is_named_without_the_password(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken, caplog.at_level(logging.DEBUG):
        taken.bind(("127.0.0.1", 0))  # but it does not listen, and no other program can
        port = taken.getsockname()[1]
        with pytest.raises(BusUnavailable) as caught:
            run(f"postgresql://ann:{SECRET}@127.0.0.1:{port}/log", put())

    assert f"127.0.0.1:{port}" in str(caught.value)
    assert SECRET not in shown(caught.value) + caplog.text


def shown(error: BaseException | None) -> str:
    """An error with all that led to it."""
    text = ""
    while error is not None:
        text += repr(error)
        error = error.__cause__ or error.__context__
    return text


def test_a_bus_does_not_print_its_password() -> None:
    bus = PostgresBus(f"postgresql://ann:{SECRET}@127.0.0.1:1/log")

    assert SECRET not in repr(bus) + str(bus)
    bus.close()


def test_a_password_opens_the_server(server: PostgresServer, run: Run) -> None:
    assert run(f"{address(server, f'{GUARDED}:{SECRET}')}?prefix=guarded", put())


@pytest.mark.parametrize("credentials", [GUARDED, f"{GUARDED}:guess-one", "nobody:guess-one"])
def test_a_wrong_password_is_named_without_being_shown(server: PostgresServer, run: Run, credentials: str) -> None:
    with pytest.raises(StorageUnwritable, match="password") as caught:
        run(address(server, credentials), put())

    assert "guess-one" not in shown(caught.value)


def test_a_database_that_does_not_exist_is_named_with_what_creates_it(server: PostgresServer, run: Run) -> None:
    with pytest.raises(StorageUnwritable, match="CREATE DATABASE"):
        run(address(server, database="nothing"), put())


def test_a_user_without_rights_learns_which_are_missing(server: PostgresServer, run: Run) -> None:
    run_sync(f"{server.url}?prefix=of_another", Info())
    for url in (f"{address(server, WEAK)}?prefix=of_another", address(server, WEAK), address(server, WEAK, "closed")):
        with pytest.raises(NoPermission, match=r"own the schema .* CREATE on the database"):
            run(url, put())


def test_a_server_without_free_connections_is_one_that_does_not_answer(server: PostgresServer) -> None:
    with pytest.raises(BusUnavailable, match="too many connections"):
        run_sync(address(server, FULL), put())


async def test_tools_that_occupy_the_default_executor_do_not_keep_the_bus_from_connecting(
    postgres_schemas: Schemas,
) -> None:
    loop, done = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    tool = loop.run_in_executor(None, done.wait)
    bus = connect(postgres_schemas.new_url())

    try:
        async with asyncio.timeout(STUCK_S):
            await bus.acall(put(1))
            first = await anext(bus.follow(TOPIC, after=0))
            await bus.aclose()
    finally:
        done.set()
        await tool

    assert first.seq == 1


# --- a server that is away


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer(FAST) as server:
        server.start()
        yield server


@pytest.mark.parametrize("end", [PostgresServer.stop, PostgresServer.kill])
async def test_runs_go_on_when_the_server_comes_back(
    own_server: PostgresServer, end: Callable[[PostgresServer], None]
) -> None:
    bus, runner = PostgresBus(own_server.url, retry_for_s=RETRY_S), GatedRunner()
    sent = [(send(bus, text), text) for text in ("before", "behind")]
    async with run_worker(bus, runner) as service:
        await until(lambda: runner.begun)
        await asyncio.to_thread(end, own_server)
        with pytest.raises(BusUnavailable):
            await bus.acall(put())
        await asyncio.to_thread(own_server.start)
        runner.gate.set()
        sent.append((await asyncio.to_thread(send, bus, "after"), "after"))
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 3)

    assert_clean(run_findings(sent, whole_log(bus, TOPIC), whole_log(bus, "history:one")))
    await bus.aclose()


# --- servers that will not do


def test_a_server_that_is_too_old_is_refused(run: Run) -> None:
    """The server is a fake one: distributions have no packages of 14 or older beside those of 15."""
    with fake_postgres("14.11") as url, pytest.raises(UnsupportedServer, match=r"version 14; use 15 or newer"):
        run(url, put())


def test_a_database_in_another_encoding_is_refused(server: PostgresServer, run: Run) -> None:
    with pytest.raises(UnsupportedServer, match=r"LATIN1.*UTF8"):
        run(address(server, database="latin"), put())


def test_a_pooler_is_refused_by_name(postgres_server: PostgresServer, run: Run) -> None:
    with PgBouncer(postgres_server) as pooler:
        pooler.start()

        with pytest.raises(UnsupportedServer, match="PgBouncer"):
            run(pooler.url, put())


@pytest.mark.parametrize("setting", ["fsync", "full_page_writes"])
def test_a_server_that_may_lose_acknowledged_writes_is_warned_about(postgres_schemas: Schemas, setting: str) -> None:
    bus = connect(postgres_schemas.new_url())

    assert any(warning.startswith(f"{setting} is off") for warning in bus.call(Info()).warnings)
    bus.close()


# --- the schema of the log


@pytest.fixture
def name(postgres_schemas: Schemas) -> str:
    return postgres_schemas.new_name()


@pytest.fixture
def opened(postgres_server: PostgresServer, name: str) -> Iterator[Engine]:
    bus = connect(f"{postgres_server.url}?prefix={name}")
    bus.call(put(1))
    yield bus
    bus.close()


def execute(server: PostgresServer, schema: str, statement: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(schema)))
        found = connection.execute(statement)
        return found.fetchall() if found.description else []


def test_a_newer_log_is_refused(postgres_server: PostgresServer, name: str, opened: Engine) -> None:
    execute(postgres_server, name, "UPDATE meta SET value = '99' WHERE key = 'schema'")

    with pytest.raises(SchemaTooNew, match=r"99.*upgrade"):
        run_sync(f"{postgres_server.url}?prefix={name}", put(2))
    execute(postgres_server, name, "UPDATE meta SET value = '1' WHERE key = 'schema'")


def test_an_older_log_is_migrated_in_one_transaction(
    postgres_server: PostgresServer, name: str, opened: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is one schema so far, so its successor is an invented one. The first attempt dies after the first step."""
    url = f"{postgres_server.url}?prefix={name}"
    opened.close()
    steps: list[str] = []

    def add_column(connection: psycopg.Connection) -> None:
        steps.append("add")
        connection.execute("ALTER TABLE records ADD COLUMN colour text DEFAULT 'blue'")

    def fail_once(_connection: psycopg.Connection) -> None:
        steps.append("last")
        if len(steps) == 2:
            raise StorageCorrupt("the power is out")

    monkeypatch.setattr(log_schema, "SCHEMA", 3)
    monkeypatch.setattr(log_schema, "MIGRATIONS", {1: add_column, 2: fail_once})
    with pytest.raises(StorageCorrupt, match="power"):
        run_sync(url, Info())
    assert execute(postgres_server, name, "SELECT value FROM meta WHERE key = 'schema'") == [("1",)]

    info = run_sync(url, Info())

    assert steps == ["add", "last", "add", "last"]
    assert getattr(info, "schema", None) == 3
    assert execute(postgres_server, name, "SELECT colour FROM records") == [("blue",)]
    execute(
        postgres_server,
        name,
        "ALTER TABLE records DROP COLUMN colour; UPDATE meta SET value = '1' WHERE key = 'schema'",
    )


def test_functions_of_another_release_stay_beside_those_of_this_one(
    postgres_server: PostgresServer, name: str, opened: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = "SELECT count(DISTINCT proname) FROM pg_proc WHERE pronamespace = current_schema()::regnamespace"
    ((own,),) = execute(postgres_server, name, functions)
    monkeypatch.setattr(log_schema, "FUNCTION_NAMES", ("write_00000000",))
    monkeypatch.setattr(
        log_schema, "FUNCTIONS", "CREATE FUNCTION write_00000000() RETURNS int LANGUAGE sql AS 'SELECT 1'"
    )
    run_sync(f"{postgres_server.url}?prefix={name}", Info())

    assert execute(postgres_server, name, functions) == [(int(str(own)) + 1,)]
    assert opened.call(put(2)).seqs == (2,)
    execute(postgres_server, name, "DROP FUNCTION write_00000000")


FUNCTIONS = "SELECT proname FROM pg_proc WHERE pronamespace = current_schema()::regnamespace ORDER BY proname"


@pytest.mark.parametrize("which", ["one of them", "all"])
def test_functions_that_were_dropped_are_created_again(
    postgres_server: PostgresServer, name: str, opened: Engine, which: str
) -> None:
    found = execute(postgres_server, name, FUNCTIONS)
    dropped = [str(function) for (function,) in found if which == "all" or str(function).startswith("make_ready_")]
    execute(postgres_server, name, f"DROP FUNCTION {', '.join(dropped)} CASCADE")

    answered = opened.call(put(2))
    opened.call(Append(records=(NewRecord("chat:Ada", {"conversation_id": "c1"}),)))
    claimed = opened.call(Claim(worker="w1", agents=("Ada",), limit=1, lease_s=60.0))

    assert dropped
    assert answered.seqs == (2,)
    assert len(claimed.lanes) == 1
    assert execute(postgres_server, name, FUNCTIONS) == found


def test_functions_that_disappear_again_and_again_are_named(
    postgres_server: PostgresServer, name: str, opened: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program drops them at once, so the engine gives up and says so."""
    drop = f"DROP FUNCTION write_{VERSION}"
    execute(postgres_server, name, drop)
    really_prepare = log_schema.prepare

    def prepare(connection: Connection, schema: str) -> None:
        really_prepare(connection, schema)
        connection.execute(f"{drop} CASCADE".encode())

    monkeypatch.setattr(postgres, "prepare", prepare)
    bus = PostgresBus(postgres_server.url, prefix=name, retry_for_s=RETRY_S)
    try:
        with pytest.raises(StorageCorrupt, match=r"functions .* what drops them .*write_\w+"):
            bus.call(put(2))
    finally:
        monkeypatch.undo()
        bus.close()

    assert opened.call(put(2)).seqs == (2,)


# --- processes


def test_a_forked_child_has_connections_of_its_own(opened: Engine) -> None:
    watch = opened.watch((TOPIC,))
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        try:
            seqs = [opened.call(put(n)).seqs[0] for n in range(2, 30)]
            opened.close()
            os.write(writing, str(seqs[-1]).encode())
        finally:
            os._exit(0)
    for n in range(30, 60):
        opened.call(put(n))
    os.waitpid(child, 0)

    assert int(os.read(reading, 100)) <= 59
    assert {record.id for record in whole_log(opened, TOPIC)} == {f"id-{n}" for n in range(1, 60)}
    assert watch.wait(10)
    watch.close()


def test_a_closed_bus_raises_a_named_error(opened: Engine) -> None:
    opened.close()
    opened.close()

    with pytest.raises(Magent2Error, match="closed"):
        opened.call(put())
    with pytest.raises(Magent2Error, match="closed"):
        asyncio.run(opened.acall(put()))


# --- what operators see


def test_doctor_tells_of_the_server_and_its_settings(
    postgres_server: PostgresServer, name: str, tmp_path: Path
) -> None:
    with CommandLine(tmp_path, MAGENT2_BUS_URL=f"{postgres_server.url}?prefix={name}") as magent2:
        done = magent2.run("doctor", "--url", "http://127.0.0.1:1")

    about = [line for line in done.lines if line.split()[1] == "bus"]
    for part in ("postgres, schema 1", "PostgreSQL 1", "0 standby servers connected", "a write took"):
        assert part in about[0]
    assert [line.split()[2] for line in about[1:]] == ["fsync", "full_page_writes"]
    assert all(line.startswith("warn") for line in about[1:])


def test_the_log_says_that_deleted_content_waits_for_a_scrub_by_hand(
    opened: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "erase --wait" not in "".join(opened.call(Info()).details)
    monkeypatch.setattr(maintenance, "SCRUB_MAX_BYTES", 0)  # the log is larger
    opened.call(Delete((TOPIC,)))

    assert "erase --wait" in "".join(opened.call(Info()).details)
    assert opened.call(Scrub(any_size=True))
    assert "erase --wait" not in "".join(opened.call(Info()).details)
