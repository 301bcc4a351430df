"""When a schedule fires: at an instant, after a duration, or by a cron expression in a time zone.

A slot is an instant in milliseconds since 1970, UTC. `cronsim` finds the slots of a cron expression, by the rules of
Debian's cron: days, hours and minutes are local times of the zone. When clocks are set forward, an expression with a
fixed hour and minute fires at the first minute after the gap; when they are set back, it fires in the first of the two
hours only. An expression whose hour or minute begins with `*` follows the time that passes: it skips the gap, and fires
in both hours.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from functools import cache
from itertools import islice
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

from magent2.errors import InvalidInput, LimitError
from magent2.models.json_types import JsonMapping, JsonObject

CRON_FIELDS = 5
CRON_MAX_CHARS = 200
DURATION_MIN_S = 1.0
HORIZON_S = 10 * 365 * 86_400.0  # how far ahead an instant may be
INTERVAL_MIN_S = 60.0  # between two slots of a cron expression
INTERVALS_CHECKED = 100  # of the first slots of an expression, when it is created
INTERVALS_CHECKED_S = 366 * 86_400.0  # those in this time: a hundred slots on 29 February took a second to find
MISSED_MAX = 100  # missed slots that the policy `all` fires
SLOTS_COUNTED_MAX = 1000  # missed slots that are counted one by one
WINDOW_FIRST_S = 7_200.0  # see `last_slots`

# Twelve digits are more than any limit, and few enough for every number to be converted.
_DURATION = re.compile("".join(rf"(?:([0-9]{{1,12}}){unit})?" for unit in "wdhms"))
_UNITS_S = (604_800, 86_400, 3600, 60, 1)


@dataclass(frozen=True, slots=True)
class Timing:
    """The slots of a schedule. Exactly one of `at_ms`, `in_s` and `cron` is set.

    `in_s` counts from the creation of the schedule. `until_ms`: there is no slot after it.
    """

    at_ms: int | None = None
    in_s: float | None = None
    cron: str | None = None
    timezone: str = "UTC"
    until_ms: int | None = None

    @classmethod
    def of(cls, fields: JsonMapping) -> Timing:
        return cls(
            fields.get("at_ms"),
            fields.get("in_s"),
            fields.get("cron"),
            str(fields.get("timezone") or "UTC"),
            fields.get("until_ms"),
        )

    def fields(self) -> JsonObject:
        """Return the fields that are set, for a head."""
        given: JsonObject = {
            "at_ms": self.at_ms,
            "in_s": self.in_s,
            "cron": self.cron,
            "timezone": self.timezone,
            "until_ms": self.until_ms,
        }
        return {name: value for name, value in given.items() if value is not None}

    def next_slot(self, after_ms: int, created_ms: int) -> int | None:
        """Return the first slot after an instant, or `None` if there is none."""
        return next(self.slots(after_ms, created_ms), None)

    def slots(self, after_ms: int, created_ms: int) -> Iterator[int]:
        """Return the slots after an instant, in order. Those of a cron expression do not end by themselves."""
        if self.cron is None:
            slot = self.at_ms if self.in_s is None else created_ms + round(self.in_s * 1000)
            found = iter(() if slot is None or slot <= after_ms else (slot,))
        else:
            found = _cron_slots(self.cron, self.timezone, after_ms)
        for slot in found:
            if self.until_ms is not None and slot > self.until_ms:
                return
            yield slot

    def check_ahead(self, now_ms: int) -> None:
        """Raise `InvalidInput` if there is no slot after now, or one that is too far away."""
        if self.at_ms is not None and self.at_ms <= now_ms:
            raise InvalidInput(f"'at' is in the past; it is {_utc(now_ms)} now")
        slot = self.next_slot(now_ms, now_ms)
        if slot is None:
            raise InvalidInput("there is no slot before 'until'")
        if slot - now_ms > HORIZON_S * 1000:
            raise LimitError(f"the first slot is {_utc(slot)}, the limit is {HORIZON_S / 86_400:g} days from now")


def _utc(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="seconds")


def _cron_slots(cron: str, zone: str, after_ms: int) -> Iterator[int]:
    """Return the slots of an expression. In a repeated hour, the library may begin with slots before the instant."""
    after = datetime.fromtimestamp(after_ms / 1000, ZoneInfo(zone))
    follows_time = any(field.startswith("*") for field in cron.split()[:2])
    last_ms = after_ms
    try:
        for moment in _slots_by_offset(cron, after) if follows_time else CronSim(cron, after):
            slot = round(moment.timestamp() * 1000)
            if slot > last_ms:
                last_ms = slot
                yield slot
    except OverflowError:  # the last year that a date can have
        return


def _slots_by_offset(cron: str, after: datetime) -> Iterator[datetime]:
    """Return the slots of an expression that follows the time that passes: those of each UTC offset, in turn.

    The library is asked for one offset at a time. Across a change of half an hour it adds whole hours, and would miss
    the first half of the next hour that it looks for.
    """
    zone, second = after.tzinfo, timedelta(seconds=1)
    begin = after.astimezone(UTC).replace(microsecond=0) + second
    while True:
        offset = begin.astimezone(zone).utcoffset() or timedelta()
        for slot in CronSim(cron, (begin - second).astimezone(timezone(offset))):  # those after this instant
            change = _offset_change(zone, begin, slot.astimezone(UTC))
            if change is not None:
                begin = change
                break
            yield slot
            begin = slot.astimezone(UTC)
        else:
            return


def _offset_change(zone: tzinfo | None, after: datetime, until: datetime) -> datetime | None:
    """Return the first whole second at which a zone has another offset than at `after`, or `None`. All are in UTC.

    There is at most one change on a day.
    """
    offset = after.astimezone(zone).utcoffset()
    same = other = after
    while other.astimezone(zone).utcoffset() == offset:
        if other >= until:
            return None
        same, other = other, min(other + timedelta(days=1), until)
    while other - same > timedelta(seconds=1):
        middle = same + timedelta(seconds=(other - same).total_seconds() // 2)
        if middle.astimezone(zone).utcoffset() == offset:
            same = middle
        else:
            other = middle
    return other


@dataclass(frozen=True, slots=True)
class DueSlots:
    """The slots that are due: the newest `MISSED_MAX`, and how many there are.

    `more`: there are more than `count`, which were not counted one by one.
    """

    newest: tuple[int, ...]
    count: int
    more: bool = False


def due_slots(timing: Timing, first_ms: int, now_ms: int, created_ms: int) -> DueSlots:
    """Return the slots from `first_ms`, which is one, to now. The time that it takes is bounded."""
    newest: deque[int] = deque(maxlen=MISSED_MAX)
    count = 0
    for slot in islice(timing.slots(first_ms - 1, created_ms), SLOTS_COUNTED_MAX):
        if slot > now_ms:
            return DueSlots(tuple(newest), count)
        newest.append(slot)
        count += 1
    if count < SLOTS_COUNTED_MAX:
        return DueSlots(tuple(newest), count)
    return DueSlots(last_slots(timing, newest[-1], now_ms, created_ms), count, more=True)


def last_slots(timing: Timing, after_ms: int, now_ms: int, created_ms: int) -> tuple[int, ...]:
    """Return the last `MISSED_MAX` slots up to now, beginning with a short window before now that doubles."""
    window_ms = round(WINDOW_FIRST_S * 1000)
    while True:
        begin_ms = max(after_ms - 1, now_ms - window_ms)
        newest: deque[int] = deque(maxlen=MISSED_MAX)
        for slot in timing.slots(begin_ms, created_ms):
            if slot > now_ms:
                break
            newest.append(slot)
        if len(newest) == MISSED_MAX or begin_ms < after_ms:
            return tuple(newest)
        window_ms *= 2


# --- parsing


def parse_duration(value: object) -> float:
    """Return a duration in seconds: a number of seconds, or a text such as `90s`, `15m`, `1h30m`, `2d`, `1w`."""
    seconds: float
    if isinstance(value, int | float) and not isinstance(value, bool):
        seconds = float(value)
    else:
        text = str(value).strip().lower().replace(" ", "")
        found = _DURATION.fullmatch(text)
        if found is None or not text:
            raise InvalidInput(
                f"{str(value)[:40]!r} is not a duration; write seconds, or for example '90s', '15m', '1h30m', '2d'"
            )
        numbers = zip(found.groups(), _UNITS_S, strict=True)
        seconds = float(sum(int(number) * unit for number, unit in numbers if number is not None))
    if not DURATION_MIN_S <= seconds <= HORIZON_S:
        raise LimitError(
            f"a duration is at least {DURATION_MIN_S:g} s and at most {HORIZON_S / 86_400:g} days, not {seconds:g} s"
        )
    return seconds


def parse_instant(value: object, timezone: str | None, what: str = "at") -> int:
    """Return an instant in milliseconds. A local time without an offset is one of the time zone, which is then needed.

    In the gap of daylight saving time it is moved past the gap; of a repeated hour it is the first.
    """
    text = str(value).strip()
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{what!r} must be an instant such as '2026-03-29T09:00:00+02:00', not {text[:40]!r}"
        ) from None
    if moment.tzinfo is None and timezone is None:
        raise InvalidInput(f"{what!r} has no offset from UTC: add one, as in '{text[:19]}+00:00', or name a 'timezone'")
    zone = moment.tzinfo or zone_named(timezone or "UTC")
    try:
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=zone)
            while moment != moment.astimezone(UTC).astimezone(zone):  # in the gap
                moment = moment.replace(second=0, microsecond=0) + timedelta(minutes=1)
        instant_ms = round(moment.timestamp() * 1000)
        _utc(instant_ms)  # what is stored is shown in UTC, which may be in another year
    except (OverflowError, ValueError):
        raise InvalidInput(f"{what!r} is outside the years 1 to 9999 of UTC: {text[:40]!r}") from None
    return instant_ms


@cache
def _zone_names() -> frozenset[str]:
    """Return the IANA names. Finding them reads the folders of the time zone database, so they are kept.

    `localtime` is a file of the system that is a different zone on each machine.
    """
    return frozenset(available_timezones() - {"localtime"})


def zone_named(name: str) -> ZoneInfo:
    """Return a time zone by its IANA name."""
    if name not in _zone_names():
        raise InvalidInput(f"there is no time zone {name[:60]!r}; use an IANA name such as 'Europe/Berlin' or 'UTC'")
    return ZoneInfo(name)


def check_cron(cron: str, timezone: str, now_ms: int, interval_min_s: float = INTERVAL_MIN_S) -> str:
    """Return the expression in its normal form. Raises `InvalidInput` if it is wrong or frequent, or never matches."""
    normal = " ".join(cron.split())
    if len(normal) > CRON_MAX_CHARS:
        raise LimitError(f"a cron expression has at most {CRON_MAX_CHARS} characters, not {len(normal)}")
    if len(normal.split(" ")) != CRON_FIELDS:
        raise InvalidInput(
            f"a cron expression has {CRON_FIELDS} fields: minute, hour, day of month, month, day of week; as in"
            f" '0 9 * * 1-5', not {normal[:60]!r}"
        )
    zone_named(timezone)
    try:
        CronSim(normal, datetime.fromtimestamp(now_ms / 1000, UTC))
    except (CronSimError, AssertionError, ValueError) as error:
        raise InvalidInput(f"cron expression {normal[:60]!r} is wrong: {error}") from None
    slots = _cron_slots(normal, timezone, now_ms)
    first = next(slots, None)
    if first is None:
        raise InvalidInput(f"cron expression {normal[:60]!r} never matches a date")
    shortest_ms = shortest_interval_ms(first, slots)
    if shortest_ms is not None and shortest_ms < interval_min_s * 1000:
        raise LimitError(
            f"cron expression {normal[:60]!r} fires every {shortest_ms / 1000:g} s, the limit is {interval_min_s:g} s"
        )
    return normal


def shortest_interval_ms(first: int, following: Iterator[int]) -> int | None:
    """Return the shortest time between the first slots. Slots more than a year after the first are not looked at."""
    shortest, before = None, first
    for slot in islice(following, INTERVALS_CHECKED):
        if slot - first > INTERVALS_CHECKED_S * 1000:
            break
        shortest = slot - before if shortest is None else min(shortest, slot - before)
        before = slot
    return shortest


@dataclass(frozen=True, slots=True)
class TimingInput:
    """What a person, a program or a model says about when a schedule fires. Not checked yet."""

    at: str | None = None
    in_: float | str | None = None
    cron: str | None = None
    timezone: str | None = None
    until: str | None = None

    def parse(self, now_ms: int, interval_min_s: float = INTERVAL_MIN_S, *, is_new: bool = True) -> Timing:
        """Return the timing. Raises `InvalidInput` that says what to change.

        Only a new one is checked against the clock: a repeat of a request may come after its time.
        """
        given = [name for name, value in (("at", self.at), ("in", self.in_), ("cron", self.cron)) if value is not None]
        if len(given) != 1:
            found = f", not {' and '.join(map(repr, given))}" if given else ""
            raise InvalidInput(f"a schedule needs exactly one of 'at', 'in' and 'cron'{found}")
        zone = zone_named(self.timezone or "UTC").key
        until_ms = None if self.until is None else parse_instant(self.until, self.timezone, "until")
        if self.cron is not None:
            cron = check_cron(self.cron, zone, now_ms, interval_min_s)
            timing = Timing(cron=cron, timezone=zone, until_ms=until_ms)
        elif self.in_ is not None:
            timing = Timing(in_s=parse_duration(self.in_), timezone=zone, until_ms=until_ms)
        else:
            timing = Timing(at_ms=parse_instant(self.at, self.timezone), timezone=zone, until_ms=until_ms)
        if is_new:
            timing.check_ahead(now_ms)
        return timing
