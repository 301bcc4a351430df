"""The history of a conversation: folded once, read on from where it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Delete, Operation, Read, Trim
from magent2.bus.records import Page
from magent2.models.address import conversation_topics
from magent2.sessions.folds import model_input
from magent2.sessions.history import History, HistoryCache, RunKey, read_history
from tests.support.waiting import until

ENVELOPE = {"sender": "user:ann", "content": "hello"}


class CountingBus(MemoryBus):
    """Knows how many records it was asked for."""

    records_read = 0

    async def acall(self, operation: Operation[Any]) -> Any:
        result = await super().acall(operation)
        if isinstance(result, Page):
            self.records_read += len(result.records)
        return result


@pytest.fixture
def bus() -> Iterator[CountingBus]:
    bus = CountingBus()
    yield bus
    bus.close()


def write_run(bus: MemoryBus, name: str, seen: int = 0, end: bool = True, agent: str = "Ann") -> None:
    key = RunKey("one", name, agent)
    bus.call(Append(records=(key.start(ENVELOPE, {}, seen),)))
    if end:
        bus.call(Append(records=(key.end("finished", "hi"),)))


async def test_what_was_read_is_not_read_again(bus: CountingBus) -> None:
    histories = HistoryCache(bus)
    write_run(bus, "r1")
    await histories.read("one")
    before = bus.records_read

    write_run(bus, "r2")
    history = await histories.read("one")

    assert bus.records_read - before == 2
    assert list(history.runs) == ["r1", "r2"]


async def test_a_history_that_was_handed_out_does_not_change(bus: CountingBus) -> None:
    histories = HistoryCache(bus)
    write_run(bus, "r1", end=False)
    early = await histories.read("one")

    bus.call(Append(records=(RunKey("one", "r1", "Ann").end("finished", "hi"),)))
    late = await histories.read("one")

    assert early.runs["r1"].end is None
    assert late.runs["r1"].end is not None


async def test_a_log_that_was_trimmed_is_read_from_what_is_left(bus: CountingBus) -> None:
    for number in range(5):
        write_run(bus, f"r{number}")
    behind = History(run_sync(bus, read_history, "one").runs, 2)
    bus.call(Trim("history:one", keep=2))

    history = run_sync(bus, read_history, "one", behind)

    assert list(history.runs) == ["r4"]


class TrimmingBus(CountingBus):
    """Trims the history after the first page that is read of it, as retention in another process may."""

    pages_read = 0

    def call(self, operation: Operation[Any]) -> Any:
        result = super().call(operation)
        if isinstance(operation, Read):
            self.pages_read += 1
            if self.pages_read == 1:
                super().call(Trim("history:one", keep=2))
        return result


def test_a_log_that_is_trimmed_between_two_pages_is_read_from_what_is_left() -> None:
    bus = TrimmingBus()
    for number in range(50):
        write_run(bus, f"r{number}")

    known = History(last=2)
    history = run_sync(bus, read_history, "one", known)

    assert (list(history.runs), history.last) == (["r49"], 100)
    bus.close()


async def test_a_deleted_conversation_is_forgotten(bus: CountingBus) -> None:
    histories = HistoryCache(bus)
    write_run(bus, "r1")
    await histories.read("one")

    bus.call(Delete(conversation_topics("one"), conversation="one"))

    assert (await histories.read("one")).runs == {}


async def test_the_longest_unused_go_when_they_take_too_many_bytes(bus: CountingBus) -> None:
    write_run(bus, "r1")
    one = await HistoryCache(bus).read("one")
    histories = HistoryCache(bus, max_bytes=one.size_bytes * 3 // 2)
    await histories.read("one")
    other = RunKey("two", "r1", "Ann")
    bus.call(Append(records=(other.start(ENVELOPE, {}, 0), other.end("finished", "hi"))))
    await histories.read("two")
    before = bus.records_read

    await histories.read("two")
    again = bus.records_read
    await histories.read("one")

    assert again == before
    assert bus.records_read - again == 2


async def test_large_answers_do_not_fill_the_cache(bus: CountingBus) -> None:
    limit = 4 << 20
    histories = HistoryCache(bus, max_bytes=limit)
    for number in range(100):
        key = RunKey(f"c{number}", "r1", "Ann")
        bus.call(Append(records=(key.start(ENVELOPE, {}, 0), key.end("finished", "x" * 200_000))))
        await histories.read(f"c{number}")
        assert histories.size_bytes <= limit

    assert histories.size_bytes > limit // 2


async def test_a_history_that_is_larger_than_the_cache_is_not_kept(bus: CountingBus) -> None:
    histories = HistoryCache(bus, max_bytes=100_000)
    bus.call(Append(records=(RunKey("one", "r1", "Ann").start({**ENVELOPE, "content": "x" * 200_000}, {}, 0),)))

    history = await histories.read("one")

    assert list(history.runs) == ["r1"]
    assert histories.size_bytes == 0


async def test_a_cache_that_is_not_used_is_empty_after_a_while(bus: CountingBus) -> None:
    histories = HistoryCache(bus, idle_s=0.01)
    write_run(bus, "r1")

    await histories.read("one")

    assert histories.size_bytes > 0
    await until(lambda: histories.size_bytes == 0)


def test_a_run_that_is_taken_over_sees_the_conversation_as_it_was_at_its_start(bus: CountingBus) -> None:
    write_run(bus, "r1")
    write_run(bus, "r2", seen=2, end=False)
    write_run(bus, "r3", seen=3)
    history = run_sync(bus, read_history, "one")

    shown = model_input(history, history.runs["r2"], 10)

    assert [name for name, _ in shown.runs] == ["r1"]


def test_pages_are_joined(bus: CountingBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magent2.sessions.history.reader.FIRST_PAGE", 3)
    for number in range(5):
        write_run(bus, f"r{number}")

    history = run_sync(bus, read_history, "one")

    assert len(history.runs) == 5
    assert history.last == bus.call(Read("history:one")).last
