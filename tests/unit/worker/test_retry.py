"""What happens to mail whose run failed or whose worker crashed."""

from __future__ import annotations

import asyncio

import pytest

from magent2.errors import (
    BusUnavailable,
    CircuitOpen,
    InvalidInput,
    ModelUnavailable,
    SettingsError,
    TransientError,
)
from magent2.mail.retry_policy import DELIVERY_RETRY, RETRY_AFTER_MAX_S, RUN_RETRY, RetryPolicy
from magent2.worker.retry import (
    CRASHES_MAX,
    SUSPECT_AFTER,
    Bury,
    Defer,
    Quarantine,
    QuarantinePlace,
    Retry,
    after_crashes,
    after_failure,
    is_suspect,
)

POLICY = RetryPolicy(first_s=1.0, max_s=60.0, jitter=0.5, give_up_after_s=3600.0)


def decide(error: Exception, failures: int = 1, elapsed_s: float = 0.0, chance: float = 0.0) -> Retry | Defer | Bury:
    return after_failure(error, failures, elapsed_s, POLICY, chance)


@pytest.mark.parametrize("error", [TransientError("busy"), BusUnavailable("away"), TimeoutError("slow")])
def test_a_transient_error_is_retried(error: Exception) -> None:
    assert decide(error) == Retry(1.0)


@pytest.mark.parametrize("error", [ValueError("bug"), InvalidInput("bad"), RuntimeError(), ConnectionError("no")])
def test_any_other_error_is_buried_at_once(error: Exception) -> None:
    assert isinstance(decide(error), Bury)


def test_a_permanent_error_is_its_own_reason() -> None:
    assert decide(ValueError("no such thing")) == Bury()


def test_each_failure_waits_twice_as_long_up_to_a_limit() -> None:
    assert [decide(TimeoutError(), failures) for failures in (1, 2, 3, 6, 7, 10_000)] == [
        Retry(seconds) for seconds in (1.0, 2.0, 4.0, 32.0, 60.0, 60.0)
    ]


def test_jitter_shortens_a_delay_by_its_share_at_most() -> None:
    assert [decide(TimeoutError(), 3, chance=chance) for chance in (0.0, 0.5, 1.0)] == [
        Retry(4.0),
        Retry(3.0),
        Retry(2.0),
    ]


def test_transient_failures_are_retried_for_the_whole_time_of_the_policy() -> None:
    assert isinstance(decide(TransientError("busy"), 99, elapsed_s=3599.9), Retry)
    assert decide(TransientError("busy"), 99, elapsed_s=3600.0) == Bury("gave up after 99 attempts in 3600 s")


def test_by_default_transient_failures_are_retried_for_at_least_an_hour() -> None:
    assert RUN_RETRY.give_up_after_s >= 3600
    assert DELIVERY_RETRY.give_up_after_s >= 3600


def test_a_provider_may_ask_for_a_longer_delay() -> None:
    assert decide(ModelUnavailable("slow down", retry_after_s=90.0)) == Retry(90.0)
    assert decide(ModelUnavailable("slow down", retry_after_s=0.1)) == Retry(1.0)
    assert decide(ModelUnavailable("slow down", retry_after_s=1e9)) == Retry(RETRY_AFTER_MAX_S)


def test_a_run_whose_circuit_is_open_is_deferred_until_the_next_probe() -> None:
    error = CircuitOpen("api.example", 10.0)

    assert [decide(error, chance=chance) for chance in (0.0, 1.0)] == [Defer(10.0), Defer(15.0)]
    assert isinstance(decide(error, elapsed_s=3600.0), Bury)


def test_a_first_delay_longer_than_the_longest_is_refused() -> None:
    with pytest.raises(SettingsError, match="longer than the longest"):
        RetryPolicy(first_s=2.0, max_s=1.0, jitter=0.0, give_up_after_s=60.0)


def test_mail_that_crashes_its_workers_is_given_up() -> None:
    assert after_crashes(CRASHES_MAX - 1) is None
    assert after_crashes(CRASHES_MAX) == Bury(f"gave up after {CRASHES_MAX} attempts during which the worker stopped")


def test_mail_is_suspect_after_some_crashes_and_long_before_it_is_given_up() -> None:
    assert [is_suspect(crashes) for crashes in (0, SUSPECT_AFTER, SUSPECT_AFTER + 1)] == [False, False, True]
    assert SUSPECT_AFTER + 2 < CRASHES_MAX


async def test_one_lane_is_inside_at_a_time() -> None:
    quarantine = Quarantine()

    assert await quarantine.enter("a")
    assert not await quarantine.enter("b")
    quarantine.leave("a")
    assert await quarantine.enter("b")


async def test_entering_waits_until_every_other_lane_is_decided() -> None:
    quarantine = Quarantine()
    for token in ("a", "b", "c"):
        quarantine.expect(token)
    entering = asyncio.create_task(quarantine.enter("a"))
    await asyncio.sleep(0)
    quarantine.decide("b")
    await asyncio.sleep(0)
    assert not entering.done()

    quarantine.leave("c")

    assert await entering


async def test_a_lane_that_is_not_inside_does_not_let_another_in() -> None:
    quarantine = Quarantine()
    await quarantine.enter("a")

    quarantine.leave("b")

    assert not await quarantine.enter("b")


async def test_a_lane_that_comes_back_enters_before_new_ones() -> None:
    quarantine = Quarantine()
    await quarantine.enter("a")
    returning = asyncio.create_task(quarantine.enter_again("b"))
    await asyncio.sleep(0)

    quarantine.leave("a")

    assert not await quarantine.enter("c")
    await returning
    quarantine.leave("b")
    assert await quarantine.enter("c")


async def test_a_lane_that_no_longer_wants_to_come_back_holds_no_place() -> None:
    quarantine = Quarantine()
    await quarantine.enter("a")
    first, second = (asyncio.create_task(quarantine.enter_again(token)) for token in ("b", "c"))
    await asyncio.sleep(0)

    first.cancel()
    quarantine.leave("a")
    second.cancel()
    await asyncio.wait([first, second])

    assert await quarantine.enter("d")


class Place:
    """A suspected run that is inside, its calls in progress, and what it recorded."""

    def __init__(self) -> None:
        self.quarantine = Quarantine()
        self.calls: set[str] = set()
        self.records: list[bool] = []
        self.place = QuarantinePlace(self.quarantine, "a", self.calls, self._record)

    async def _record(self, waits: bool) -> None:
        self.records.append(waits)

    async def enter_other(self) -> bool:
        return await self.quarantine.enter("b")


async def test_a_run_leaves_its_place_while_its_only_call_waits() -> None:
    run = Place()
    await run.quarantine.enter("a")
    run.calls.add("one")

    async with run.place.released():
        assert await run.enter_other()
        run.quarantine.leave("b")

    assert not await run.enter_other()
    assert run.records == [True, False]


async def test_a_run_keeps_its_place_while_another_of_its_calls_works() -> None:
    run = Place()
    await run.quarantine.enter("a")
    run.calls |= {"one", "two"}

    async with run.place.released():
        assert not await run.enter_other()
        run.calls.remove("two")
        await run.place.update()
        assert await run.enter_other()
        run.calls.add("three")
        begins = asyncio.create_task(run.place.update())
        await asyncio.sleep(0)
        assert not begins.done(), "a call begins beside another suspect"
        run.quarantine.leave("b")
        await begins

    assert run.records == [True, False]
    assert not await run.enter_other()


async def test_a_call_that_ends_waits_for_its_turn_if_another_suspect_is_inside() -> None:
    run = Place()
    await run.quarantine.enter("a")
    run.calls.add("one")

    async def wait() -> None:
        async with run.place.released():
            assert await run.enter_other()

    ends = asyncio.create_task(wait())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not ends.done()
    run.quarantine.leave("b")
    await ends

    assert run.records == [True, False]


async def test_a_call_that_goes_on_after_its_run_has_ended_does_not_enter_again() -> None:
    run = Place()
    await run.quarantine.enter("a")
    run.calls.add("one")

    async with run.place.released():
        run.place.close()
    assert await run.enter_other()
    run.quarantine.leave("b")


async def test_a_call_whose_run_ends_while_it_waits_for_its_turn_holds_no_place() -> None:
    run = Place()
    await run.quarantine.enter("a")
    run.calls.add("one")

    async def wait() -> None:
        async with run.place.released():
            assert await run.enter_other()

    ends = asyncio.create_task(wait())
    for _ in range(10):
        await asyncio.sleep(0)
    run.place.close()
    run.quarantine.leave("b")
    await ends

    assert await run.quarantine.enter("c")


async def test_the_turn_after_a_cancelled_wait_begins_inside() -> None:
    run = Place()
    await run.quarantine.enter("a")
    run.calls.add("one")

    async def wait() -> None:
        async with run.place.released():
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    run.calls.remove("one")
    assert run.records == [True]
    await run.place.update()

    assert run.records == [True, False]
    assert not await run.enter_other()
