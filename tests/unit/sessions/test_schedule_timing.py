"""The slots of schedules: against a reference that looks at every minute, across daylight saving time."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from magent2.errors import InvalidInput
from magent2.sessions.schedules.planning import LOOK_EVERY_S, End, Fire, Skipped, Wait, next_step
from magent2.sessions.schedules.store import LATE_AFTER_S, Schedule
from magent2.sessions.schedules.timing import (
    MISSED_MAX,
    SLOTS_COUNTED_MAX,
    Timing,
    TimingInput,
    due_slots,
    last_slots,
    parse_duration,
    parse_instant,
    shortest_interval_ms,
)

MINUTE_MS, DAY_MS = 60_000, 86_400_000
# With daylight saving of an hour, of half an hour, of two hours, on the southern half, of another sign, and none.
ZONES = (
    "Europe/Berlin", "Australia/Lord_Howe", "Antarctica/Troll", "America/Santiago", "Europe/Dublin", "America/New_York",
    "UTC",
)  # fmt: skip
# Before a change in each of the zones, and an ordinary day.
DAYS = tuple(
    datetime(*day, tzinfo=UTC)
    for day in ((2026, 3, 28), (2026, 10, 24), (2026, 4, 4), (2026, 10, 3), (2026, 3, 7), (2026, 11, 1), (2026, 6, 10))
)


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def reference(minute: str, hour: str, zone: str, begin_ms: int, days: int) -> list[int]:
    """The slots of `minute hour * * *` after an instant, found by looking at every minute of UTC."""
    tz, found = ZoneInfo(zone), set[int]()
    minutes = range(60) if minute == "*" else range(0, 60, int(minute[2:])) if "/" in minute else (int(minute),)
    hours = range(24) if hour == "*" else range(0, 24, int(hour[2:])) if "/" in hour else (int(hour),)
    follows_time = minute.startswith("*") or hour.startswith("*")
    if follows_time:
        for step in range(1, days * 1440 + 1):
            slot = (begin_ms // MINUTE_MS + step) * MINUTE_MS
            local = datetime.fromtimestamp(slot / 1000, tz)
            if local.minute in minutes and local.hour in hours:
                found.add(slot)
    else:
        first = datetime.fromtimestamp(begin_ms / 1000, tz).replace(tzinfo=None, hour=0, minute=0, second=0)
        for day in range(-1, days + 2):
            wanted = (first + timedelta(days=day)).replace(hour=hours[0], minute=minutes[0], microsecond=0)
            local = wanted.replace(tzinfo=tz, fold=0)
            while local.astimezone(UTC).astimezone(tz).replace(tzinfo=None) != wanted:  # in the gap: the minute after
                wanted += timedelta(minutes=1)
                local = wanted.replace(tzinfo=tz, fold=0)
            found.add(round(local.timestamp() * 1000))
    return sorted(slot for slot in found if begin_ms < slot <= begin_ms + days * DAY_MS)


@given(
    minute=st.sampled_from(["0", "5", "30", "59", "*", "*/15"]),
    hour=st.sampled_from(["0", "1", "2", "3", "12", "*", "*/2"]),
    zone=st.sampled_from(ZONES),
    day=st.sampled_from(DAYS),
    offset=st.integers(0, 2 * 1440),
)
@example(minute="30", hour="2", zone="Europe/Berlin", day=DAYS[1], offset=1440 + 75)  # begins in the repeated hour
@example(minute="30", hour="2", zone="Europe/Berlin", day=DAYS[0], offset=0)  # a slot in the gap
@example(minute="30", hour="2", zone="Antarctica/Troll", day=DAYS[0], offset=0)  # a gap of two hours
@example(minute="*/15", hour="*/2", zone="Antarctica/Troll", day=DAYS[1], offset=1440 + 75)  # two hours again
@example(
    minute="*", hour="0", zone="Australia/Lord_Howe", day=DAYS[2], offset=0
)  # half an hour again, before the slots
@settings(max_examples=60, deadline=None)
def test_slots_are_those_of_the_reference(minute: str, hour: str, zone: str, day: datetime, offset: int) -> None:
    begin_ms = round(day.timestamp() * 1000) + offset * MINUTE_MS
    timing = Timing(cron=f"{minute} {hour} * * *", timezone=zone)

    slots = list(takewhile(lambda slot: slot <= begin_ms + 3 * DAY_MS, timing.slots(begin_ms, 0)))

    assert slots == reference(minute, hour, zone, begin_ms, 3)


@pytest.mark.parametrize(
    ("cron", "begin", "slots"),
    [  # Europe/Berlin: 02:00 becomes 03:00 on 29 March, 03:00 becomes 02:00 on 25 October
        ("30 2 * * *", "2026-03-28T12:00Z", ["2026-03-29T01:00Z", "2026-03-30T00:30Z"]),
        ("30 2 * * *", "2026-10-24T12:00Z", ["2026-10-25T00:30Z", "2026-10-26T01:30Z"]),
        ("*/30 2 * * *", "2026-10-24T12:00Z", ["2026-10-25T00:00Z", "2026-10-25T00:30Z", "2026-10-25T01:00Z"]),
        ("*/30 2 * * *", "2026-03-28T12:00Z", ["2026-03-30T00:00Z"]),
    ],
)
def test_daylight_saving_time_follows_the_documented_rules(cron: str, begin: str, slots: list[str]) -> None:
    found = Timing(cron=cron, timezone="Europe/Berlin").slots(ms(begin), 0)

    assert list(islice(found, len(slots))) == [ms(slot) for slot in slots]


@pytest.mark.parametrize("cron", ["* * * * *", "0 * * * *", "30 2 * * *", "0 9 * * 1-5", "* 3 1 * *"])
def test_the_last_slots_are_those_of_a_full_count(cron: str) -> None:
    timing, now_ms = Timing(cron=cron, timezone="Europe/Berlin"), ms("2026-10-25T10:00:30Z")
    first = timing.next_slot(now_ms - 5 * DAY_MS, 0)
    assert first is not None
    every = list(takewhile(lambda slot: slot <= now_ms, timing.slots(first - 1, 0)))

    assert last_slots(timing, first, now_ms, 0) == tuple(every[-MISSED_MAX:])
    due = due_slots(timing, first, now_ms, 0)
    assert due.newest == tuple(every[-MISSED_MAX:])
    assert (due.count, due.more) == (min(len(every), SLOTS_COUNTED_MAX), len(every) > SLOTS_COUNTED_MAX)


def test_local_instants_in_the_gap_and_in_the_repeated_hour() -> None:
    assert parse_instant("2026-03-29T02:30", "Europe/Berlin") == ms("2026-03-29T01:00Z")
    assert parse_instant("2026-10-25T02:30", "Europe/Berlin") == ms("2026-10-25T00:30Z")
    assert parse_instant("2026-10-25T02:30+01:00", "Europe/Berlin") == ms("2026-10-25T01:30Z")
    with pytest.raises(InvalidInput, match="no offset"):
        parse_instant("2026-10-25T02:30", None)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("1h30m", 5400), ("2d", 172_800), (45, 45)])
def test_durations(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@given(st.text(max_size=30), st.text(max_size=30))
@settings(max_examples=200, deadline=None)
def test_any_text_is_a_timing_or_a_clear_error(cron: str, zone: str) -> None:
    for given_input in (TimingInput(cron=cron), TimingInput(in_=cron), TimingInput(at=cron, timezone=zone)):
        with suppress(InvalidInput):
            assert given_input.parse(ms("2026-06-10T00:00Z")).fields()


def test_rare_slots_are_not_compared_over_centuries() -> None:
    slots = Timing(cron="59 23 29 2 */7").slots(ms("2026-06-10T00:00Z"), 0)  # 29 February, if it is a Sunday
    first = next(slots)

    assert shortest_interval_ms(first, slots) is None
    assert next(slots) < first + 3 * 28 * 366 * DAY_MS  # one was taken to see that it is far away


# --- what to do now

NOW = ms("2026-06-10T12:00Z")
HOUR_MS = 60 * MINUTE_MS


def hourly(missed: str, next_ms: int, **fields: Any) -> Schedule:
    base = Schedule(schedule_id="s", owner="o", session_id="one", sender="o", timing=Timing(cron="0 * * * *"))
    return replace(base, **{"missed": missed, "next_ms": next_ms, **fields})


def test_a_slot_that_is_not_due_waits_and_no_longer_than_the_next_look() -> None:
    assert next_step(hourly("once", NOW + MINUTE_MS), NOW, 0) == Wait(NOW + MINUTE_MS, 60.0)
    assert next_step(hourly("once", NOW + 2 * HOUR_MS), NOW, 0) == Wait(NOW + 2 * HOUR_MS, LOOK_EVERY_S)


@pytest.mark.parametrize("missed", ["skip", "once", "all"])
def test_a_slot_in_time_fires_by_every_policy(missed: str) -> None:
    late_ms = round(LATE_AFTER_S * 1000)

    assert next_step(hourly(missed, NOW), NOW + late_ms, 0) == Fire(NOW, NOW + HOUR_MS, LATE_AFTER_S)


@pytest.mark.parametrize(
    ("missed", "step"),
    [
        ("skip", Wait(NOW + HOUR_MS, LOOK_EVERY_S, Skipped(NOW - 3 * HOUR_MS, NOW + 1, 4))),
        ("once", Fire(NOW, NOW + HOUR_MS, 120.0, Skipped(NOW - 3 * HOUR_MS, NOW, 3))),
        ("all", Fire(NOW - 3 * HOUR_MS, NOW - 2 * HOUR_MS, 3 * 3600 + 120.0)),
    ],
)
def test_missed_slots_by_policy(missed: str, step: object) -> None:
    assert next_step(hourly(missed, NOW - 3 * HOUR_MS), NOW + 2 * MINUTE_MS, 0) == step


def test_the_last_run_and_a_missed_last_slot_end_a_schedule() -> None:
    assert next_step(hourly("once", NOW, runs=4, max_runs=5), NOW, 0) == Fire(NOW, None, 0.0)
    only = Timing(at_ms=NOW)
    assert next_step(hourly("skip", NOW, timing=only), NOW + HOUR_MS, 0) == End(
        "its last slot was missed", Skipped(NOW, NOW + 1, 1)
    )
    assert next_step(hourly("once", NOW, timing=only), NOW + HOUR_MS, 0) == Fire(NOW, None, 3600.0)
