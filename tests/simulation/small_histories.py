"""Histories that drop runs and write snapshots after a few records, so that short worlds contain both."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.records import Record
from magent2.sessions.history import History, read_history

RUNS_MAX = 1


@contextmanager
def small_histories() -> Iterator[None]:
    """Keep one run per agent, and write a snapshot with every start of a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("magent2.worker.run_attempt.RUNS_MAX", RUNS_MAX)
        for name, value in (("RUNS_RESERVE", 0), ("DROP_EVERY", 1), ("SNAPSHOT_EVERY", 1)):
            patch.setattr(f"magent2.sessions.history.fold.{name}", value)
        patch.setattr("magent2.sessions.history.snapshot.SPAN_GAP", 2)
        yield


def history_findings(bus: Engine, conversation: str, records: Sequence[Record]) -> Iterator[str]:
    """A reader that starts from the last snapshot gets the fold of all records.

    Of two snapshots, the one that was written last need not reach further. A snapshot keeps more than the records that
    a sweep has left, so histories that were trimmed are not compared.
    """
    if records and records[0].seq > 1:
        return
    found = replace(run_sync(bus, read_history, conversation, None, RUNS_MAX), snapshot=0)
    whole = replace(History(runs_max=found.runs_max).followed_by(records), snapshot=0)
    if found != whole:
        yield f"the history of {conversation} is read as {found} and is {whole}"
