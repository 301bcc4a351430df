"""The PostgreSQL servers that tests start: made, stopped, killed and started again."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import psycopg
import pytest

from magent2.bus.connect import connect
from magent2.bus.operations import Append, Topics
from magent2.bus.records import NewRecord
from tests.support.certificates import make_certificate
from tests.support.pgbouncer import PgBouncer
from tests.support.postgres_server import PostgresPair, PostgresServer, Schemas
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.postgres


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        server.start()
        yield server


@pytest.fixture
def pair() -> Iterator[PostgresPair]:
    with PostgresPair() as pair:
        pair.start()
        yield pair


def numbers(server: PostgresServer | PostgresPair) -> list[int]:
    with psycopg.connect(server.url) as connection:
        return [row[0] for row in connection.execute("SELECT number FROM numbers ORDER BY number")]


def ended(pid: int) -> bool:
    """Whether a process has ended, also if nobody has asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except (FileNotFoundError, ProcessLookupError):
        return True


def shared_memory() -> set[str]:
    """The numbers of the shared memory segments of this machine."""
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def test_a_killed_server_comes_back_with_what_was_committed(server: PostgresServer) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE numbers (number int)")
        connection.execute("INSERT INTO numbers VALUES (1), (2)")

        server.kill()

        with pytest.raises(psycopg.OperationalError):
            connection.execute("INSERT INTO numbers VALUES (3)")
    server.start()
    assert numbers(server) == [1, 2]
    assert "was not properly shut down; automatic recovery in progress" in server.tail()


def test_children_die_with_their_server_in_the_middle_of_a_statement(server: PostgresServer) -> None:
    # `closing`: a connection as a context would commit. `autocommit`: a transaction sees the activity of its start.
    with (
        closing(psycopg.connect(server.url, options="-c statement_timeout=60s")) as connection,
        closing(psycopg.connect(server.admin_url, autocommit=True)) as admin,
    ):
        busy = connection.info.backend_pid
        connection.pgconn.send_query(b"SELECT sum(n) FROM (SELECT generate_series(1, 1000000000000) AS n) AS endless")
        running = "SELECT FROM pg_stat_activity WHERE pid = %s AND state = 'active' AND wait_event IS NULL"
        eventually(lambda: admin.execute(running, (busy,)).fetchall())

        server.kill()

        eventually(lambda: ended(busy))


def test_a_restarted_server_keeps_its_data_and_its_port(server: PostgresServer) -> None:
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE numbers AS SELECT 1 AS number")
    url = server.url

    server.restart()

    assert server.url == url
    assert numbers(server) == [1]
    assert "automatic recovery" not in server.tail()


def test_a_server_that_does_not_start_fails_the_test_with_its_log() -> None:
    with PostgresServer({"no_such_setting": "1"}) as server, pytest.raises(pytest.fail.Exception) as failure:
        server.start()

    assert 'unrecognized configuration parameter "no_such_setting"' in str(failure.value)
    assert not server.folder.exists()


def test_a_server_with_tls(server: PostgresServer, tmp_path: Path) -> None:
    certificate = make_certificate(tmp_path)
    server.stop()
    server.use_tls(certificate, tmp_path / "key.pem")
    server.start()

    with psycopg.connect(f"{server.url}?sslmode=verify-full&sslrootcert={certificate}") as connection:
        assert connection.pgconn.ssl_in_use


def test_logs_on_the_shared_server_are_separate_and_empty(postgres_schemas: Schemas) -> None:
    for _ in range(2):
        urls = [postgres_schemas.new_url() for _ in range(2)]
        for url in urls:
            with closing(connect(url)) as bus:
                assert bus.call(Topics()).topics == ()
                assert bus.call(Append(records=(NewRecord("note:a", {}),))).seqs == (1,)

        postgres_schemas.give_back()


def test_tests_have_an_ordinary_role_in_a_database_with_a_usual_order(postgres_server: PostgresServer) -> None:
    with psycopg.connect(postgres_server.url) as connection:
        superuser = connection.execute("SELECT rolsuper FROM pg_roles WHERE rolname = current_user").fetchone()
        words = connection.execute("SELECT word FROM (VALUES ('b'), ('B'), ('a')) AS t(word) ORDER BY word").fetchall()

    assert superuser == (False,)
    assert words == [("a",), ("b",), ("B",)]


def test_a_removed_server_leaves_nothing(server: PostgresServer) -> None:
    segment = (server.data / "postmaster.pid").read_text().splitlines()[6].split()[1]
    server.kill()
    assert segment in shared_memory()

    server.remove()

    assert not server.folder.exists()
    assert segment not in shared_memory()


def test_a_promoted_standby_has_what_was_committed_and_accepts_more(pair: PostgresPair) -> None:
    with psycopg.connect(pair.url) as connection:
        assert connection.info.port == pair.primary.port
        connection.execute("CREATE TABLE numbers AS SELECT 1 AS number")

    pair.fail_over()

    with psycopg.connect(pair.url) as connection:
        assert connection.info.port == pair.standby.port
        connection.execute("INSERT INTO numbers VALUES (2)")
    assert numbers(pair) == [1, 2]


def test_a_commit_waits_for_the_standby(pair: PostgresPair) -> None:
    pair.standby.kill()
    with (
        psycopg.connect(pair.url, autocommit=True) as connection,
        psycopg.connect(pair.primary.admin_url, autocommit=True) as admin,
        ThreadPoolExecutor() as threads,
    ):
        commit = threads.submit(connection.execute, "CREATE TABLE numbers AS SELECT 1 AS number")
        waiting = "SELECT FROM pg_stat_activity WHERE pid = %s AND wait_event = 'SyncRep'"
        eventually(lambda: admin.execute(waiting, (connection.info.backend_pid,)).fetchall())
        assert not commit.done()

        pair.standby.start()

        commit.result(DEADLINE_S)
    pair.fail_over()
    assert numbers(pair) == [1]


def test_a_pooler_gives_a_connection_to_another_client_after_each_transaction(postgres_server: PostgresServer) -> None:
    with PgBouncer(postgres_server) as pooler, ExitStack() as clients:
        pooler.start()
        backends = set()
        for _ in range(5):
            client = clients.enter_context(psycopg.connect(pooler.url))
            backends.add(client.execute("SELECT pg_backend_pid()").fetchone())
            client.commit()

    assert len(backends) <= 2  # as many as the pool has
