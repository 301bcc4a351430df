from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import AsyncGenerator, Iterator

import pytest

from magent2.runner import run_stream
from magent2.runner.run_stream import THREAD_NAME, iterate_in_thread
from tests.support.waiting import DEADLINE_S, eventually


def run_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    yield
    eventually(lambda: not run_threads())


class Counting:
    """Counts up, and remembers how far it got and how it ended."""

    def __init__(self, stop: int | None = None, error: BaseException | None = None) -> None:
        self.stop = stop
        self.error = error
        self.made = 0
        self.closed = threading.Event()

    async def items(self) -> AsyncGenerator[int, None]:
        try:
            while self.made != self.stop:
                self.made += 1
                yield self.made
            if self.error is not None:
                raise self.error
        finally:
            await asyncio.sleep(0)  # cleaning up takes the loop
            self.closed.set()


def test_items_come_in_order_and_all_of_them() -> None:
    assert list(iterate_in_thread(Counting(stop=5000).items, queue_max=3)) == list(range(1, 5001))


def test_the_producer_is_never_further_ahead_than_the_queue_is_long() -> None:
    counting = Counting()
    items = iterate_in_thread(counting.items, queue_max=4)

    eventually(lambda: next(items) and counting.made > 4)  # it does run ahead
    for taken in items:
        assert counting.made <= taken + 4 + 1  # the queue, and the one in the producer's hand
        if taken > 1000:
            break

    items.close()  # type: ignore[attr-defined]


def test_an_error_comes_after_the_items_before_it() -> None:
    items = iterate_in_thread(Counting(stop=2, error=LookupError("gone")).items)

    assert [next(items), next(items)] == [1, 2]
    with pytest.raises(LookupError, match="gone"):
        next(items)


def test_a_base_exception_reaches_the_reader_too() -> None:
    with pytest.raises(SystemExit):
        list(iterate_in_thread(Counting(stop=1, error=SystemExit(3)).items))


def test_a_cancellation_inside_is_not_the_readers_own() -> None:
    with pytest.raises(RuntimeError, match="cancelled from inside"):
        list(iterate_in_thread(Counting(stop=1, error=asyncio.CancelledError()).items))


@pytest.mark.parametrize("queue_max", [1, 1000])
def test_closing_ends_the_generator_and_the_thread(queue_max: int) -> None:
    counting = Counting()
    items = iterate_in_thread(counting.items, queue_max=queue_max)
    next(items)

    items.close()  # type: ignore[attr-defined]

    assert counting.closed.is_set()
    assert run_threads() == []


def test_closing_reaches_a_generator_that_waits() -> None:
    begun, ended = threading.Event(), threading.Event()

    async def waiting() -> AsyncGenerator[int, None]:
        yield 1
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            ended.set()

    items = iterate_in_thread(waiting)
    next(items)
    assert begun.wait(DEADLINE_S)
    items.close()  # type: ignore[attr-defined]

    assert ended.is_set()
    assert run_threads() == []


def test_an_iterator_that_is_dropped_is_closed() -> None:
    counting = Counting()
    items = iterate_in_thread(counting.items)
    next(items)

    del items

    assert counting.closed.is_set()


def test_an_error_while_closing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def bad_manners() -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            raise LookupError("while closing")

    items = iterate_in_thread(bad_manners)
    next(items)
    with caplog.at_level(logging.ERROR, logger="magent2.runner.run_stream"):
        items.close()  # type: ignore[attr-defined]

    assert [record.message for record in caplog.records] == ["a run failed while it was being stopped"]


def test_a_generator_that_does_not_end_is_abandoned_and_logged(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_stream, "CLOSE_TIMEOUT_S", 0.01)
    begun, may_end = threading.Event(), threading.Event()

    async def stubborn() -> AsyncGenerator[int, None]:
        yield 1
        begun.set()
        may_end.wait(60)

    items = iterate_in_thread(stubborn)
    next(items)
    assert begun.wait(DEADLINE_S)
    with caplog.at_level(logging.ERROR, logger="magent2.runner.run_stream"):
        items.close()  # type: ignore[attr-defined]
    may_end.set()

    assert [record.message for record in caplog.records] == ["a run did not end after its reader had left"]


def test_the_readers_context_is_the_generators() -> None:
    trace: contextvars.ContextVar[str] = contextvars.ContextVar("trace", default="none")

    async def traced() -> AsyncGenerator[str, None]:
        yield trace.get()

    trace.set("of the reader")

    assert list(iterate_in_thread(traced)) == ["of the reader"]
