"""The lane loop, with a handler that does as little as possible."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Lanes, Operation, Settle, Workers
from magent2.bus.records import ClaimedLane, NewRecord
from magent2.bus.retry import retry_while_unavailable
from magent2.errors import BusUnavailable, LimitError, Refused, StorageCorrupt
from magent2.mail.lane_loop import LaneHandler, LaneLoop, UnreadableMail
from tests.support.engine_wrappers import EngineWrapper
from tests.support.waiting import until

AGENT = "Ada"


class RecordingHandler(LaneHandler[ClaimedLane]):
    """Settles mail and records its text. Waits for `gate` before, and rejects the texts in `unreadable`."""

    agents = (AGENT,)
    topics = (f"chat:{AGENT}",)

    def __init__(self, bus: Engine, unreadable: Sequence[str] = ()) -> None:
        self.bus = bus
        self.unreadable = unreadable
        self.gate = asyncio.Event()
        self.gate.set()
        self.begun: list[str] = []
        self.done: list[str] = []
        self.extra: list[Coroutine[Any, Any, None]] = []

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        return self.extra

    def create_work(self, lane: ClaimedLane) -> ClaimedLane:
        return lane

    async def work_on(self, work: ClaimedLane) -> bool:
        (mail,) = work.mail[:1]
        text = str(mail.payload["content"])
        self.begun.append(text)
        await self.gate.wait()
        if text in self.unreadable:
            raise UnreadableMail(mail, f"cannot read {text}")
        await retry_while_unavailable(self.bus, Settle(owner=work.owner, mail=(mail.ref,)), work.owner.worker)
        self.done.append(text)
        return False


class RefusesSettles(EngineWrapper):
    """Refuses the next `times` settles, as a bus does with records that are too large."""

    def __init__(self, bus: Engine, times: int) -> None:
        super().__init__(bus)
        self.times = times

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Settle) and self.times:
            self.times -= 1
            raise Refused("too large")
        return self.inner.call(operation)


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


def send(bus: Engine, text: str, conversation: str = "one") -> None:
    payload = {"conversation_id": conversation, "sender": "user:ann", "content": text}
    bus.call(Append(records=(NewRecord(f"chat:{AGENT}", payload),)))


def new_loop(bus: Engine, handler: RecordingHandler, concurrency: int = 2) -> LaneLoop[ClaimedLane]:
    return LaneLoop(bus, handler, worker="w1", concurrency=concurrency, lease_s=30.0, drain_s=5.0)


@asynccontextmanager
async def running(bus: Engine, handler: RecordingHandler, concurrency: int = 2) -> AsyncIterator[LaneLoop[ClaimedLane]]:
    loop = new_loop(bus, handler, concurrency)
    task = asyncio.create_task(loop.run())
    try:
        yield loop
    finally:
        handler.gate.set()
        await loop.drain()
        await task


async def test_mail_of_a_lane_is_processed_in_order_and_lanes_take_turns(bus: MemoryBus) -> None:
    handler = RecordingHandler(bus)
    for text in ("a1", "a2", "a3"):
        send(bus, text, "a")
    send(bus, "b1", "b")

    async with running(bus, handler, concurrency=1):
        await until(lambda: len(handler.done) == 4)

    assert [text for text in handler.done if text[0] == "a"] == ["a1", "a2", "a3"]
    assert handler.done.index("b1") <= 1


async def test_unreadable_mail_becomes_a_dead_letter_and_the_next_mail_is_processed(bus: MemoryBus) -> None:
    handler = RecordingHandler(bus, unreadable=["odd"])
    send(bus, "odd")
    send(bus, "next")

    async with running(bus, handler):
        await until(lambda: handler.done == ["next"])

    (dead,) = bus.read(f"dead:{AGENT}")
    assert (dead.payload["reason"], dead.payload["mail"]["payload"]["content"]) == ("cannot read odd", "odd")


async def test_a_dead_letter_that_the_bus_refuses_is_stored_without_the_content(bus: MemoryBus) -> None:
    refusing = RefusesSettles(bus, times=1)
    send(bus, "odd")

    async with running(refusing, RecordingHandler(refusing, unreadable=["odd"])):
        await until(lambda: bus.read(f"dead:{AGENT}"))

    (dead,) = bus.read(f"dead:{AGENT}")
    assert list(dead.payload["mail"]["payload"]) == ["left_out"]


async def test_a_lane_is_parked_if_the_bus_refuses_every_dead_letter(bus: MemoryBus) -> None:
    refusing = RefusesSettles(bus, times=100)
    send(bus, "odd")

    async with running(refusing, RecordingHandler(refusing, unreadable=["odd"])):
        await until(lambda: [lane.state for lane in bus.call(Lanes(AGENT))] == ["parked"])

    assert bus.read(f"dead:{AGENT}") == []


async def test_work_that_cannot_give_its_lane_back_is_cancelled_when_the_drain_time_is_over(bus: MemoryBus) -> None:
    handler = RecordingHandler(bus)
    handler.gate.clear()
    send(bus, "slow")
    loop = new_loop(bus, handler)
    task = asyncio.create_task(loop.run())
    await until(lambda: handler.begun == ["slow"])

    await loop.drain(0.01)
    await task

    assert (handler.done, bus.call(Workers())) == ([], ())
    assert [lane.state for lane in bus.call(Lanes(AGENT))] == ["ready"]


async def test_work_that_waits_releases_its_slot(bus: MemoryBus) -> None:
    handler = RecordingHandler(bus)
    handler.gate.clear()
    send(bus, "first", "a")
    send(bus, "second", "b")
    async with running(bus, handler, concurrency=1) as loop:
        await until(lambda: len(handler.begun) == 1)
        async with loop.slot_released():
            await until(lambda: len(handler.begun) == 2)


async def test_an_error_in_the_background_ends_the_loop_and_gives_the_lanes_back(bus: MemoryBus) -> None:
    async def fail() -> None:
        await until(lambda: handler.begun)
        raise StorageCorrupt("damaged")

    handler = RecordingHandler(bus)
    handler.gate.clear()
    handler.extra = [fail()]
    send(bus, "slow")

    with pytest.raises(StorageCorrupt):
        await new_loop(bus, handler).run()

    assert bus.call(Workers()) == ()


async def test_a_loop_whose_bus_is_unavailable_waits_for_it(bus: MemoryBus) -> None:
    class Away(EngineWrapper):
        errors = 2

        def answer(self, operation: Operation[Any]) -> Any:
            if self.errors:
                self.errors -= 1
                raise BusUnavailable("away")
            return self.inner.call(operation)

    away = Away(bus)
    handler = RecordingHandler(away)
    send(bus, "hello")

    async with running(away, handler):
        await until(lambda: handler.done == ["hello"])


def test_a_loop_needs_a_slot(bus: MemoryBus) -> None:
    with pytest.raises(LimitError):
        new_loop(bus, RecordingHandler(bus), concurrency=0)
