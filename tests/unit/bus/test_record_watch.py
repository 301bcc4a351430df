"""A reader in the process that appends gets the records from its watch. It sees what the log has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from magent2.bus.operations import Append, Delete, Erase, PutBlob, Trim
from magent2.bus.record_watch import KEPT_MAX_BYTES, KEPT_RECORDS_MAX, RecordWatch
from magent2.bus.records import NewRecord, Page
from magent2.bus.sqlite import SqliteBus
from magent2.bus.watch import Watch
from magent2.errors import UnknownCursor
from tests.support.waiting import DEADLINE_S

TOPIC = "stream:a"


@pytest.fixture
def opener(tmp_path: Path) -> Iterator[Callable[[], SqliteBus]]:
    """Opens engines that know as little of each other as those of two processes."""
    opened: list[SqliteBus] = []

    def one() -> SqliteBus:
        opened.append(SqliteBus(tmp_path / "log.db"))
        return opened[-1]

    yield one
    for bus in opened:
        bus.close()


@pytest.fixture
def bus(opener: Callable[[], SqliteBus]) -> SqliteBus:
    return opener()


@pytest.fixture
def watch(bus: SqliteBus) -> Iterator[RecordWatch]:
    with bus.watch([TOPIC]) as watch:
        assert isinstance(watch, RecordWatch)
        assert watch.take(TOPIC) == []  # from now on, records are kept
        yield watch


def append(bus: SqliteBus, count: int = 1, **payload: object) -> None:
    bus.call(Append(records=tuple(NewRecord(TOPIC, payload) for _ in range(count))))


async def seqs(bus: SqliteBus, watch: Watch, cursor: int) -> list[int]:
    page: Page = await bus.next_page(watch, TOPIC, cursor)
    return [record.seq for record in page.records]


def test_a_kept_record_is_the_one_that_is_read(bus: SqliteBus, watch: RecordWatch) -> None:
    blob = bus.call(PutBlob(b"x"))
    records = (
        NewRecord(TOPIC, {"text": "é", "list": (1, 2)}, "m1", {"hops": 2}, closes="d1", blobs=(blob,)),
        NewRecord(TOPIC, {}, draft="d1"),
        NewRecord("stream:b", {}),
    )
    bus.call(Append(records=records))

    kept = watch.take(TOPIC)

    assert kept == bus.read(TOPIC)
    assert [record.size_bytes for record in kept] == [record.size_bytes for record in bus.read(TOPIC)]
    assert watch.take(TOPIC) == []


def test_a_kept_record_shares_nothing_with_its_sender(bus: SqliteBus, watch: RecordWatch) -> None:
    payload = {"list": [1]}
    bus.call(Append(records=(NewRecord(TOPIC, payload),)))
    payload["list"].append(2)

    assert watch.take(TOPIC)[0].payload == {"list": [1]}


def test_a_repeat_is_not_kept(bus: SqliteBus, watch: RecordWatch) -> None:
    first = NewRecord(TOPIC, {"created_at": "1"}, "m1")
    bus.call(Append(records=(first,)))
    watch.take(TOPIC)
    repeat = NewRecord(TOPIC, {"created_at": "2"}, "m1")
    bus.call(Append(records=(NewRecord(TOPIC, {}, "m2"), repeat)))

    assert [record.id for record in watch.take(TOPIC)] == ["m2"]


async def test_a_reader_at_the_end_gets_the_kept_records(bus: SqliteBus, watch: RecordWatch) -> None:
    append(bus)
    append(bus)

    page: Page = await bus.next_page(watch, TOPIC, 1)

    assert ([record.seq for record in page.records], page.last, page.deleted) == ([2], 2, False)
    assert watch.take(TOPIC) == []


async def test_a_reader_that_is_behind_reads_the_log(bus: SqliteBus) -> None:
    append(bus)
    with bus.watch([TOPIC]) as watch:
        assert await seqs(bus, watch, 1) == []
        append(bus)

        assert await seqs(bus, watch, 0) == [1, 2]


async def test_records_of_another_process_are_read_in_their_place(
    bus: SqliteBus, watch: RecordWatch, opener: Callable[[], SqliteBus]
) -> None:
    other = opener()
    append(bus)
    append(other)
    append(bus)

    assert await seqs(bus, watch, 0) == [1, 2, 3]


@pytest.mark.parametrize(("count", "text"), [(KEPT_RECORDS_MAX // 2 + 1, ""), (2, "x" * (KEPT_MAX_BYTES // 4))])
async def test_more_than_the_limit_is_not_kept(bus: SqliteBus, watch: RecordWatch, count: int, text: str) -> None:
    append(bus, count, text=text)
    append(bus, count, text=text)

    assert watch.take(TOPIC) == []
    assert (await seqs(bus, watch, 2 * count - 1)) == [2 * count]


async def test_erased_content_is_not_handed_over(bus: SqliteBus, watch: RecordWatch) -> None:
    append(bus, text="secret")
    bus.call(Erase(TOPIC, (1,)))

    page: Page = await bus.next_page(watch, TOPIC, 0)

    assert [record.erased for record in page.records] == [True]


async def test_content_that_another_process_has_erased_is_not_handed_over(
    bus: SqliteBus, watch: RecordWatch, opener: Callable[[], SqliteBus]
) -> None:
    other = opener()
    append(bus, text="secret")
    await watch.changed(0)
    other.call(Erase(TOPIC, (1,)))
    watch.add("stream:later")
    other.call(Append(records=(NewRecord("stream:later", {}),)))
    while "stream:later" not in await watch.changed(DEADLINE_S):  # then this process has seen the commits of the other
        pass

    page: Page = await bus.next_page(watch, TOPIC, 0)

    assert [record.erased for record in page.records] == [True]


async def test_a_reader_hears_of_a_deletion_before_it_takes_kept_records(bus: SqliteBus, watch: RecordWatch) -> None:
    append(bus)
    bus.call(Delete((TOPIC,)))

    page: Page = await bus.next_page(watch, TOPIC, 0)

    assert page.deleted


async def test_a_reader_that_retention_has_overtaken_gets_no_kept_records(bus: SqliteBus, watch: RecordWatch) -> None:
    append(bus, 3)
    bus.call(Trim(TOPIC, keep=1))

    with pytest.raises(UnknownCursor):
        await bus.next_page(watch, TOPIC, 0)


def test_a_watch_from_which_nothing_is_taken_keeps_nothing(bus: SqliteBus) -> None:
    with bus.watch([TOPIC]) as watch:
        append(bus)

        assert isinstance(watch, RecordWatch)
        assert watch.take(TOPIC) == []


def test_a_topic_that_is_no_longer_watched_keeps_nothing(bus: SqliteBus, watch: RecordWatch) -> None:
    append(bus)
    watch.discard(TOPIC)

    assert watch.take(TOPIC) == []
