"""PostgreSQL on a disk that is full: that of the tables, or that of the write-ahead log."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Claim
from magent2.bus.postgres import PostgresBus
from magent2.bus.records import NewRecord
from magent2.errors import Magent2Error, StorageFull
from tests.support.audit import append_findings, assert_clean, whole_log
from tests.support.gateway import message, serve_gateway
from tests.support.numbered_appends import append_id
from tests.support.postgres_server import FAST, ROLE, PostgresServer
from tests.support.small_disk import fill_disk, small_disk

pytestmark = pytest.mark.postgres

TOPICS = ("note:a", "note:b")
TABLES_DISK, WAL_DISK = "8m", "40m"  # a segment of the write-ahead log has 16 MB
APPENDS_MAX = 5000
RETRY_S = 0.5


def long_text(n: int) -> str:
    """A text that the server cannot store in fewer bytes."""
    return random.Random(n).randbytes(10_000).hex()


def append(n: int) -> Append:
    return Append(records=tuple(NewRecord(topic, {"text": long_text(n)}, append_id("w", n)) for topic in TOPICS))


def fill(bus: Engine) -> tuple[int, Magent2Error]:
    """Append until it is refused. Return how many appends were acknowledged, and the refusal."""
    for n in range(1, APPENDS_MAX):
        try:
            bus.call(append(n))
        except Magent2Error as refusal:
            return n - 1, refusal
    pytest.fail("the disk never was full")


def assert_has_exactly(bus: Engine, appends: int) -> None:
    logs = {topic: whole_log(bus, topic) for topic in TOPICS}
    assert_clean(append_findings(logs, [append_id("w", n) for n in range(1, appends + 1)]))
    assert [len(records) for records in logs.values()] == [appends] * len(TOPICS)


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    with PostgresServer(FAST) as server:
        server.create()
        yield server


@pytest.fixture
def tables_disk(server: PostgresServer) -> Iterator[Path]:
    """The disk of a running server with the tables of the log, and nothing else."""
    folder = server.folder / "tables"
    folder.mkdir()
    shutil.chown(folder, server.folder.owner(), server.folder.group())
    with small_disk(folder, TABLES_DISK):
        server.start()
        with psycopg.connect(server.admin_url, autocommit=True) as admin:
            admin.execute(f"CREATE TABLESPACE small LOCATION '{folder}'")
            admin.execute(f"GRANT CREATE ON TABLESPACE small TO {ROLE}")
            admin.execute(f"ALTER ROLE {ROLE} SET default_tablespace = small")
        yield folder
        server.stop()


def test_a_full_disk_refuses_appends_whole_and_takes_them_when_it_has_room(
    server: PostgresServer, tables_disk: Path
) -> None:
    bus = PostgresBus(server.url)
    bus.call(Append(records=(NewRecord("chat:Ada", {"conversation_id": "c1"}),)))
    fill_disk(tables_disk / "ballast")

    acknowledged, refusal = fill(bus)

    assert isinstance(refusal, StorageFull)
    assert "no space left; free space" in str(refusal)
    assert_has_exactly(bus, acknowledged)  # reads go on
    (tables_disk / "ballast").unlink()
    assert bus.call(append(acknowledged + 1)).seqs == (acknowledged + 1,) * 2
    assert_has_exactly(bus, acknowledged + 1)
    assert len(bus.call(Claim(worker="w1", agents=("Ada",), limit=1, lease_s=60.0)).lanes) == 1
    bus.close()


async def test_a_gateway_answers_507_until_there_is_room(server: PostgresServer, tables_disk: Path) -> None:
    bus = PostgresBus(server.url)
    async with serve_gateway(bus) as house:
        assert (await house.client.post("/send", json=message(long_text(1), id="m1"))).status_code == 200
        fill_disk(tables_disk / "ballast")
        taken, refused = 1, await house.client.post("/send", json=message(long_text(2), id="m2"))
        while refused.status_code == 200:  # pages that the tables have already take some more
            taken += 1
            refused = await house.client.post("/send", json=message(long_text(taken + 1), id=f"m{taken + 1}"))

        assert (refused.status_code, refused.json()["code"]) == (507, "storage_full")
        assert refused.headers["retry-after"] == "1"
        assert (await house.client.get("/ready")).status_code == 503
        page = (await house.client.get("/api/sdk/session/one/events", params={"format": "record"})).json()
        assert len(page["events"]) == taken

        (tables_disk / "ballast").unlink()
        again = await house.client.post("/send", json=message(long_text(taken + 1), id=f"m{taken + 1}"))
        assert again.status_code == 200
    assert [record.payload["id"] for record in whole_log(bus, "chat:Ada")] == [f"m{n}" for n in range(1, taken + 2)]
    await bus.aclose()


def test_a_full_disk_of_the_write_ahead_log_ends_the_server_and_loses_nothing(server: PostgresServer) -> None:
    """PostgreSQL cannot go on without its write-ahead log: it stops, and an operator frees space and starts it."""
    wal = server.data / "pg_wal"
    kept = wal.rename(server.folder / "pg_wal")
    wal.mkdir(mode=0o700)
    shutil.chown(wal, server.folder.owner(), server.folder.group())
    with small_disk(wal, WAL_DISK):
        for entry in kept.iterdir():
            shutil.copytree(entry, wal / entry.name) if entry.is_dir() else shutil.copy(entry, wal)
        for entry in wal.rglob("*"):
            shutil.chown(entry, server.folder.owner(), server.folder.group())
        server.start()
        bus = PostgresBus(server.url, retry_for_s=RETRY_S)
        bus.call(append(1))
        server.suspend_wal_writer()  # if it found the disk full, the bus would only see that the server has ended
        fill_disk(wal / "ballast")

        acknowledged, refusal = fill(bus)

        assert isinstance(refusal, StorageFull)
        assert "No space left on device" in server.tail()
        server.kill()  # what is left of it
        (wal / "ballast").unlink()
        server.start()
        assert bus.call(append(acknowledged + 1)).seqs == (acknowledged + 1,) * 2
        assert_has_exactly(bus, acknowledged + 1)
        bus.close()
        server.stop()
