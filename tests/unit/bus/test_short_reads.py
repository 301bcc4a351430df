"""Short reads of SQLite on an event loop: a read that takes too long is interrupted, and its transaction still ends."""

from __future__ import annotations

import asyncio
import sqlite3
from itertools import count
from pathlib import Path

import pytest

from magent2.bus.operations import Describe
from magent2.bus.sqlite import SqliteBus
from magent2.bus.sqlite_engine.clock import SystemClock
from magent2.bus.sqlite_engine.connection import (
    INSTRUCTIONS_PER_STEP,
    SHORT_READ_STEPS,
    ReadConnection,
    ShortReadConnection,
)
from magent2.errors import Magent2Error

# A new text each time: SQLite counts the instructions of a statement over all its executions.
COUNT_TO = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < ?) SELECT max(i) FROM n -- {}"
numbers = count()


def new_reader() -> ShortReadConnection:
    return ShortReadConnection(sqlite3.connect(":memory:", isolation_level=None), SystemClock(), "boot")


def is_allowed(reader: ShortReadConnection, rows: int) -> bool:
    """Make one read, and return whether it was short enough."""
    reader.begin()
    try:
        reader.execute(COUNT_TO.format(next(numbers)), (rows,)).fetchone()
    except sqlite3.OperationalError as error:
        assert error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT  # noqa: PT017  the number of rows is being tried out
        return False
    finally:
        reader.end()
    return True


def longest_read(reader: ShortReadConnection) -> int:
    return next(rows for rows in count(1) if not is_allowed(reader, rows + 1))


@pytest.mark.parametrize("steps", [SHORT_READ_STEPS, SHORT_READ_STEPS - 1])
def test_a_read_that_has_no_step_left_ends_its_transaction(steps: int) -> None:
    reader = new_reader()
    rows = longest_read(reader) * steps // SHORT_READ_STEPS

    # The instructions of BEGIN and ROLLBACK are counted too: in this many reads, each of them takes a step of its own.
    for _ in range(INSTRUCTIONS_PER_STEP):
        is_allowed(reader, rows)
        assert not reader.connection.in_transaction


def test_an_interrupted_read_ends_its_transaction() -> None:
    reader = new_reader()

    assert not is_allowed(reader, INSTRUCTIONS_PER_STEP * 100)

    assert not reader.connection.in_transaction


@pytest.mark.parametrize("in_loop", [True, False])
def test_a_connection_whose_transaction_could_not_be_ended_is_not_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_loop: bool
) -> None:
    def fail(_reader: ReadConnection) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    def describe() -> object:
        operation = Describe(("stream:a",))
        return asyncio.run(bus.acall(operation)) if in_loop else bus.call(operation)

    bus = SqliteBus(tmp_path / "log.db")
    with monkeypatch.context() as patched:
        patched.setattr(ReadConnection, "end", fail)
        with pytest.raises(Magent2Error):
            describe()

    assert describe()
    bus.close()
