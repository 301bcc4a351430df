"""Work of the SQLite engine that must not grow with the log, counted in instructions of SQLite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from magent2.bus.operations import Append, Claim, Settle, Trim
from magent2.bus.records import NewRecord
from magent2.bus.sqlite import SqliteBus

AGENT = "A"
INBOX = f"chat:{AGENT}"
LANES = 300


@contextmanager
def counted_instructions(bus: SqliteBus, step: int = 10) -> Iterator[list[int]]:
    """Count the instructions of the writer meanwhile, in steps. The list has one entry, the number so far."""
    found = [0]

    def count() -> None:
        found[0] += step

    bus._db.connection.set_progress_handler(count, step)
    yield found
    bus._db.connection.set_progress_handler(None, 0)


def settle_mail(bus: SqliteBus, lanes: int) -> None:
    """Leave idle lanes behind, which the log remembers for a day."""
    mail = tuple(NewRecord(INBOX, {"conversation_id": f"c{number}", "sender": "user"}) for number in range(lanes))
    bus.call(Append(records=mail))
    more = True
    while more:
        claimed = bus.call(Claim(worker="w", agents=(AGENT,), limit=1000, lease_s=15.0))
        for lane in claimed.lanes:
            bus.call(Settle(owner=lane.owner, mail=tuple(record.ref for record in lane.mail)))
        more = claimed.more or bool(claimed.lanes)


def trim_instructions(tmp_path: Path, lanes: int) -> int:
    bus = SqliteBus(tmp_path / f"{lanes}.db")
    settle_mail(bus, lanes)
    with counted_instructions(bus) as found:
        dropped = bus.call(Trim(INBOX, through=5, limit=5)).dropped
    bus.close()
    assert dropped == 5
    return found[0]


def test_trimming_an_inbox_costs_no_more_when_the_log_remembers_many_lanes(tmp_path: Path) -> None:
    few, many = trim_instructions(tmp_path, 10), trim_instructions(tmp_path, LANES)

    assert many < few + LANES  # a look at every lane takes several instructions
