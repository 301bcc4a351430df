"""Runners of both kinds on an event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import cast

import pytest

from magent2.errors import InvalidInput
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.echo import EchoRunner
from magent2.runner.run_stream import QUEUE_MAX, Event
from magent2.worker.runner_adapter import THREAD_NAME, Runner, check_event, events_of
from tests.support.runners import AsyncRunner, GatedThreadRunner, SyncRunner, token
from tests.support.worker_fixture import envelope, until

MAIL = envelope("hello you")
CONTEXT = cast("RunContext", None)  # these runners do not look at it


async def texts_of(runner: Runner) -> list[str]:
    async with aclosing(events_of(runner, MAIL, CONTEXT)) as events:
        return [str(getattr(event, "text", None) or event["text"]) async for event in events]  # type: ignore[index]


async def test_astream_run_is_preferred_to_stream_run() -> None:
    async def script(mail: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        yield token(mail, "on the loop")

    assert await texts_of(AsyncRunner(script)) == ["on the loop"]


async def test_the_echo_runner_yields_the_same_events_both_ways() -> None:
    assert await texts_of(EchoRunner()) == await texts_of(SyncRunner(EchoRunner().stream_run))


async def test_events_of_a_thread_come_in_order_however_many() -> None:
    many = QUEUE_MAX * 4

    def script(mail: MessageEnvelope) -> Iterator[Event]:
        for n in range(many):
            yield token(mail, str(n), n)

    assert await texts_of(SyncRunner(script)) == [str(n) for n in range(many)]


async def test_dicts_are_events_too() -> None:
    assert await texts_of(SyncRunner(lambda _: [{"event": "output", "text": "hi"}])) == ["hi"]


async def test_an_error_in_the_thread_is_raised_after_its_events() -> None:
    def script(mail: MessageEnvelope) -> Iterator[Event]:
        yield token(mail, "half")
        raise LookupError("the other half")

    async with aclosing(events_of(SyncRunner(script), MAIL, CONTEXT)) as events:
        assert await anext(events)
        with pytest.raises(LookupError, match="the other half"):
            await anext(events)


async def test_a_thread_is_never_far_ahead_of_its_reader() -> None:
    made = 0

    def script(mail: MessageEnvelope) -> Iterator[Event]:
        nonlocal made
        for n in range(QUEUE_MAX * 3):
            made = n
            yield token(mail, str(n))

    async with aclosing(events_of(SyncRunner(script), MAIL, CONTEXT)) as events:
        await anext(events)
        await until(lambda: made >= QUEUE_MAX)
        assert made <= QUEUE_MAX + 1


async def test_a_thread_whose_reader_has_left_ends_with_its_next_event() -> None:
    runner = GatedThreadRunner()
    async with aclosing(events_of(runner, MAIL, CONTEXT)) as events:
        await anext(events)
    runner.gate.set()

    assert await asyncio.to_thread(runner.closed.wait, 10.0)
    await until(lambda: not any(thread.name == THREAD_NAME for thread in threading.enumerate()))


async def test_a_thread_that_waits_for_room_ends_when_its_reader_leaves() -> None:
    closed = threading.Event()

    def script(mail: MessageEnvelope) -> Iterator[Event]:
        try:
            while True:
                yield token(mail, "more")
        finally:
            closed.set()

    async with aclosing(events_of(SyncRunner(script), MAIL, CONTEXT)) as events:
        await anext(events)

    assert await asyncio.to_thread(closed.wait, 10.0)


async def test_closing_the_events_closes_a_runner_on_the_loop() -> None:
    closed = False

    async def script(mail: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        nonlocal closed
        try:
            while True:
                yield token(mail, "more")
        finally:
            closed = True

    runner = AsyncRunner(script)
    async with aclosing(events_of(runner, MAIL, CONTEXT)) as events:
        await anext(events)
    await asyncio.get_running_loop().shutdown_asyncgens()

    assert closed


async def test_a_thread_sees_the_context_variables_of_the_loop() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who")
    who.set("ann")

    assert await texts_of(SyncRunner(lambda mail: [token(mail, who.get())])) == ["ann"]


@pytest.mark.parametrize("event", ["text", None, 7, ["token"]])
def test_a_value_that_is_no_event_is_refused(event: object) -> None:
    with pytest.raises(InvalidInput, match="events or dicts"):
        check_event(event)
