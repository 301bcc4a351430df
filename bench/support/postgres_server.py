"""PostgreSQL servers for benchmarks, and hand-written code on them to compare with."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path

import orjson
import psycopg
from psycopg import sql

from bench.support.report import Envelope, Stopwatch
from tests.support.postgres_server import PostgresPair, PostgresServer

ROWS_PER_COMMIT = 100
# As an operator would set it: every commit is on disk. Checkpoints would hit one side only.
SETTINGS = {"shared_buffers": "256MB", "max_wal_size": "8GB", "checkpoint_timeout": "60min"}

_INSERT = "INSERT INTO raw_log (topic, payload) SELECT %b, payload FROM unnest(%b::text[]) AS r (payload) RETURNING seq"
CHANNEL = "raw_log"


@contextmanager
def postgres_server() -> Iterator[PostgresServer]:
    """A server that lives as long as the `with`."""
    server = PostgresServer(SETTINGS)
    try:
        server.start()
        yield server
    finally:
        with redirect_stdout(StringIO()):  # what the server has logged is of interest to tests only
            server.remove()


@contextmanager
def postgres_pair() -> Iterator[str]:
    """The URL of a primary with one synchronous standby."""
    pair = PostgresPair(SETTINGS)
    try:
        pair.start()
        yield pair.primary.url
    finally:
        with redirect_stdout(StringIO()):
            pair.remove()


def server_cpu_s(server: PostgresServer) -> float:
    """User and system CPU time of the server and its processes so far, with those that have ended."""
    ticks = 0
    for pid in (server.pid, *_children(server.pid)):
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except FileNotFoundError:  # it has ended since it was listed, and the server counts its time
            continue
        ticks += sum(map(int, fields[11:15] if pid == server.pid else fields[11:13]))
    return ticks / os.sysconf("SC_CLK_TCK")


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def drop_log(url: str, prefix: str) -> None:
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(prefix)))


def log_bytes(url: str, prefix: str) -> int:
    """Size of all tables of a log with their indexes."""
    with closing(psycopg.connect(url, autocommit=True)) as connection:
        row = connection.execute(
            "SELECT sum(pg_total_relation_size(c.oid)) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relkind = 'r'",
            (prefix,),
        ).fetchone()
    return int(row[0]) if row else 0


# --- hand-written code -------------------------------------------------------------------------------------------


def raw_log(url: str) -> psycopg.Connection:
    connection = psycopg.connect(url, autocommit=True)
    connection.execute(
        "CREATE TABLE IF NOT EXISTS raw_log"
        " (seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, payload text NOT NULL)"
    )
    return connection


def raw_insert_s(connection: psycopg.Connection, topic: str, batch: list[Envelope]) -> float:
    """Seconds to append all, so many rows per statement and commit."""
    with Stopwatch() as watch:
        for start in range(0, len(batch), ROWS_PER_COMMIT):
            rows = [orjson.dumps(item).decode() for item in batch[start : start + ROWS_PER_COMMIT]]
            connection.execute(_INSERT, (topic, rows), prepare=True)
    return watch.seconds


@asynccontextmanager
async def raw_notifications(url: str, arrived: Callable[[], None]) -> AsyncIterator[Callable[[str], Awaitable[object]]]:
    """A listener that reads each row of which it is notified, and a function that inserts a row and notifies of it."""
    raw_log(url).close()
    listener = await psycopg.AsyncConnection.connect(url, autocommit=True)
    reader = await psycopg.AsyncConnection.connect(url, autocommit=True)
    writer = await psycopg.AsyncConnection.connect(url, autocommit=True)
    await listener.execute(sql.SQL("LISTEN {}").format(sql.Identifier(CHANNEL)))

    async def listen() -> None:
        async for notification in listener.notifies():
            found = await reader.execute(
                "SELECT payload FROM raw_log WHERE seq = %s", (int(notification.payload),), prepare=True
            )
            for (payload,) in await found.fetchall():
                orjson.loads(payload)
                arrived()

    async def publish(payload: str) -> None:
        await writer.execute(
            "WITH added AS (INSERT INTO raw_log (topic, payload) VALUES ('raw', %s) RETURNING seq)"
            " SELECT pg_notify(%s, seq::text) FROM added",
            (payload, CHANNEL),
            prepare=True,
        )

    task = asyncio.create_task(listen())
    try:
        yield publish
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        for connection in (listener, reader, writer):
            await connection.close()
