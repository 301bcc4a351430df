"""`magent2 sweep`: prints what it removes, and in a dry run removes nothing."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.bus.operations import Append, PutBlob, Read
from magent2.bus.records import NewRecord
from magent2.bus.sqlite import SqliteBus
from magent2.cli.main import run
from magent2.telemetry.logs import CLIENT_LOGGERS, QUIET_LOGGERS
from tests.unit.roster.agents_files import AGENT

TOKENS = 5


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """A server sets logging up for its whole process, and these tests run it in their own."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in (*QUIET_LOGGERS, *CLIENT_LOGGERS):
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log with one answer and a blob that no record names."""
    path = tmp_path / "log.db"
    bus = SqliteBus(path)
    pieces = [NewRecord("stream:one", {"event": "token"}, draft="run-1") for _ in range(TOKENS)]
    bus.call(Append(records=(*pieces, NewRecord("stream:one", {"event": "output"}, closes="run-1"))))
    bus.call(PutBlob(b"unnamed"))
    bus.close()
    return path


def records(path: Path) -> int:
    bus = SqliteBus(path)
    try:
        return len(bus.call(Read("stream:one", 0)).records)
    finally:
        bus.close()


def sweep(path: Path, *options: str) -> int:
    return run(["sweep", "--bus", f"sqlite:///{path}", *options])


def test_a_dry_run_prints_what_would_go_and_changes_nothing(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = log.with_name("magent2.toml")
    config.write_text(f"{AGENT}[retention]\nblobs_after_days = 0.001\n")

    assert sweep(log, "--dry-run", "--config", str(config), "--json") == 0

    printed = json.loads(capsys.readouterr().out)
    assert (printed["dry_run"], printed["tokens"], printed["blobs"], printed["visited"]) == (True, 0, 0, 1)
    assert records(log) == TOKENS + 1


def test_a_sweep_removes_what_the_policy_names_and_says_so(
    log: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGENT2_RETENTION_TOKENS_AFTER_S", "1")
    monkeypatch.setattr("magent2.bus.sqlite_engine.maintenance._last_closing", lambda *_: 1 << 62)  # all are old

    assert sweep(log) == 0

    lines = dict(line.split() for line in capsys.readouterr().out.splitlines())
    assert (lines["REMOVED"], lines["tokens"], lines["events"]) == ("NUMBER", str(TOKENS), "0")
    assert records(log) == 1


def test_a_bad_policy_is_refused_before_the_bus_is_opened(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGENT2_RETENTION_TOKENS_AFTER_S", "0")

    assert sweep(tmp_path / "absent.db") == 2

    assert "MAGENT2_RETENTION_TOKENS_AFTER_S must be at least 1" in capsys.readouterr().err
    assert not (tmp_path / "absent.db").exists()


@pytest.mark.parametrize("command", [("sweep",), ("gateway", "--port", "0"), ("serve", "--port", "0"), ("worker",)])
@pytest.mark.parametrize("prefix", ["MAGENT2_LIMIT_", "MAGENT2_RETENTION_", "MAGENT2_RETRY_"])
def test_every_process_refuses_an_unknown_variable_with_the_known_ones(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    prefix: str,
) -> None:
    monkeypatch.setenv("MAGENT2_DATA_DIR", str(tmp_path))
    monkeypatch.setenv(f"{prefix}XYZ", "1")

    assert run([*command, "--bus", f"sqlite:///{tmp_path}/log.db"]) == 2

    assert re.search(rf"unknown .* {prefix}XYZ; known .*: {prefix}", capsys.readouterr().err)


def test_doctor_fails_for_a_variable_with_which_no_server_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGENT2_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("MAGENT2_RETRY_JITTER", "2")

    assert run(["doctor", "--url", "http://127.0.0.1:9"]) == 1

    assert "fail  settings  MAGENT2_RETRY_JITTER must be at most 1, not 2" in capsys.readouterr().out
