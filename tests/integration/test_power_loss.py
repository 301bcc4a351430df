"""Power failures on SQLite: what is acknowledged is there afterwards, and nothing is there by half.

Each test records what the engine writes and syncs. Then it builds the disk that a power failure at some moment of the
record may leave (`tests/support/power_loss.py` says what is assumed), opens it with the engine, and compares it with
the reference model. `make soak` does so for every moment of every record.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from magent2 import private_files, token
from magent2.bus import sqlite as sqlite_bus
from magent2.bus import transfer
from magent2.bus.operations import (
    AnyOperation,
    Append,
    Claim,
    Compact,
    Delete,
    Erase,
    LastSeqIs,
    Later,
    OwnedAppend,
    PutBlob,
    Renew,
    Scrub,
    SetHead,
    Settle,
    Trim,
)
from magent2.bus.records import AppendResult, NewRecord
from magent2.bus.sqlite import SqliteBus
from magent2.bus.sqlite_engine import schema
from magent2.bus.sqlite_engine import writer as sqlite_writer
from magent2.bus.sqlite_engine.connection import WriteConnection
from magent2.bus.sqlite_engine.dispatch import run_group
from magent2.bus.sqlite_engine.writer import WriterThread
from magent2.bus.transfer import check_export, export_log
from magent2.bus.waiters import QueuedOperation
from magent2.token import TokenFile
from tests.support.disk_record import DiskRecord, FolderSynced, Written, recorded
from tests.support.old_log import content, write_old_log
from tests.support.power_loss_audit import (
    LEASE_S,
    Audit,
    Done,
    NotingWaiter,
    Plan,
    Recovered,
    Workload,
    WrongAfterPowerLoss,
    opened_after_reboot,
    sql_dump,
)

IN_EVERY_RUN = Plan(moments=45, chances=1)
EVERY_MOMENT = Plan(moments=None, chances=3)
SECRET = "xylophonequartz"  # a word that no file has by itself  # pragma: allowlist secret


def mail(agent: str, conversation: str, name: str, kind: str = "chat") -> NewRecord:
    return NewRecord(f"{kind}:{agent}", {"conversation_id": conversation, "text": name}, name)


def said(conversation: str, name: str, **options: Any) -> NewRecord:
    return NewRecord(f"stream:{conversation}", {"text": name}, name, **options)


def message(conversation: str, name: str, agent: str = "A") -> Append:
    """An append to two topics."""
    return Append(records=(said(conversation, name), mail(agent, conversation, name)))


def claim(worker: str, limit: int = 1) -> Claim:
    return Claim(worker=worker, agents=("A", "B"), limit=limit, lease_s=LEASE_S)


# --- what is recorded


@dataclass
class Scenario:
    """A record, and how to look at the files that a power failure leaves of it."""

    record: DiskRecord
    recover: Callable[[Path], Any]
    judge: Callable[[Sequence[Any], Any], None]
    log: Workload | None = None

    def audit(self, scratch: Path, plan: Plan) -> None:
        counts = Audit(self.record, scratch, self.recover, self.judge).run(plan)
        print(f"{counts}, undone claims: {self.log.undone_claims if self.log else 0}")  # for `pytest -rP`


@contextmanager
def workload(folder: Path, name: str = "log.db") -> Iterator[Workload]:
    """Record a log from its creation until it is closed. Checkpoints and returned pages come far more often."""
    folder.mkdir()
    often = patch.multiple(sqlite_writer, WAL_MAX_BYTES=128 << 10, DROPPED_ROWS_MIN=2)
    with often, recorded(folder) as record:
        log = Workload(record, folder / name)
        try:
            yield log
        finally:
            log.bus.close()
    record.check_complete()


def record_changes(folder: Path) -> Scenario:
    """Every kind of change, several in one commit, checkpoints, and a log that is closed and opened again."""
    with workload(folder) as log:
        titled = SetHead("stream:c1", {"owner": "ann", "title": "first"})
        log.do(replace(message("c1", "m1"), heads=(titled,)))
        log.do(PutBlob(b"attached" * 700))
        answered = NewRecord("stream:c1", {"text": "m2"}, "m2", blobs=tuple(log.blobs))
        log.do(Append(records=(answered, mail("A", "c1", "m2")), conditions=(LastSeqIs("stream:c1", 1),)))
        log.do(message("c2", "m3", "B"))
        (lane,) = log.do(claim("w1")).lanes
        log.do(OwnedAppend(owner=lane.owner, n=1, records=(said("c1", "t1", draft="d"), said("c1", "t2", draft="d"))))
        (other,) = log.do(claim("w2")).lanes
        log.do(Renew("w1", LEASE_S))
        log.do_together(*(message(f"c{number}", f"g{number}", "B") for number in range(3, 7)), claim("w1", 0))
        title = SetHead("stream:c1", {"title": "second"})
        end = said("c1", "answer", closes="d")
        log.do(Settle(owner=lane.owner, mail=(lane.mail[0].ref,), records=(end,), heads=(title,)))
        log.do(Later(owner=other.owner, delay_s=None))
        log.do(Append(records=(said("c4", "long"), NewRecord("stream:c4", {"text": "y" * 9000}))))
        log.do(Compact("stream:c1", min_age_s=0))
        log.do(Append(records=(mail("B", "c2", "stop", "control"),)))
        log.do(Trim("stream:c4", keep=1))
        log.do(Erase("stream:c5", (1,)))
        log.do(Delete(("stream:c6", "history:c6"), "c6"))
        log.reopen()
        log.do(claim("w3"))
        log.do(message("c1", "m9"))
        log.do(claim("w3", 2))
    moved = [event for event in log.record.events if isinstance(event, Written) and event.file == 1]
    assert len(moved) > 50, "there were no checkpoints"
    return Scenario(log.record, log.recover, log.judge, log)


def record_first_start(folder: Path) -> Scenario:
    """A log in a folder that does not exist yet, and its first messages."""
    with workload(folder, "data/logs/log.db") as log:
        log.do(message("c1", "m1"))
        log.do(message("c1", "m2"))
    return Scenario(log.record, log.recover, log.judge, log)


def record_migration(folder: Path) -> Scenario:
    """A log of schema 1 that is opened, migrated and appended to."""
    folder.mkdir()
    other = folder.with_name("other")
    other.mkdir()
    old = write_old_log(other)
    with closing(SqliteBus(old.with_name("new.db"))) as bus:
        expected = content(bus)
    shutil.copy(old, folder / "log.db")
    before = sql_dump(old)
    added = Append(records=(NewRecord("stream:late", {"text": "late"}, "late"),))
    with recorded(folder) as record, closing(SqliteBus(folder / "log.db")) as bus:
        record.note(Done("migrated"))
        bus.call(added)
        record.note(Done("appended"))
    record.check_complete()

    def recover(after: Path) -> tuple[int, bool, bool]:
        # Looked at in a copy: opening the file is the first step of its recovery.
        copied = after / "copy"
        copied.mkdir()
        for name in ("log.db", "log.db-wal"):
            if (after / name).exists():
                shutil.copy(after / name, copied)
        with closing(sqlite3.connect(copied / "log.db")) as connection:
            found = schema.schema_of(connection)
        saved = after / "log.db.bak-1"
        is_saved = saved.exists()
        assert not is_saved or sql_dump(saved) == before, "the copy is not complete"
        with opened_after_reboot(after / "log.db") as bus:
            has_added = bus.call(added).repeat
            bus.call(Delete(("stream:late",)))
            assert content(bus) == expected, "the log has another content"
        assert saved.exists(), "the log is migrated without a copy"
        sql_dump(after / "log.db")
        return found, is_saved, has_added

    def judge(notes: Sequence[Any], found: tuple[int, bool, bool]) -> None:
        schema_found, is_saved, has_added = found
        assert schema_found in (1, schema.SCHEMA)
        assert schema_found == 1 or is_saved, "the log is migrated without a copy"
        assert schema_found == schema.SCHEMA or Done("migrated") not in notes
        assert has_added or Done("appended") not in notes

    return Scenario(record, recover, judge)


def record_backup(folder: Path) -> Scenario:
    """Backups to a new folder and an export, each under a name that only a complete file has."""
    dumps: dict[str, str] = {}
    export = "log.jsonl"
    with workload(folder) as log:
        for number in (1, 2):
            log.do(message("c1", f"m{number}"))
            backup = f"backups/new/{number}.db"
            log.bus.backup(folder / backup)
            log.record.note(Done(backup))
            dumps[backup] = sql_dump(folder / backup)
        export_log(log.bus, folder / export)
        log.record.note(Done(export))
        log.do(message("c1", "m3"))

    def recover(after: Path) -> tuple[Recovered, set[str]]:
        there = {name for name in (*dumps, export) if (after / name).exists()}
        for name in there - {export}:
            assert sql_dump(after / name) == dumps[name], f"{name} is not complete"
        if export in there:
            check_export(after / export)
        found = log.recover(after)
        if "backups/new/1.db" not in there:
            with opened_after_reboot(after / "log.db") as bus:
                bus.backup(after / "backups/new/1.db")  # what the first attempt has left is not in the way
        return found, there

    def judge(notes: Sequence[Any], found: tuple[Recovered, set[str]]) -> None:
        log.judge(notes, found[0])
        missing = [name for name in (*dumps, export) if Done(name) in notes and name not in found[1]]
        assert not missing, f"{missing} are not there"

    return Scenario(log.record, recover, judge, log)


def record_scrub(folder: Path) -> Scenario:
    """A conversation that is deleted, and a scrub that removes its text from the storage."""
    with workload(folder) as log:
        for number in range(12):
            texts = {"text": f"{SECRET} {number} {'s' * 500}"}, {"text": f"kept {number} {'k' * 500}"}
            records = [NewRecord(f"stream:c{n}", text, f"m{number}") for n, text in enumerate(texts, 1)]
            copies = [NewRecord("chat:A", {"conversation_id": f"c{n}", **text}) for n, text in enumerate(texts, 1)]
            log.do_together(*(Append(records=pair) for pair in zip(records, copies, strict=True)))
        log.do(Delete(("stream:c1",), "c1"))
        log.record.note(Done("deleted"))
        assert log.bus.call(Scrub())
        log.record.note(Done("scrubbed"))
        log.do(message("c2", "later"))

    def has_text(after: Path) -> bool:
        return any(SECRET.encode() in path.read_bytes() for path in after.rglob("*") if path.is_file())

    def recover(after: Path) -> tuple[Recovered, bool, bool, bool]:
        found_text = has_text(after)
        with opened_after_reboot(after / "log.db") as bus:
            is_asked = bus._db.load_scrub().requests > 0
            assert not is_asked or bus.call(Scrub()), "the scrub cannot be made up for"
        is_removed = not has_text(after)
        return log.recover(after), found_text, is_asked, is_removed

    def judge(notes: Sequence[Any], found: tuple[Recovered, bool, bool, bool]) -> None:
        recovered, found_text, is_asked, is_removed = found
        log.judge(notes, recovered)
        assert not found_text or Done("scrubbed") not in notes, "the text is back after the scrub"
        assert not found_text or Done("deleted") not in notes or is_asked, "the scrub is forgotten"
        assert not is_asked or is_removed, "the scrub after the power failure has left text"

    return Scenario(log.record, recover, judge, log)


def record_token(folder: Path) -> Scenario:
    """The token of a gateway, in a new data folder: created, then replaced."""
    folder.mkdir()
    with recorded(folder) as record:
        tokens = [TokenFile.within(folder / "data").obtain()]
        record.note(Done(tokens[0]))
        tokens.append(TokenFile.within(folder / "data").rotate())
        record.note(Done(tokens[1]))

    def recover(after: Path) -> str | None:
        file = TokenFile.within(after / "data")
        found = file.read()
        assert found is None or found in tokens
        file.obtain()
        return found

    def judge(notes: Sequence[Any], found: str | None) -> None:
        if notes:
            assert found in tokens[len(notes) - 1 :], "the token is another one"

    return Scenario(record, recover, judge)


SCENARIOS: dict[str, Callable[[Path], Scenario]] = {
    "changes": record_changes,
    "first-start": record_first_start,
    "migration": record_migration,
    "backup": record_backup,
    "scrub": record_scrub,
    "token": record_token,
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_power_failure_loses_nothing_acknowledged_and_leaves_nothing_by_half(name: str, tmp_path: Path) -> None:
    SCENARIOS[name](tmp_path / "disk").audit(tmp_path, IN_EVERY_RUN)


@pytest.mark.soak
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_power_failure_of_a_record(name: str, tmp_path: Path) -> None:
    SCENARIOS[name](tmp_path / "disk").audit(tmp_path, replace(EVERY_MOMENT, seed=os.environ.get("ORDER", "")))


def test_a_claim_that_a_power_failure_undoes_leaves_its_lane_to_others(tmp_path: Path) -> None:
    with workload(tmp_path / "disk") as log:
        log.do(message("c1", "m1"))
        log.do(claim("w1"))
        claimed = len(log.record.events)
    log.record.events = log.record.events[:claimed]

    counts = Audit(log.record, tmp_path, log.recover, log.judge).run(Plan(moments=20, chances=1))

    # The state that `judge` compares has the mail of every lane that a worker can claim after the power failure.
    assert 0 < log.undone_claims < counts.failures


# --- deliberate breakage: the audit fails


def synchronous(mode: str) -> AbstractContextManager[object]:
    def choose(thread: WriterThread, synced: bool) -> None:
        thread._connection.execute(f"PRAGMA synchronous = {mode}")

    return patch.object(WriterThread, "_sync_commits", choose)


def acknowledged_first() -> AbstractContextManager[object]:
    real = WriterThread._run_group

    def run(thread: WriterThread, group: Sequence[QueuedOperation]) -> None:
        for _, waiter in group:
            if isinstance(waiter, NotingWaiter):
                waiter.acknowledge()
        real(thread, group)

    return patch.object(WriterThread, "_run_group", run)


def in_two_commits() -> AbstractContextManager[object]:
    """Each append of several records as two commits."""
    real = run_group

    def run(db: WriteConnection, operations: Sequence[AnyOperation]) -> list[object]:
        if len(operations) != 1 or not isinstance(operations[0], Append) or len(operations[0].records) < 2:
            return real(db, operations)
        (whole,) = operations
        assert isinstance(whole, Append)
        (first,) = real(db, [replace(whole, records=whole.records[:1], heads=())])
        db.execute("COMMIT")
        db.execute("BEGIN IMMEDIATE")
        (rest,) = real(db, [replace(whole, records=whole.records[1:], conditions=())])
        assert isinstance(first, AppendResult)
        assert isinstance(rest, AppendResult)
        return [AppendResult(first.seqs + rest.seqs)]

    return patch.object(sqlite_writer, "run_group", run)


def checkpoint_not_synced() -> AbstractContextManager[object]:
    real = WriterThread._checkpoint

    def checkpoint(thread: WriterThread, mode: str) -> bool:
        thread._connection.execute("PRAGMA synchronous = OFF")
        try:
            return real(thread, mode)
        finally:
            thread._connection.execute("PRAGMA synchronous = FULL")
            thread._synced = True

    return patch.object(WriterThread, "_checkpoint", checkpoint)


def folders_not_synced() -> AbstractContextManager[object]:
    return patch.object(private_files, "sync", lambda path: None)


def backup_not_synced() -> AbstractContextManager[object]:
    return patch.object(schema, "sync", lambda path: None)


def export_not_synced() -> AbstractContextManager[object]:
    return patch.object(transfer, "sync", lambda path: None)


def token_not_synced() -> AbstractContextManager[object]:
    return patch.object(token, "sync", lambda path: None)


def backup_under_its_name() -> AbstractContextManager[object]:
    """A backup that is written to its own name at once."""

    def write(connection: sqlite3.Connection, target: Path, *, replace: bool = False) -> None:
        private_files.make_folder(target.parent)
        connection.execute("VACUUM INTO ?", (str(target),))
        private_files.sync(target)
        private_files.sync(target.parent)

    return patch.object(sqlite_bus, "write_backup", write)


def migration_in_many_commits() -> AbstractContextManager[object]:
    return patch.object(schema, "transaction", lambda connection: nullcontext())


def migrated_before_the_copy() -> AbstractContextManager[object]:
    real = schema.write_backup

    def migrate(connection: sqlite3.Connection, path: Path) -> None:
        with closing(sqlite3.connect(path)) as old, patch.object(schema, "write_backup", lambda *_, **__: None):
            old.execute("BEGIN")
            old.execute("SELECT * FROM meta").fetchall()
            real_migrate(connection, path)
            old.execute("ROLLBACK")
        real(connection, Path(f"{path}.bak-1"), replace=True)

    real_migrate = schema.migrate
    return patch.object(schema, "migrate", migrate)


def scrub_without_checkpoint() -> AbstractContextManager[object]:
    return patch.object(WriterThread, "_checkpoint", lambda thread, mode: True)


BREAKAGES: dict[str, tuple[str, Callable[[], AbstractContextManager[object]], str]] = {
    "synchronous=OFF": ("changes", lambda: synchronous("OFF"), "is acknowledged|malformed|another one|as after no"),
    "synchronous=NORMAL": ("changes", lambda: synchronous("NORMAL"), "is acknowledged"),
    "acknowledged before the commit": ("changes", acknowledged_first, "is acknowledged"),
    "an append in two commits": ("first-start", in_two_commits, "as after no change"),
    "a checkpoint without sync": ("changes", checkpoint_not_synced, "is acknowledged|malformed|corrupt|as after no"),
    "folders not synced": ("first-start", folders_not_synced, "another one"),
    "a backup not synced": ("backup", backup_not_synced, "are not there"),
    "an export not synced": ("backup", export_not_synced, "are not there"),
    "a token not synced": ("token", token_not_synced, "another one"),
    "a backup under its name at once": ("backup", backup_under_its_name, "not complete|malformed|not a database"),
    "a migration in many commits": ("migration", migration_in_many_commits, "after a power failure|duplicate|no such"),
    "a migration before the copy": ("migration", migrated_before_the_copy, "without a copy"),
    "a scrub without checkpoint": ("scrub", scrub_without_checkpoint, "scrub is forgotten|text is back"),
}


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_the_audit_notices_an_engine_that_is_not_durable(breakage: str, tmp_path: Path) -> None:
    name, broken, noticed = BREAKAGES[breakage]
    with broken():
        scenario = SCENARIOS[name](tmp_path / "disk")

    with pytest.raises(WrongAfterPowerLoss, match=noticed):
        scenario.audit(tmp_path, IN_EVERY_RUN)


def test_the_audit_needs_the_folder_syncs_of_sqlite(tmp_path: Path) -> None:
    scenario = record_first_start(tmp_path / "disk")
    events = scenario.record.events
    scenario.record.events = [event for event in events if not isinstance(event, FolderSynced) or event.path == "."]
    assert len(scenario.record.events) < len(events)

    with pytest.raises(WrongAfterPowerLoss, match="another one"):
        scenario.audit(tmp_path, IN_EVERY_RUN)


def test_a_write_past_the_recorder_is_noticed(tmp_path: Path) -> None:
    with recorded(tmp_path) as record, closing(sqlite3.connect(tmp_path / "log.db")) as connection:
        connection.execute("CREATE TABLE recorded (value)")
    record.check_complete()
    with (tmp_path / "log.db").open("r+b") as file:
        file.write(b"changed")

    with pytest.raises(AssertionError, match="past the recorder"):
        record.check_complete()


def test_a_python_that_hides_its_sqlite_is_named(tmp_path: Path) -> None:
    script = """
import ctypes, sys
from pathlib import Path
from tests.support import disk_record
library = ctypes.CDLL(ctypes.util.find_library("c"))
ctypes.CDLL = lambda name: library
with disk_record.recorded(Path(sys.argv[1])):
    pass
"""
    command = [sys.executable, "-c", "import ctypes.util" + script, str(tmp_path)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, cwd=Path(__file__).parents[2])

    assert ended.returncode != 0
    assert "SKIP=power-loss" in ended.stderr
