"""Faults of the file, the disk and other processes, and the errors that the SQLite engine raises for them."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Claim, Erase, Info, Read
from magent2.bus.records import NewRecord
from magent2.bus.sqlite import SqliteBus
from magent2.bus.sqlite_engine import writer as sqlite_writer
from magent2.bus.sqlite_engine.file_lock import FileLock
from magent2.errors import (
    BusUnavailable,
    InvalidInput,
    Magent2Error,
    MalformedRecord,
    SchemaTooNew,
    StorageCorrupt,
    StorageFull,
    StorageUnwritable,
)
from tests.support.audit import append_findings, assert_clean, whole_log
from tests.support.numbered_appends import append_id, numbered_append
from tests.support.processes import ProcessGroup

OPENER = "tests.integration.children.file_opener"
FULL_DISK = "tests.integration.children.full_disk"
READER = "tests.integration.children.unprivileged"

TOPIC = "stream:one"
TOPICS = ("stream:one", "history:one", "chat:one")
PAGES_MAX = 60
LARGE_CHARS = 5_000
APPENDS_MAX = 1000
OPENERS = 4
OPENINGS = 3


def put(n: int = 1) -> Append:
    return Append(records=(NewRecord(TOPIC, {"n": n}, f"id-{n}"),))


def large_append(n: int) -> Append:
    return numbered_append(TOPICS, "w", n, LARGE_CHARS)


def open_and_write(path: Path) -> None:
    bus = SqliteBus(path)
    try:
        bus.call(put())
    finally:
        bus.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def bus(path: Path) -> Iterator[Engine]:
    engine = SqliteBus(path)
    yield engine
    engine.close()


# --- places where no log can be


def test_a_folder_that_is_a_file_is_unwritable(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StorageUnwritable, match="file"):
        open_and_write(tmp_path / "file" / "log.db")


def test_a_file_that_is_a_folder_is_unwritable(tmp_path: Path) -> None:
    with pytest.raises(StorageUnwritable):
        open_and_write(tmp_path)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a file system where not even root can write")
def test_a_file_system_that_takes_no_files_is_unwritable() -> None:
    with pytest.raises(StorageUnwritable, match="/proc"):
        open_and_write(Path("/proc/log.db"))


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter."""
    folder = Path(tempfile.mkdtemp(prefix="magent2-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("what", ["file", "folder", "all"])
def test_a_read_only_file_is_reported_as_unwritable(open_folder: Path, process_group: ProcessGroup, what: str) -> None:
    """The child runs as a user without rights, because root could write anyway."""
    path = open_folder / "log.db"
    open_and_write(path)
    for file in open_folder.iterdir():
        file.chmod(0o444 if what != "folder" else 0o666)
    open_folder.chmod(0o777 if what == "file" else 0o555)

    child = process_group.spawn(READER, path=str(path))

    assert child.next_report()["error"] == "StorageUnwritable"


# --- files that are no log


def test_a_file_of_another_kind_is_corrupt_and_stays_as_it_is(path: Path) -> None:
    path.write_bytes(b"Dear diary, today I was no database. " * 300)
    before = path.read_bytes()

    with pytest.raises(StorageCorrupt, match=r"log\.db"):
        open_and_write(path)

    assert path.read_bytes() == before


def test_the_database_of_another_program_stays_as_it_is(path: Path) -> None:
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE plants (name TEXT)")
    other.close()

    with pytest.raises(StorageCorrupt, match=r"log\.db"):
        open_and_write(path)

    with sqlite3.connect(path) as other:
        assert other.execute("SELECT name FROM sqlite_master").fetchall() == [("plants",)]
    other.close()


def test_damage_inside_the_file_is_found(path: Path) -> None:
    bus = SqliteBus(path)
    for n in range(1, 50):
        bus.call(large_append(n))
    bus.close()
    damage(path)

    with pytest.raises(StorageCorrupt, match=r"log\.db"):
        read_everything(path)


def damage(path: Path) -> None:
    """Overwrite all but the first pages with random bytes."""
    content = bytearray(path.read_bytes())
    content[4096 * 4 :] = os.urandom(len(content) - 4096 * 4)
    path.write_bytes(content)


def read_everything(path: Path) -> None:
    bus = SqliteBus(path)
    try:
        for topic in TOPICS:
            whole_log(bus, topic)
    finally:
        bus.close()


def test_a_log_of_a_newer_release_is_refused_and_stays_as_it_is(path: Path) -> None:
    open_and_write(path)
    with sqlite3.connect(path) as other:
        other.execute("UPDATE meta SET value = '999' WHERE key = 'schema'")
    other.close()

    with pytest.raises(SchemaTooNew, match="999"):
        open_and_write(path)

    with sqlite3.connect(path) as other:
        assert other.execute("SELECT value FROM meta WHERE key = 'schema'").fetchone() == ("999",)
    other.close()


# --- a full disk


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the number of pages of the database: SQLite then raises the same errors as on a full disk."""
    really_connect = sqlite3.connect

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = really_connect(*arguments, **options)
        connection.execute(f"PRAGMA max_page_count={PAGES_MAX}")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect)


@pytest.mark.usefixtures("small_disk")
def test_a_full_disk_leaves_no_partial_append(path: Path) -> None:
    bus = SqliteBus(path)

    taken = fill(bus)

    logs = {topic: whole_log(bus, topic) for topic in TOPICS}
    assert_clean(append_findings(logs, [append_id("w", n) for n in range(1, taken + 1)]))
    assert [len(records) for records in logs.values()] == [taken] * 3
    bus.close()


def fill(bus: Engine) -> int:
    """Append to three topics until the disk is full; return the number of appends that succeeded."""
    for n in range(1, APPENDS_MAX):
        try:
            bus.call(large_append(n))
        except StorageFull:
            return n - 1
    pytest.fail("the disk never was full")


def test_a_disk_that_fills_up_and_gets_room_again_loses_nothing(path: Path, process_group: ProcessGroup) -> None:
    """The operating system limits the size of the file, which stops SQLite in the middle of a write."""
    child = process_group.spawn(FULL_DISK, path=str(path), topics=TOPICS, text_chars=LARGE_CHARS)

    report = child.next_report()

    assert child.finish() == 0, child.errors()
    assert report["error"] in ("StorageFull", "StorageError")
    bus = SqliteBus(path)
    logs = {topic: whole_log(bus, topic) for topic in TOPICS}
    assert_clean(append_findings(logs, report["acknowledged"]))
    assert len(logs[TOPIC]) == len(report["acknowledged"])
    bus.close()


# --- written around the engine


FOREIGN = {"not JSON": b"not JSON", "no object": b"[1]", "not UTF-8": b'{"n":"\xff"}', "nothing": b""}


def spoil(path: Path, topic: str, seq: int, body: bytes) -> None:
    with sqlite3.connect(path) as other:
        changed = other.execute(
            "UPDATE records SET payload = ? WHERE rid = (SELECT tid << 36 | ? FROM topics WHERE name = ?)",
            (body, seq, topic),
        )
        assert changed.rowcount == 1
    other.close()


@pytest.mark.parametrize("body", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_record_written_around_the_engine_is_named_and_can_be_erased(bus: Engine, path: Path, body: bytes) -> None:
    for n in (1, 2, 3):
        bus.call(put(n))
    spoil(path, TOPIC, 2, body)

    with pytest.raises(MalformedRecord, match="erase") as caught:
        bus.call(Read(TOPIC, 1))
    assert caught.value.seq == 2
    assert [record.seq for record in bus.call(Read(TOPIC, 2)).records] == [3]
    assert bus.call(Erase(TOPIC, (2,))) == 1
    assert [(record.seq, record.erased) for record in whole_log(bus, TOPIC)] == [(1, False), (2, True), (3, False)]


def test_malformed_mail_can_be_claimed_and_buried(bus: Engine, path: Path) -> None:
    for _ in range(2):
        bus.call(Append(records=(NewRecord("chat:Ada", {"conversation_id": "one"}),)))
    spoil(path, "chat:Ada", 2, b"not JSON")

    lanes = bus.call(Claim(worker="w1", agents=("Ada",), limit=10, lease_s=60.0)).lanes

    mail = [record for lane in lanes for record in lane.mail]
    assert [(record.seq, bool(record.malformed)) for record in mail] == [(1, False), (2, True)]


# --- several processes, and after the end


def test_processes_that_open_a_new_file_at_the_same_moment_share_one_log(
    tmp_path: Path, process_group: ProcessGroup
) -> None:
    paths = [tmp_path / f"log-{number}.db" for number in range(OPENINGS)]
    openers = [
        process_group.spawn(OPENER, name=f"w{number}", paths=[str(path) for path in paths]) for number in range(OPENERS)
    ]
    for opener in openers:
        opener.next_report()

    for path in paths:
        for opener in openers:
            opener.write_line("go")
        log_ids = {opener.next_report()["log_id"] for opener in openers}

        bus = SqliteBus(path)
        assert log_ids == {bus.call(Info()).log_id}
        assert {record.id for record in whole_log(bus, TOPIC)} == {append_id(f"w{n}", 1) for n in range(OPENERS)}
        bus.close()


def test_a_process_that_does_not_let_go_of_the_file_is_reported_and_then_forgotten(
    bus: Engine, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_writer, "LOCK_WAIT_MAX_S", 0.1)
    other = FileLock(path.with_name(path.name + ".lock"))
    other.acquire()
    operation = put(1)

    with pytest.raises(BusUnavailable, match=r"log\.db"):
        bus.call(operation)
    assert whole_log(bus, TOPIC) == []  # reading needs no lock
    other.release()

    assert bus.call(operation).seqs == (1,)
    other.close()


def test_a_closed_bus_raises_a_named_error(path: Path) -> None:
    bus = SqliteBus(path)
    bus.call(put())
    bus.close()
    bus.close()

    with pytest.raises(Magent2Error, match="closed"):
        bus.call(put(2))
    with pytest.raises(Magent2Error, match="closed"):
        asyncio.run(bus.acall(put(2)))


async def test_an_operation_submitted_just_before_the_bus_closes_is_refused(path: Path) -> None:
    bus = SqliteBus(path)
    waiting = asyncio.ensure_future(bus.acall(put()))
    await asyncio.sleep(0)  # the task has submitted its operation; the loop has not passed it to the writer thread yet
    closing = threading.Thread(target=bus.close)
    closing.start()
    closing.join()

    with pytest.raises(InvalidInput, match="closed"):
        await asyncio.wait_for(waiting, 10)


def test_a_file_that_was_removed_is_created_again(path: Path) -> None:
    bus = SqliteBus(path)
    bus.call(put(1))
    bus.close()
    path.unlink()

    bus = SqliteBus(path)

    assert bus.call(numbered_append(TOPICS, "w", 1)).seqs == (1, 1, 1)
    bus.close()
