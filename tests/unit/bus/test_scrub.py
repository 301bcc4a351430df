"""When a scrub is due."""

from __future__ import annotations

import pytest

from magent2.bus.scrub import SCRUB_DELAY_S, SCRUB_TIME_SHARE, SCRUB_WITHIN_S, ScrubState

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000


def test_no_scrub_is_due_without_a_deletion() -> None:
    assert ScrubState().wait_s(NOW_MS) is None
    assert ScrubState.done(NOW_MS, 100).wait_s(NOW_MS) is None


def test_the_first_of_several_deletions_decides_when_the_scrub_is_due() -> None:
    state = ScrubState().asked(NOW_MS).asked(NOW_MS + 1500)

    assert (state.requests, state.wait_s(NOW_MS + 1500)) == (2, SCRUB_DELAY_S - 1.5)
    assert state.wait_s(NOW_MS + DAY_MS) == 0


def test_a_long_scrub_delays_the_next_one_for_a_multiple_of_its_time() -> None:
    state = ScrubState.done(NOW_MS, took_ms=500).asked(NOW_MS)

    assert state.wait_s(NOW_MS) == 0.5 * SCRUB_TIME_SHARE


def test_no_deletion_waits_longer_than_the_stated_time() -> None:
    state = ScrubState.done(NOW_MS, took_ms=3_600_000).asked(NOW_MS)

    assert state.wait_s(NOW_MS) == SCRUB_WITHIN_S


@pytest.mark.parametrize("days", [-1, 1])
def test_a_clock_that_jumps_does_not_delay_a_scrub(days: int) -> None:
    state = ScrubState.done(NOW_MS, took_ms=100).asked(NOW_MS)

    assert state.wait_s(NOW_MS + days * DAY_MS) == 0
