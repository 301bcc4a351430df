"""The PostgreSQL engine against the conformance suite, on a real server."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import sql

from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Claim, Describe, Operation
from magent2.bus.postgres import READS, PostgresBus
from magent2.bus.postgres_engine import lanes
from magent2.bus.postgres_engine.clock import LogClock
from magent2.bus.postgres_engine.connection import Connection, PostgresAddress
from magent2.bus.postgres_engine.writes import WriteGroup
from magent2.bus.records import NewRecord
from magent2.settings import PAYLOAD_MAX_BYTES
from tests.contracts.bus import BusContract
from tests.contracts.bus.driver import EngineOpener
from tests.support.postgres_server import TABLES, PostgresServer, Schemas


def rows_read(connection: Connection) -> int:
    """Return how many entries of indexes and rows of tables the server has read, in this transaction or just before."""
    rows = connection.execute(
        "SELECT sum(pg_stat_get_xact_tuples_returned(oid)) FROM pg_class"
        " WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'i')"
    )
    (count,) = rows.fetchone() or (0,)
    return int(count)


@pytest.mark.postgres
class TestPostgresBus(BusContract):
    schema = 1
    persistent = True
    shared = True
    one_driver = True

    @pytest.fixture
    def opener(self, postgres_server: PostgresServer, postgres_schemas: Schemas) -> EngineOpener:
        self.url = postgres_server.url
        self.schemas: dict[str, str] = {}

        def open_log(name: str) -> Engine:
            if name not in self.schemas:
                self.schemas[name] = postgres_schemas.new_name()
            return PostgresBus(self.url, prefix=self.schemas[name])

        return open_log

    def _execute(self, statement: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(sql.SQL("SET search_path = {}").format(sql.Identifier(self.schemas["main"])))
            connection.execute(statement)

    def append_malformed(self, engine: Engine, topic: str) -> None:
        engine.call(Append(records=(NewRecord(topic, {"conversation_id": "c1"}, "spoiled"),)))
        self._execute("UPDATE records SET payload = 'not JSON' WHERE id = 'spoiled'")

    def count_work(self, engine: Engine, operation: Operation[Any]) -> int:
        """Count the entries of indexes and the rows of tables that the server reads in this transaction.

        Rows that earlier tests have deleted from the same tables do not count: they are vacuumed first.
        """
        self._execute(f"VACUUM {', '.join(TABLES)}")
        address = PostgresAddress.parse(self.url, self.schemas["main"])
        with closing(address.connect()) as connection, connection.transaction():
            if isinstance(operation, Claim):
                lanes.claim(connection, operation, LogClock())
            else:
                READS[type(operation)](connection, operation)
            return rows_read(connection)

    def jump_clock(self, seconds: float) -> None:
        """Change the offset to the server's clock: the engine sees the same sum as when the clock itself is set."""
        self._execute(f"UPDATE clock SET ahead_ms = ahead_ms + {round(seconds * 1000)}")


@pytest.mark.postgres
def test_an_append_reads_no_whole_table_although_all_were_empty_when_its_plan_was_made(
    postgres_schemas: Schemas, postgres_server: PostgresServer
) -> None:
    schema = postgres_schemas.new_name()
    with closing(PostgresBus(postgres_server.url, prefix=schema)) as bus:
        bus.call(Describe(("stream:a",)))  # creates the tables
    with closing(PostgresAddress.parse(postgres_server.url, schema).connect()) as connection:

        def append(*topics: str) -> int:
            group = WriteGroup(PAYLOAD_MAX_BYTES)
            group.add(Append(records=tuple(NewRecord(topic, {}, f"in {topic}") for topic in topics)))
            with connection.transaction():  # between two of them, the server may reset what it has counted
                before = rows_read(connection)
                group.run(connection, LogClock())
                return rows_read(connection) - before

        connection.execute("VACUUM ANALYZE topics, records, old_ids")
        append("stream:first")
        few = append("stream:second")
        append(*(f"stream:{number}" for number in range(500)))
        assert append("stream:last") <= 2 * few


@pytest.mark.postgres
def test_an_id_is_looked_up_by_its_index_although_topics_were_short_when_the_plan_was_made(
    postgres_schemas: Schemas, postgres_server: PostgresServer
) -> None:
    schema = postgres_schemas.new_name()
    with closing(PostgresBus(postgres_server.url, prefix=schema)) as bus:
        bus.call(Describe(("stream:a",)))  # creates the tables
    with closing(PostgresAddress.parse(postgres_server.url, schema).connect()) as connection:

        def append(*records: tuple[str, str]) -> int:
            group = WriteGroup(PAYLOAD_MAX_BYTES)
            group.add(Append(records=tuple(NewRecord(topic, {}, name) for topic, name in records)))
            with connection.transaction():
                before = rows_read(connection)
                group.run(connection, LogClock())
                return rows_read(connection) - before

        append(*((f"stream:{number}", f"the first record of {number}") for number in range(200)))
        connection.execute("ANALYZE topics, records, old_ids")
        few = append(("stream:a", "first"))
        append(*(("stream:a", str(number)) for number in range(500)))
        assert append(("stream:a", "last")) <= 2 * few
