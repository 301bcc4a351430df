"""Reads of the SQLite engine: which indexes they use, and on which thread an event loop runs them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from magent2.bus.operations import OLDEST, Append, Describe, GetBlob, Lanes, Operation, PutBlob, Read, Topics
from magent2.bus.records import NewRecord
from magent2.bus.sqlite import SqliteBus
from magent2.bus.sqlite_engine import reads
from magent2.bus.sqlite_engine.connection import ReadConnection

TOPICS = 3000


class ThreadLog(SqliteBus):
    """Remembers the thread of each read that was completed."""

    def __init__(self, path: Path) -> None:
        self.threads: list[int] = []
        super().__init__(path)

    def _read_from(self, reader: ReadConnection, operation: Operation[object]) -> object:
        found = super()._read_from(reader, operation)
        self.threads.append(threading.get_ident())
        return found


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[ThreadLog]:
    bus = ThreadLog(tmp_path / "log.db")
    for start in range(0, TOPICS, 1000):
        bus.call(Append(records=tuple(NewRecord(f"stream:{number}", {}) for number in range(start, start + 1000))))
    for _ in range(3):
        bus.call(Append(records=tuple(NewRecord("note:many", {}) for _ in range(1000))))
    for number in range(4):
        bus.call(Append(records=(NewRecord("note:large", {"text": "x" * 200_000}, f"large-{number}"),)))
    yield bus
    await bus.aclose()


SHORT: dict[str, Operation[object]] = {
    "a page of topics": Topics("stream:", limit=100),
    "topics of all kinds": Topics(limit=50),
    "topics by name": Topics("stream:299", limit=10),
    "a page of records": Read("note:many", OLDEST, 100),
    "the last records": Read("note:many", None, 100),
    "some heads": Describe(tuple(f"stream:{number}" for number in range(50))),
    "lanes": Lanes("A"),
}
LONG: dict[str, Operation[object]] = {
    "all topics": Topics("stream:", limit=TOPICS),
    "topics by name": Topics("stream:2", limit=10),
    "all records": Read("note:many", OLDEST, 3000),
    "large records": Read("note:large", OLDEST, 10),
    "many heads": Describe(tuple(f"stream:{number}" for number in range(1000))),
}


@pytest.mark.parametrize("case", SHORT)
async def test_an_event_loop_makes_short_reads_itself(bus: ThreadLog, case: str) -> None:
    expected = bus.call(SHORT[case])
    bus.threads.clear()

    assert await bus.acall(SHORT[case]) == expected
    assert bus.threads == [threading.get_ident()]


@pytest.mark.parametrize("case", LONG)
async def test_an_event_loop_leaves_long_reads_to_a_thread(bus: ThreadLog, case: str) -> None:
    expected = bus.call(LONG[case])
    bus.threads.clear()

    assert await bus.acall(LONG[case]) == expected
    assert len(bus.threads) == 1
    assert bus.threads[0] != threading.get_ident()


async def test_a_blob_is_read_on_a_thread(bus: ThreadLog) -> None:
    name = bus.call(PutBlob(b"x" * 1000))

    assert await bus.acall(GetBlob(name)) == b"x" * 1000
    assert threading.get_ident() not in bus.threads


async def test_the_loop_is_free_for_short_reads_after_a_long_one(bus: ThreadLog) -> None:
    for _ in range(3):
        await bus.acall(LONG["all topics"])
        bus.threads.clear()
        for _ in range(200):  # more than the instructions of one long read together
            await bus.acall(Describe(("stream:1",)))

        assert set(bus.threads) == {threading.get_ident()}


async def test_many_long_reads_at_once_return_what_they_should(bus: ThreadLog) -> None:
    expected = bus.call(LONG["all topics"])

    found = await asyncio.gather(*(bus.acall(LONG["all topics"]) for _ in range(10)))

    assert found == [expected] * 10


async def test_a_closed_bus_ends_while_a_long_read_runs(tmp_path: Path) -> None:
    bus = ThreadLog(tmp_path / "other.db")
    bus.call(Append(records=tuple(NewRecord(f"stream:{number}", {}) for number in range(1000))))
    reading = asyncio.ensure_future(bus.acall(Topics("stream:", limit=1000)))
    await asyncio.sleep(0)

    await bus.aclose()

    assert len((await reading).topics) == 1000
    assert (bus._idle_readers, bus._idle_short_readers) == ([], [])


QUERIES = {
    "lanes": (reads._LANES, ("A", 100)),
    "kinds": (reads._KINDS, ()),
}


@pytest.mark.parametrize("query", QUERIES)
def test_no_query_scans_a_whole_table(tmp_path: Path, query: str) -> None:
    bus = SqliteBus(tmp_path / "log.db")
    sql, values = QUERIES[query]

    steps = [row[3] for row in bus._connect_reader().execute(f"EXPLAIN QUERY PLAN {sql}", values)]

    scans = [step for step in steps if step.startswith("SCAN") and " kinds" not in step]
    assert [step for step in scans if "USING" not in step] == []
    assert not any("lanes USING" in step and "lanes_worker" not in step for step in scans)
    bus.close()
