"""The lane loop, with a handler that does as little as possible."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Claim, Lanes, Operation, Renew, SetHead, Settle, Workers
from magent2.bus.records import ClaimedLane, NewRecord
from magent2.bus.retry import retry_while_unavailable
from magent2.bus.watch import Watch
from magent2.errors import BusUnavailable, LimitError, Refused, StorageCorrupt
from magent2.mail import lane_loop
from magent2.mail.lane_loop import (
    LANE_FAILURES_MAX,
    RENEWAL_PAUSE_SHARE,
    RENEWAL_TRY_SHARE,
    LaneHandler,
    LaneLoop,
    UnreadableMail,
)
from tests.support.engine_wrappers import EngineWrapper
from tests.support.flaky_engine import UnexpectedErrors
from tests.support.waiting import DEADLINE_S, until

AGENT = "Ada"


class RecordingHandler(LaneHandler[ClaimedLane]):
    """Settles mail and records its text. Waits for `gate` before, and rejects the texts in `unreadable`.

    `errors` are raised by the work on a text, or by the method of that name, one each time.
    """

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
        self.errors: dict[str, list[BaseException]] = {}
        self.checked: list[Sequence[ClaimedLane]] = []
        self.check_gate = asyncio.Event()
        self.check_gate.set()

    def raise_next(self, key: str) -> None:
        if self.errors.get(key):
            raise self.errors[key].pop(0)

    def topics_changed(self, topics: frozenset[str]) -> None:
        self.raise_next("topics_changed")

    async def before_claim(self, watch: Watch) -> bool:
        self.raise_next("before_claim")
        return False

    async def after_claim(self, more: bool) -> None:
        self.raise_next("after_claim")

    async def lease_renewed(self, running: Sequence[ClaimedLane]) -> None:
        self.checked.append(running)
        await self.check_gate.wait()

    def background(self) -> Sequence[Coroutine[Any, Any, None]]:
        return self.extra

    def create_work(self, lane: ClaimedLane) -> ClaimedLane:
        self.raise_next("create_work")
        return lane

    async def work_on(self, work: ClaimedLane) -> bool:
        (mail,) = work.mail[:1]
        text = str(mail.payload["content"])
        self.begun.append(text)
        await self.gate.wait()
        self.raise_next(text)
        if text in self.unreadable:
            raise UnreadableMail(mail, f"cannot read {text}")
        await retry_while_unavailable(self.bus, Settle(owner=work.owner, mail=(mail.ref,)), work.owner.worker)
        self.done.append(text)
        return False


class GivesBack(RecordingHandler):
    """Its work ends when it is asked to give its lane back."""

    def give_back(self, work: ClaimedLane) -> bool:
        self.gate.set()
        return True


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


def send(bus: Engine, text: str, conversation: str = "one", owner: str | None = None) -> None:
    payload = {"conversation_id": conversation, "sender": "user:ann", "content": text}
    heads = () if owner is None else (SetHead(f"stream:{conversation}", {"owner": owner}),)
    bus.call(Append(records=(NewRecord(f"chat:{AGENT}", payload),), heads=heads))


def new_loop(
    bus: Engine,
    handler: RecordingHandler,
    concurrency: int = 2,
    lease_s: float = 30.0,
    principal_share: float = 1.0,
) -> LaneLoop[ClaimedLane]:
    return LaneLoop(
        bus,
        handler,
        worker="w1",
        concurrency=concurrency,
        lease_s=lease_s,
        drain_s=5.0,
        principal_share=principal_share,
    )


@asynccontextmanager
async def running(
    bus: Engine,
    handler: RecordingHandler,
    concurrency: int = 2,
    lease_s: float = 30.0,
    principal_share: float = 1.0,
) -> AsyncIterator[LaneLoop[ClaimedLane]]:
    loop = new_loop(bus, handler, concurrency, lease_s, principal_share)
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


@pytest.mark.parametrize("error", [BusUnavailable("hanging"), KeyError("of another library")])
async def test_a_drain_ends_although_no_claim_succeeds(
    bus: MemoryBus, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_loop, "LEAVE_MAX_S", 0.01)
    broken = UnexpectedErrors(bus, Claim, [error] * 10_000)
    loop = new_loop(broken, RecordingHandler(broken))
    task = asyncio.create_task(loop.run())
    await until(lambda: broken.raised)

    await asyncio.wait_for(loop.drain(0.01), DEADLINE_S)

    await task


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


async def test_work_has_time_to_give_its_lane_back_although_the_event_loop_is_late(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_loop, "LEAVE_MAX_S", 0.05)
    handler = GivesBack(bus)
    handler.gate.clear()
    send(bus, "slow")
    loop = new_loop(bus, handler)
    task = asyncio.create_task(loop.run())
    await until(lambda: handler.begun == ["slow"])

    loop.begin_drain(0.01)
    time.sleep(0.2)
    await task

    assert handler.done == ["slow"]


async def test_one_principal_leaves_slots_for_others(bus: MemoryBus) -> None:
    handler = RecordingHandler(bus)
    handler.gate.clear()
    for number in range(8):
        send(bus, f"ann {number}", f"a{number}", owner="user:ann")
    async with running(bus, handler, concurrency=4, principal_share=0.5):
        await until(lambda: handler.begun == ["ann 0", "ann 1"])
        send(bus, "bob", "b", owner="user:bob")

        await until(lambda: handler.begun == ["ann 0", "ann 1", "bob"])
        handler.gate.set()
        await until(lambda: len(handler.done) == 9)


async def test_a_principal_whose_work_waits_may_use_its_slot_for_another_lane(bus: MemoryBus) -> None:
    handler = RecordingHandler(bus)
    handler.gate.clear()
    for number in range(4):
        send(bus, f"ann {number}", f"a{number}", owner="user:ann")
    async with running(bus, handler, concurrency=4, principal_share=0.5) as loop:
        await until(lambda: len(handler.begun) == 2)
        async with loop.slot_released("user:ann"), loop.slot_released("user:ann"):
            await until(lambda: len(handler.begun) == 4)


async def test_work_that_waits_releases_its_slot(bus: MemoryBus) -> None:
    handler = RecordingHandler(bus)
    handler.gate.clear()
    send(bus, "first", "a")
    send(bus, "second", "b")
    async with running(bus, handler, concurrency=1) as loop:
        await until(lambda: len(handler.begun) == 1)
        async with loop.slot_released(""):
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
    class HangingEngine(EngineWrapper):
        errors = 2

        def answer(self, operation: Operation[Any]) -> Any:
            if self.errors:
                self.errors -= 1
                raise BusUnavailable("hanging")
            return self.inner.call(operation)

    hanging = HangingEngine(bus)
    handler = RecordingHandler(hanging)
    send(bus, "hello")

    async with running(hanging, handler):
        await until(lambda: handler.done == ["hello"])


def test_a_loop_needs_a_slot(bus: MemoryBus) -> None:
    with pytest.raises(LimitError):
        new_loop(bus, RecordingHandler(bus), concurrency=0)


# --- unexpected errors


UNEXPECTED = (ValueError("odd"), KeyError("field"), MemoryError(), asyncio.CancelledError())
each_error = pytest.mark.parametrize("error", UNEXPECTED, ids=lambda error: type(error).__name__)


@pytest.fixture
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_loop, "LANE_RETRY_FIRST_S", 0.001)
    monkeypatch.setattr(lane_loop, "LANE_RETRY_MAX_S", 0.002)


@pytest.mark.usefixtures("_quick")
@each_error
async def test_work_that_fails_is_retried_and_other_lanes_go_on(bus: MemoryBus, error: BaseException) -> None:
    handler = RecordingHandler(bus)
    handler.errors["odd"] = [error] * (LANE_FAILURES_MAX - 1)
    send(bus, "odd", "a")
    send(bus, "plain", "b")

    async with running(bus, handler):
        await until(lambda: sorted(handler.done) == ["odd", "plain"])

    assert bus.read(f"dead:{AGENT}") == []


@pytest.mark.usefixtures("_quick")
@each_error
async def test_mail_that_keeps_failing_becomes_a_dead_letter_with_the_reason(
    bus: MemoryBus, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    handler = RecordingHandler(bus)
    handler.errors["odd"] = [error] * LANE_FAILURES_MAX
    send(bus, "odd")
    send(bus, "next")

    async with running(bus, handler):
        await until(lambda: handler.done == ["next"])

    (dead,) = bus.read(f"dead:{AGENT}")
    assert dead.payload["mail"]["payload"]["content"] == "odd"
    assert f"gave up after {LANE_FAILURES_MAX} failures: {type(error).__name__}" in dead.payload["reason"]
    assert caplog.text.count("the work on a lane failed") == LANE_FAILURES_MAX


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("place", ["create_work", "before_claim", "after_claim", "topics_changed"])
async def test_an_error_of_a_handler_does_not_end_the_loop(bus: MemoryBus, place: str) -> None:
    handler = RecordingHandler(bus)
    handler.errors[place] = [ValueError("odd"), KeyError("field"), MemoryError()]

    async with running(bus, handler):
        for number in range(4):
            send(bus, f"mail {number}", f"c{number}")
            await until(lambda: len(handler.done) > number or not handler.errors[place])  # noqa: B023
        await until(lambda: len(handler.done) == 4)

    assert handler.errors[place] == []


@pytest.mark.usefixtures("_quick")
async def test_mail_whose_work_cannot_be_created_becomes_a_dead_letter(bus: MemoryBus) -> None:
    handler = RecordingHandler(bus)
    handler.errors["create_work"] = [IndexError("no mail")] * LANE_FAILURES_MAX
    send(bus, "odd")
    send(bus, "next")

    async with running(bus, handler):
        await until(lambda: handler.done == ["next"])

    assert len(bus.read(f"dead:{AGENT}")) == 1


async def test_an_error_in_the_background_that_time_may_fix_does_not_end_the_loop(
    bus: MemoryBus, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail() -> None:
        raise ValueError("odd")

    handler = RecordingHandler(bus)
    handler.extra = [fail()]

    async with running(bus, handler):
        await until(lambda: "a background task failed" in caplog.text)
        send(bus, "hello")
        await until(lambda: handler.done == ["hello"])


@pytest.mark.usefixtures("_quick")
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_settle_that_raises_loses_and_doubles_nothing(bus: MemoryBus, after: bool) -> None:
    broken = UnexpectedErrors(bus, Settle, [KeyError("field")], after=after)
    handler = RecordingHandler(broken)
    send(bus, "one")
    send(bus, "two")

    async with running(broken, handler):
        await until(lambda: "two" in handler.begun and not bus.call(Lanes(AGENT)))

    assert handler.done == (["two"] if after else ["one", "two"])  # after: it was settled, so it is not claimed again
    assert bus.read(f"dead:{AGENT}") == []


# --- the lease


class SlowRenewals(EngineWrapper):
    """Never answers the first `silent` renewals."""

    def __init__(self, bus: Engine, silent: int = 0) -> None:
        super().__init__(bus)
        self.silent = silent
        self.renewals = 0

    async def acall(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Renew):
            self.renewals += 1
            if self.renewals <= self.silent:
                await asyncio.get_running_loop().create_future()
        return self.call(operation)


async def test_a_renewal_does_not_wait_for_owner_checks_and_these_never_overlap(bus: MemoryBus) -> None:
    counting = SlowRenewals(bus)
    handler = RecordingHandler(counting)
    handler.gate.clear()
    handler.check_gate.clear()
    send(bus, "slow")

    async with running(counting, handler, lease_s=0.3):
        await until(lambda: handler.checked)
        seen = counting.renewals
        await until(lambda: counting.renewals >= seen + 3)
        assert len(handler.checked) == 1
        handler.check_gate.set()
        await until(lambda: len(handler.checked) == 2)


async def test_a_renewal_without_a_reply_is_tried_again(bus: MemoryBus) -> None:
    silent = SlowRenewals(bus, silent=2)
    handler = RecordingHandler(silent)
    handler.gate.clear()
    send(bus, "slow")

    async with running(silent, handler, lease_s=0.3):
        await until(lambda: silent.renewals > 2)


def test_four_tries_of_a_renewal_begin_before_the_lease_runs_out() -> None:
    begun, pause = 1 / 3, RENEWAL_PAUSE_SHARE  # in leases
    for _ in range(3):
        begun += RENEWAL_TRY_SHARE + pause
        pause = min(2 * pause, RENEWAL_TRY_SHARE)

    assert begun < 1 - RENEWAL_PAUSE_SHARE
