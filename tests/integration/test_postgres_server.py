"""The PostgreSQL servers that tests start: made, stopped, killed and started again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from tests.support.postgres_server import PostgresServer, Schemas

pytestmark = pytest.mark.postgres


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    server = PostgresServer()
    server.start()
    yield server
    server.remove()


def numbers(server: PostgresServer) -> list[int]:
    with psycopg.connect(server.url) as connection:
        return [row[0] for row in connection.execute("SELECT number FROM numbers ORDER BY number")]


def ended(pid: int) -> bool:
    """Whether a process has ended, also if nobody has asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("Z")
    except FileNotFoundError:
        return True


def shared_memory() -> set[str]:
    """The numbers of the shared memory segments of this machine."""
    return {line.split()[1] for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}


def test_a_killed_server_comes_back_with_what_was_committed(server: PostgresServer) -> None:
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("CREATE TABLE numbers (number int)")
        connection.execute("INSERT INTO numbers VALUES (1), (2)")
        processes = (server.pid, connection.info.backend_pid)

        server.kill()

        with pytest.raises(psycopg.OperationalError):
            connection.execute("INSERT INTO numbers VALUES (3)")
    assert all(ended(pid) for pid in processes)
    server.start()
    assert numbers(server) == [1, 2]
    assert "was not properly shut down; automatic recovery in progress" in server.tail()


def test_a_restarted_server_keeps_its_data_and_its_port(server: PostgresServer) -> None:
    with psycopg.connect(server.url) as connection:
        connection.execute("CREATE TABLE numbers AS SELECT 1 AS number")
    url = server.url

    server.restart()

    assert server.url == url
    assert numbers(server) == [1]
    assert "automatic recovery" not in server.tail()


def test_the_shared_server_separates_logs_by_schema(postgres_server: PostgresServer, postgres_schemas: Schemas) -> None:
    first, second = (parse_qs(urlsplit(postgres_schemas.new_url()).query)["prefix"][0] for _ in range(2))
    with psycopg.connect(postgres_server.url) as connection:
        connection.execute(f"CREATE SCHEMA {first}")
        connection.execute(f"CREATE TABLE {first}.numbers (number int)")

    postgres_schemas.drop()

    assert first != second
    with psycopg.connect(postgres_server.url) as connection:
        assert connection.execute("SELECT to_regnamespace(%s)", (first,)).fetchone() == (None,)


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
