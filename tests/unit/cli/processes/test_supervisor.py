"""What the supervisor decides: when a process is started again, what ends everything, how lines are printed."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

import pytest

from magent2.cli.options import GATEWAYS_MAX, ListenOptions
from magent2.cli.processes.channel import ProcessSettings, Report
from magent2.cli.processes.folder import SharedFolder
from magent2.cli.processes.supervisor import (
    FIRST_START_S,
    RESTART,
    STEADY_S,
    OutputLines,
    Slot,
    exit_text,
    start_program,
)
from magent2.errors import SettingsError
from magent2.gateway.limits import PROBE_CONNECTIONS
from magent2.gateway.limits.rate_limits import DEBT_BURSTS

SETTINGS = ProcessSettings(
    kind="worker",
    number=2,
    gateways=1,
    folder="/data/supervisor-x",
    listener=5,
    log_format="text",
    agents=("general",),
    model=None,
    config="team.toml",
    listen=ListenOptions("127.0.0.1", 8700, token="0123456789abcdef-token", trusted_proxies=("10.0.0.0/8",)),
    bus="redis://:secret@host/0",  # pragma: allowlist secret
)


def test_delays_double_up_to_a_limit_and_are_random_by_half() -> None:
    slot = Slot(SETTINGS)

    delays = [slot.next_delay_s(now=1.0, chance=0.0) for _ in range(10)]

    assert delays[:4] == [RESTART.first_s * factor for factor in (1, 2, 4, 8)]
    assert delays[-1] == RESTART.max_s
    assert slot.next_delay_s(now=1.0, chance=1.0) == RESTART.max_s / 2


def test_a_process_that_was_ready_for_long_starts_again_at_the_first_delay() -> None:
    slot = Slot(SETTINGS, failures=5, ready_at=100.0)

    assert slot.next_delay_s(now=100.0 + STEADY_S, chance=0.0) == RESTART.first_s
    assert slot.failures == 1


def test_a_process_that_was_ready_for_a_moment_has_failed_once_more() -> None:
    slot = Slot(SETTINGS, failures=5, ready_at=100.0)

    slot.next_delay_s(now=99.0 + STEADY_S, chance=0.0)

    assert slot.failures == 6


@pytest.mark.parametrize(
    ("starts", "after_s", "report", "ends_everything"),
    [
        (1, 1.0, Report(failure="bad", code=2), True),
        (1, FIRST_START_S + 1, Report(failure="bad", code=2), False),
        (2, 1.0, Report(failure="bad", code=2), False),
        (1, 1.0, None, False),
    ],
    ids=["first start", "later", "second start", "crash"],
)
def test_only_an_error_that_is_reported_at_the_first_start_ends_everything(
    starts: int, after_s: float, report: Report | None, ends_everything: bool
) -> None:
    slot = Slot(SETTINGS, starts=starts, started_at=10.0, failure=report)

    assert slot.fails_first_start(10.0 + after_s) is ends_everything


@pytest.mark.parametrize(("code", "text"), [(3, "exit code 3"), (-signal.SIGKILL, "SIGKILL"), (-60, "signal 60")])
def test_the_end_of_a_process_is_named(code: int, text: str) -> None:
    assert exit_text(code) == text


def test_lines_are_printed_whole_and_say_which_process_wrote_them(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    lines = OutputLines("worker-2", "text")

    lines.data_received(b"first\nsec")
    first = capsysbinary.readouterr().err
    lines.data_received(b"ond\n  indented\nunfinished")
    lines.connection_lost(None)

    assert first == b"[worker-2] first\n"
    assert capsysbinary.readouterr().err == b"[worker-2] second\n[worker-2]   indented\n[worker-2] unfinished\n"


def test_a_file_of_the_working_folder_does_not_hide_a_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "this.py").write_text("print('hidden')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/usr/local/bin", *sys.path])  # as a program that is on PATH has it

    code = start_program(["this"], (), 2).wait()

    assert (code, "Beautiful is better than ugly." in capfd.readouterr().out) == (0, True)


def test_lines_of_json_stay_json(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    OutputLines("worker-2", "json").data_received(b'{"text":"x"}\nSegmentation fault\n')

    assert capsysbinary.readouterr().err == b'{"text":"x"}\n[worker-2] Segmentation fault\n'


def test_settings_reach_the_process_unchanged_and_are_not_printed_with_secrets() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(SETTINGS.encode() + b"drain\n")

        assert ProcessSettings.receive(theirs) == SETTINGS
        assert theirs.recv(100) == b"drain\n"
    assert "secret" not in repr(SETTINGS)
    assert "0123456789abcdef" not in repr(SETTINGS)


def test_a_process_whose_supervisor_is_gone_gets_no_settings() -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(SETTINGS.encode()[:20])
    ours.close()

    with theirs, pytest.raises(EOFError):
        ProcessSettings.receive(theirs)


def test_the_folder_is_private_and_those_of_killed_supervisors_are_removed(tmp_path: Path) -> None:
    running = SharedFolder(tmp_path)
    killed = tmp_path / "supervisor-killed"
    killed.mkdir()
    (killed / "lock").touch()

    mine = SharedFolder(tmp_path)

    assert mine.path.stat().st_mode & 0o777 == 0o700
    assert {path.name for path in tmp_path.iterdir()} == {running.path.name, mine.path.name}
    for folder in (running, mine):
        folder.remove()
    assert list(tmp_path.iterdir()) == []


def test_a_data_folder_that_cannot_be_written_is_an_error_with_the_next_step(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(SettingsError, match="set MAGENT2_DATA_DIR"):
        SharedFolder(tmp_path / "file" / "data")


def test_each_gateway_of_an_address_keeps_a_connection_for_probes_and_pays_its_debts() -> None:
    assert GATEWAYS_MAX == PROBE_CONNECTIONS
    assert GATEWAYS_MAX <= DEBT_BURSTS
