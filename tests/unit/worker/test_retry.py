"""What happens to mail whose run failed or whose worker crashed."""

from __future__ import annotations

import asyncio

import pytest

from magent2.errors import BusUnavailable, InvalidInput, TransientError
from magent2.worker.retry import (
    ATTEMPTS_MAX,
    CRASHES_MAX,
    ERROR_TEXT_MAX_CHARS,
    RUN_RETRY_FIRST_S,
    RUN_RETRY_MAX_S,
    SUSPECT_AFTER,
    Bury,
    Quarantine,
    Retry,
    after_crashes,
    after_failure,
    error_text,
    is_suspect,
)


@pytest.mark.parametrize("error", [TransientError("busy"), BusUnavailable("away"), TimeoutError("slow")])
def test_a_transient_error_is_retried(error: Exception) -> None:
    assert after_failure(error, 1) == Retry(RUN_RETRY_FIRST_S)


@pytest.mark.parametrize("error", [ValueError("bug"), InvalidInput("bad"), RuntimeError(), ConnectionError("no")])
def test_any_other_error_is_buried_at_once(error: Exception) -> None:
    assert isinstance(after_failure(error, 1), Bury)


def test_the_reason_carries_type_and_message() -> None:
    assert after_failure(ValueError("no such thing"), 1) == Bury("ValueError: no such thing")


def test_each_attempt_waits_twice_as_long_up_to_a_limit() -> None:
    delays = [
        decision.delay_s
        for n in range(1, ATTEMPTS_MAX)
        if isinstance(decision := after_failure(TimeoutError(), n), Retry)
    ]

    assert delays == [min(RUN_RETRY_FIRST_S * 2**n, RUN_RETRY_MAX_S) for n in range(ATTEMPTS_MAX - 1)]
    assert max(delays) <= RUN_RETRY_MAX_S


def test_the_last_attempt_is_the_last() -> None:
    decision = after_failure(TransientError("busy"), ATTEMPTS_MAX)

    assert decision == Bury(f"gave up after {ATTEMPTS_MAX} attempts: TransientError: busy")


def test_the_same_failure_gives_the_same_decision() -> None:
    assert after_failure(TimeoutError(), 3) == after_failure(TimeoutError(), 3)


def test_mail_that_crashes_its_workers_is_given_up() -> None:
    assert after_crashes(CRASHES_MAX - 1) is None
    assert after_crashes(CRASHES_MAX) == Bury(f"gave up after {CRASHES_MAX} attempts during which the worker stopped")


def test_mail_is_suspect_after_some_crashes_and_long_before_it_is_given_up() -> None:
    assert [is_suspect(crashes) for crashes in (0, SUSPECT_AFTER, SUSPECT_AFTER + 1)] == [False, False, True]
    assert SUSPECT_AFTER + 2 < CRASHES_MAX


def test_the_text_of_an_error_is_bounded() -> None:
    text = error_text(ValueError("x" * 10_000))

    assert len(text) == ERROR_TEXT_MAX_CHARS
    assert text.startswith("ValueError: xxx")
    assert text.endswith("…")


def test_an_error_without_a_message_is_its_type() -> None:
    assert error_text(TimeoutError()) == "TimeoutError"


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
