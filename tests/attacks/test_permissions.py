"""Another local user reads nothing of the data folder, and cannot hold the locks of the log."""

from __future__ import annotations

import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.bus.connect import connect
from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from magent2.bus.sqlite import FILE_SUFFIXES, SqliteBus
from magent2.bus.transfer import backup, export_log
from magent2.settings import Settings
from magent2.token import TokenFile
from tests.support.command_line import CommandLine

OTHER_UID = 65_534
ATTACK_DEADLINE_S = 30.0

# Becomes another user, reads every file and takes every lock that it can, and prints those with which it succeeded.
# The interpreter may be in a folder that only root can enter, so the process changes its user after its imports.
ATTACK = """
import fcntl, json, os, sys
os.setgroups([])
os.setresgid(*[int(sys.argv[1])] * 3)
os.setresuid(*[int(sys.argv[1])] * 3)
read, locked = [], []
for path in sys.argv[2:]:
    try:
        handle = os.open(path, os.O_RDONLY)
    except PermissionError:
        continue
    read.append(path)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        continue
    locked.append(path)
print(json.dumps({"read": read, "locked": locked}))
"""


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter, unlike those that pytest makes."""
    folder = Path(tempfile.mkdtemp(prefix="magent2-open-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def usual_umask() -> Iterator[None]:
    """Run with the umask of most systems, so that the modes are those that the program asks for."""
    old = os.umask(0o022)
    yield
    os.umask(old)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def files_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def attack(folder: Path) -> dict[str, list[str]]:
    """Attack as another user. It is told the names of the files: it may guess them."""
    if os.geteuid() != 0:
        pytest.skip("only root can start a process of another user; the modes are checked by the other tests")
    done = subprocess.run(
        [sys.executable, "-I", "-c", ATTACK, str(OTHER_UID), *map(str, files_in(folder))],
        capture_output=True,
        text=True,
        check=True,
        timeout=ATTACK_DEADLINE_S,
    )
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def fill(data_dir: Path) -> SqliteBus:
    """Make all that a data folder can contain, with a write-ahead log that is in use."""
    bus = connect(settings=Settings(bus_url=None, data_dir=data_dir))
    assert isinstance(bus, SqliteBus)
    bus.call(Append(records=(NewRecord("chat:c1", {"text": "a secret"}),)))
    backup(bus, data_dir / "backups" / "copy.db")
    export_log(bus, data_dir / "log.jsonl")
    TokenFile.within(data_dir).obtain()
    return bus


@pytest.mark.usefixtures("usual_umask")
def test_another_user_can_read_and_lock_nothing_that_magent2_creates(open_folder: Path) -> None:
    data_dir = open_folder / "data"
    bus = fill(data_dir)
    try:
        files = {path.name for path in files_in(data_dir)}
        assert {"magent2.db", "magent2.db-wal", "magent2.db-shm", "magent2.db.lock", "magent2.db.lock.waiting"} < files
        assert attack(data_dir) == {"read": [], "locked": []}
        data_dir.chmod(0o755)  # the files are private even in a folder that others can enter
        assert attack(data_dir) == {"read": [], "locked": []}
    finally:
        bus.close()


@pytest.mark.usefixtures("usual_umask")
def test_all_that_magent2_creates_is_private(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    bus = fill(data_dir)
    try:
        assert mode(data_dir) == mode(data_dir / "backups") == 0o700
        assert {path.name: oct(mode(path)) for path in files_in(data_dir) if mode(path) != 0o600} == {}
    finally:
        bus.close()


@pytest.mark.usefixtures("usual_umask")
def test_wider_modes_of_an_earlier_release_are_narrowed_when_the_log_is_opened(
    open_folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    data_dir = open_folder / "data"
    settings = Settings(bus_url=None, data_dir=data_dir)
    holder = connect(settings=settings)  # keeps the write-ahead log in place, as a process of the earlier release does
    TokenFile.within(data_dir).obtain()
    data_dir.chmod(0o755)
    for path in files_in(data_dir):
        path.chmod(0o644)
    with caplog.at_level(logging.WARNING, "magent2"):
        bus = connect(settings=settings)
        TokenFile.within(data_dir).obtain()
    try:
        assert mode(data_dir) == 0o700
        assert [path.name for path in files_in(data_dir) if mode(path) != 0o600] == []
        assert [vars(record)["files"].count(",") + 1 for record in caplog.records] == [1, 5, 1]  # folder, log, token
        if os.geteuid() == 0:
            assert attack(data_dir) == {"read": [], "locked": []}
    finally:
        bus.close()
        holder.close()


@pytest.mark.usefixtures("usual_umask")
def test_a_folder_with_other_things_in_it_keeps_its_mode_and_the_log_in_it_is_private(open_folder: Path) -> None:
    (open_folder / "notes.txt").touch()
    connect(settings=Settings(bus_url=None, data_dir=open_folder)).close()
    assert mode(open_folder) == 0o755
    assert mode(open_folder / "magent2.db") == 0o600


@pytest.mark.usefixtures("usual_umask")
def test_an_empty_folder_for_all_users_keeps_its_mode(open_folder: Path) -> None:
    open_folder.chmod(0o1777)
    connect(settings=Settings(bus_url=None, data_dir=open_folder)).close()
    assert mode(open_folder) == 0o1777
    assert mode(open_folder / "magent2.db") == 0o600


@pytest.mark.usefixtures("usual_umask")
def test_a_folder_of_a_group_keeps_its_mode_and_shares_the_log_with_the_group_only(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o2770)
    bus = fill(folder)
    try:
        assert mode(folder) == 0o2770
        assert {path.name: oct(mode(path)) for path in folder.glob("magent2.db*") if mode(path) != 0o660} == {}
        assert mode(folder / "token") == 0o600
    finally:
        bus.close()


def test_doctor_reports_modes_that_it_cannot_narrow(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a file to another user")
    data_dir = tmp_path / "data"
    connect(settings=Settings(bus_url=None, data_dir=data_dir)).close()
    (data_dir / "unrelated").mkdir()  # so that the folder keeps its mode
    data_dir.chmod(0o755)
    (data_dir / "magent2.db").chmod(0o644)
    os.chown(data_dir / "magent2.db", OTHER_UID, -1)
    with CommandLine(data_dir) as commands:
        done = commands.run("doctor")
    found = [line for line in done.lines if "  modes  " in line]
    assert done.code == 1
    assert f"other users can use {data_dir}/magent2.db (mode 644)" in found[0]
    assert f"other users can enter {data_dir} (mode 755)" in found[1]


def test_every_file_of_a_log_is_known_by_its_suffix(tmp_path: Path) -> None:
    bus = SqliteBus(tmp_path / "log.db")
    try:
        assert {path.name for path in tmp_path.iterdir()} <= {f"log.db{suffix}" for suffix in FILE_SUFFIXES}
    finally:
        bus.close()
