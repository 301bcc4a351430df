"""The auditor of runs notices what it is there for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.records import Record
from magent2.runner.echo import EchoRunner
from magent2.worker.worker import Worker
from tests.support.audit import whole_log
from tests.support.run_audit import run_findings
from tests.support.worker_fixture import AGENT, send

Log = list[Record]


@pytest.fixture
def logs() -> tuple[list[tuple[str, str]], Log, Log]:
    """Two messages, answered."""
    bus = MemoryBus()
    sent = [(send(bus, text), text) for text in ("first one", "second")]
    Worker(AGENT, bus, EchoRunner()).process_available()
    stream, history = whole_log(bus, "stream:one"), whole_log(bus, "history:one")
    bus.close()
    return sent, stream, history


def renumbered(records: Log) -> Log:
    return [replace(record, seq=n, id=f"@{n}") for n, record in enumerate(records, start=1)]


def changed(log: Log, place: int, **fields: object) -> Log:
    record = replace(log[place], payload={**log[place].payload, **fields})
    return [*log[:place], record, *log[place + 1 :]]


# The stream: 0 started, 1 token, 2 token, 3 output, 4 finished; 5 started, 6 token, 7 output, 8 finished.
BREAKAGES: dict[str, Callable[[Log], Log]] = {
    "never ended": lambda log: log[:5],
    "ended 2 times": lambda log: [*log, log[8]],
    "answered 2 times": lambda log: [*log[:4], log[3], *log[4:]],
    "answered 0 times": lambda log: log[:3] + log[4:],
    "out of order": lambda log: log[5:] + log[:5],
    "was answered by": lambda log: changed(log, 3, text="something else"),
    "while": lambda log: [log[0], log[5], *log[1:5], *log[6:]],
    "after its end": lambda log: [*log, log[1]],
    "after attempt 2": lambda log: changed(log, 1, attempt=2),
    "tokens of": lambda log: log[:1] + log[2:],
}


def test_clean_logs_have_no_findings(logs: tuple[list[tuple[str, str]], Log, Log]) -> None:
    assert run_findings(*logs) == []


@pytest.mark.parametrize("words", BREAKAGES)
def test_a_broken_promise_is_found(logs: tuple[list[tuple[str, str]], Log, Log], words: str) -> None:
    sent, stream, history = logs

    findings = run_findings(sent, renumbered(BREAKAGES[words](stream)), history)

    assert any(words in finding for finding in findings), findings


def test_a_history_that_forgot_a_run_or_ended_it_twice_is_found(logs: tuple[list[tuple[str, str]], Log, Log]) -> None:
    sent, stream, history = logs

    assert run_findings(sent, stream, history[:2])
    assert run_findings(sent, stream, renumbered([*history, history[-1]]))
