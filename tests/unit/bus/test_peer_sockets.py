"""Processes of one SQLite log tell each other of commits by datagrams, and by polling where they cannot."""

from __future__ import annotations

import socket
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from magent2.bus.sqlite import SqliteBus
from magent2.bus.sqlite_engine import poll
from magent2.bus.sqlite_engine.peer_sockets import FOLDER_SUFFIX, SocketFolder
from tests.support.waiting import DEADLINE_S, eventually

TOPIC = "stream:a"
NEVER_S = 3600.0

Opener = Callable[[], SqliteBus]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def opener(path: Path) -> Iterator[Opener]:
    """Opens engines that know as little of each other as those of two processes."""
    opened: list[SqliteBus] = []

    def one() -> SqliteBus:
        opened.append(SqliteBus(path))
        return opened[-1]

    yield one
    for bus in opened:
        bus.close()


def sockets(path: Path) -> list[Path]:
    return list(path.with_name(path.name + FOLDER_SUFFIX).iterdir())


def append(bus: SqliteBus) -> None:
    bus.call(Append(records=(NewRecord(TOPIC, {}),)))


def check_notified(watcher: SqliteBus, writer: SqliteBus) -> None:
    with watcher.watch([TOPIC]) as watch:
        for _ in range(3):
            append(writer)

            assert watch.wait(DEADLINE_S) == {TOPIC}


def test_a_commit_is_reported_to_other_processes_without_polling(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll, "POLL_WITH_SOCKET_S", NEVER_S)

    check_notified(opener(), opener())


def test_a_commit_is_found_by_polling_where_no_socket_can_be_bound(path: Path, opener: Opener) -> None:
    path.with_name(path.name + FOLDER_SUFFIX).write_text("in the way of the folder")

    check_notified(opener(), opener())


def test_a_commit_of_a_process_that_did_not_send_its_datagrams_is_found_by_polling(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SocketFolder, "wake_others", lambda _: None)  # as if it were killed right after the commit

    check_notified(opener(), opener())


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a log with a long path is polled")
def test_a_log_with_a_long_path_has_sockets_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(poll, "POLL_WITH_SOCKET_S", NEVER_S)
    path = tmp_path / ("long" * 30) / "log.db"
    watcher, writer = SqliteBus(path), SqliteBus(path)

    check_notified(watcher, writer)
    watcher.close()
    writer.close()


def test_a_process_does_not_wake_itself(opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[str] = []
    monkeypatch.setattr(SocketFolder, "send", lambda _, name: sent.append(name))
    bus = opener()

    with bus.watch([TOPIC]) as watch:
        append(bus)
        assert watch.wait(DEADLINE_S) == {TOPIC}

    assert sent == []


def test_the_socket_of_a_killed_process_is_removed(path: Path, opener: Opener) -> None:
    bus = opener()
    with bus.watch([TOPIC]):
        dead = path.with_name(path.name + FOLDER_SUFFIX) / "1-dead"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as lost:
            lost.bind(str(dead))  # closing does not remove it

        eventually(lambda: not dead.exists())


def test_a_socket_that_refuses_once_is_not_removed(path: Path, opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process may be starting: the file of a socket exists before the socket is bound."""
    checks: list[str] = []

    with opener().watch([TOPIC]):
        (starting,) = sockets(path)

        def refuse_once(folder: SocketFolder) -> list[str]:
            if folder.name == starting.name:
                return []
            checks.append(folder.name)
            return [starting.name] if len(checks) == 1 else []

        monkeypatch.setattr(SocketFolder, "list_killed", refuse_once)
        with opener().watch([TOPIC]):
            eventually(lambda: len(checks) >= 2)

        assert starting.exists()


def test_a_socket_is_removed_before_it_is_closed(path: Path, opener: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[bool, list[str]]] = []
    close = socket.socket.close

    def look_and_close(closed: socket.socket) -> None:
        seen.append((bool(closed.getsockname()), [entry.name for entry in sockets(path)]))
        close(closed)

    bus = opener()
    with bus.watch([TOPIC]):
        monkeypatch.setattr(socket.socket, "close", look_and_close)
    bus.close()

    assert (True, []) in seen
    assert all(names == [] for is_bound, names in seen if is_bound)


def test_a_closed_log_leaves_no_socket(path: Path, opener: Opener) -> None:
    bus = opener()
    with bus.watch([TOPIC]):
        assert len(sockets(path)) == 1

    bus.close()

    assert sockets(path) == []


def test_only_the_owner_of_the_log_can_send_to_its_processes(path: Path, opener: Opener) -> None:
    with opener().watch([TOPIC]):
        (bound,) = sockets(path)

        assert stat.S_IMODE(bound.stat().st_mode) == 0o600
        assert stat.S_IMODE(bound.parent.stat().st_mode) == 0o700


def test_a_group_that_shares_the_log_can_send_to_its_processes(tmp_path: Path) -> None:
    tmp_path.chmod(0o2770)
    bus = SqliteBus(tmp_path / "log.db")
    with bus.watch([TOPIC]):
        (bound,) = sockets(tmp_path / "log.db")

        assert stat.S_IMODE(bound.stat().st_mode) == 0o660
        assert stat.S_IMODE(bound.parent.stat().st_mode) == 0o2770
    bus.close()


def test_a_watch_that_begins_while_the_last_thread_ends_has_a_socket(
    path: Path, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(poll, "LINGER_S", 0.0)
    monkeypatch.setattr(poll, "POLL_WITH_SOCKET_S", 0.001)
    watcher, writer = opener(), opener()

    for _ in range(50):
        with watcher.watch([TOPIC]) as watch:
            append(writer)
            assert watch.wait(DEADLINE_S) == {TOPIC}

    eventually(lambda: not sockets(path))
