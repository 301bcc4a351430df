"""The ledger of usage on every engine, and its decisions: sums, checkpoints, days, limits."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Describe
from magent2.bus.records import NewRecord
from magent2.directory.erasure import erase_user
from magent2.errors import LimitError
from magent2.models.budgets import GROUP_FIELDS, NOTHING, Amount, Budgets, Limit
from magent2.sessions.usage import budgets as limits_of
from magent2.sessions.usage.budgets import (
    Allowed,
    Budget,
    BudgetName,
    Busy,
    CallRoot,
    Reached,
    WaitingRun,
    decide,
    local_time,
    next_day,
    read_limits,
    set_limit,
    wait_record,
    write_snapshot,
)
from magent2.sessions.usage.ledger import (
    RESERVATION_MAX_S,
    UNUSED,
    CallFacts,
    Ledger,
    ended_record,
    lost_record,
    read_ledger,
    read_user_usage,
    release_record,
    reserve_record,
    spend_record,
    write_checkpoint,
)
from magent2.sessions.usage.report import UsageFilter, UserRow, group_rows, read_report
from tests.support.engines import DISTINCT_ENGINES, new_engines

ANN = "usage:user:ann"
NOW = datetime(2026, 11, 17, 12, tzinfo=UTC)
NOW_MS = round(NOW.timestamp() * 1000)


def call(
    run: str = "r1", day: str = "2026-11-17", agent: str = "Ada", model: str = "m", talk: str = "one"
) -> CallFacts:
    return CallFacts(run, agent, model, talk, run, day)


def tokens(count: int, cost: str = "0") -> Amount:
    return Amount(count, 0, calls=1, cost_usd=Decimal(cost))


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


def append(bus: Engine, *records: NewRecord) -> None:
    bus.call(Append(records=records))


def ledger(bus: Engine) -> Ledger:
    return run_sync(bus, read_ledger, ANN)


def test_a_reservation_counts_until_it_is_settled_released_or_lost(bus: Engine) -> None:
    append(bus, *(reserve_record(ANN, f"res-{run}", call(run), tokens(50)) for run in "abcd"))
    append(bus, spend_record(ANN, call("a"), tokens(30), "res-a"))
    append(bus, release_record(ANN, "res-b"))
    append(bus, lost_record(ANN, "res-c"))

    found = ledger(bus)
    assert (found.total.spent.tokens, found.total.lost.tokens, found.reserved().tokens) == (30, 50, 50)
    append(bus, ended_record(ANN, "d"))
    assert (ledger(bus).total.lost.tokens, ledger(bus).reserved()) == (100, NOTHING)


def test_the_next_reservation_of_a_run_says_that_an_earlier_one_was_lost(bus: Engine) -> None:
    append(bus, reserve_record(ANN, "res-1", call(), tokens(50)))
    append(bus, reserve_record(ANN, "res-2", call(), tokens(60)))
    append(bus, spend_record(ANN, call(), tokens(7), "res-2"))

    assert (ledger(bus).total.spent.tokens, ledger(bus).total.lost.tokens) == (7, 50)


def test_a_reservation_whose_answer_waits_for_its_append_is_not_lost_by_the_next_one(bus: Engine) -> None:
    append(bus, reserve_record(ANN, "res-1", call(), tokens(50)))
    append(bus, reserve_record(ANN, "res-2", call(), tokens(60), ["res-1"]))
    append(bus, spend_record(ANN, call(), tokens(7), "res-1"), spend_record(ANN, call(), tokens(8), "res-2"))

    assert (ledger(bus).total.spent.tokens, ledger(bus).total.lost, ledger(bus).reserved()) == (15, NOTHING, NOTHING)


def test_a_checkpoint_keeps_sums_reservations_and_days_while_its_records_go(bus: Engine) -> None:
    append(bus, *(spend_record(ANN, call(day=f"2026-11-1{day}"), tokens(10 + day, "0.5"), None) for day in range(8)))
    append(bus, reserve_record(ANN, "open", call("r9"), tokens(99)))
    before = run_sync(bus, read_user_usage, "ann")
    assert run_sync(bus, write_checkpoint, "ann", NOW_MS)

    (info,) = bus.call(Describe((ANN,)))
    assert info.last - info.floor == 1
    found = ledger(bus)
    assert (found.total.spent.tokens, found.total.spent.cost_usd, list(found.open)) == (108, Decimal(4), ["open"])
    after = run_sync(bus, read_user_usage, "ann")
    assert (sorted(after.rows), after.reserved) == (sorted(before.rows), before.reserved)
    append(bus, spend_record(ANN, call("r9"), tokens(1), "open"))
    assert (ledger(bus).total.spent.tokens, ledger(bus).reserved()) == (109, NOTHING)
    assert run_sync(bus, write_checkpoint, "ann", NOW_MS)
    assert not run_sync(bus, write_checkpoint, "ann", NOW_MS)  # there is nothing new
    assert ledger(bus).total.spent.tokens == 109


def test_a_reader_that_read_before_a_checkpoint_reads_on_behind_it(bus: Engine) -> None:
    append(bus, spend_record(ANN, call(), tokens(5), None))
    known = ledger(bus)
    append(bus, spend_record(ANN, call(), tokens(6), None))
    run_sync(bus, write_checkpoint, "ann", NOW_MS)
    append(bus, spend_record(ANN, call(), tokens(7), None))

    assert run_sync(bus, read_ledger, ANN, known).total.spent.tokens == 18


def test_a_reservation_that_nobody_can_settle_any_more_is_lost_at_a_checkpoint() -> None:
    bus = MemoryBus()
    append(bus, reserve_record(ANN, "res-1", call(), tokens(50)))
    at_ms = next(iter(ledger(bus).open.values())).at_ms
    run_sync(bus, write_checkpoint, "ann", at_ms + round(RESERVATION_MAX_S * 1000) + 1)

    assert (ledger(bus).total.lost.tokens, ledger(bus).reserved()) == (50, NOTHING)
    assert sum((row.used for row in run_sync(bus, read_user_usage, "ann").rows), UNUSED).lost.tokens == 50
    bus.close()


calls = st.builds(
    lambda user, day, agent, model, talk, count: (user, call("r", f"2026-11-{day:02d}", agent, model, talk), count),
    st.sampled_from(["ann", "bob", ""]),
    st.integers(1, 9),
    st.sampled_from(["Ada", "Bea"]),
    st.sampled_from(["m", "n"]),
    st.sampled_from(["one", "two", "three"]),
    st.integers(0, 1000),
)


@given(st.lists(calls, max_size=40), st.lists(st.integers(0, 39), max_size=4))
def test_sums_by_user_agent_model_and_day_add_up_to_the_log(
    made: list[tuple[str, CallFacts, int]], checkpoints: list[int]
) -> None:
    bus = MemoryBus()
    for number, (user, facts, count) in enumerate(made):
        append(bus, spend_record(f"usage:user:{user}", facts, tokens(count), None))
        if number in checkpoints:
            run_sync(bus, write_checkpoint, user, NOW_MS)

    for field in GROUP_FIELDS:
        report = run_sync(bus, read_report, UsageFilter(), [field], NOW_MS)
        assert sum((group.used for group in report.groups), UNUSED) == report.total
        assert report.total.spent.tokens == sum(count for _, _, count in made)
        assert report.total.spent.calls == len(made)
    by_user = {group.values[0]: group.used for group in run_sync(bus, read_report, UsageFilter(), ["user"], 0).groups}
    for user, used in by_user.items():
        assert used == ledger_of(bus, user).total
    bus.close()


def ledger_of(bus: Engine, user: str) -> Ledger:
    return run_sync(bus, read_ledger, f"usage:user:{user}")


def test_a_report_is_of_these_days_this_user_and_this_conversation() -> None:
    bus = MemoryBus()
    for user in ("ann", "bob"):
        for day in (1, 2, 3):
            for talk in ("one", "two"):
                facts = call(day=f"2026-11-0{day}", talk=talk)
                append(bus, spend_record(f"usage:user:{user}", facts, tokens(10**day), None))

    wanted = UsageFilter("ann", "one", "2026-11-02", "2026-11-02")
    assert run_sync(bus, read_report, wanted, ["day"], NOW_MS).total.spent.tokens == 100
    assert run_sync(bus, read_report, UsageFilter(), ["day"], NOW_MS).total.spent.tokens == 4 * 1110
    bus.close()


def test_groups_beyond_the_limit_are_counted_and_the_largest_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("magent2.sessions.usage.report.GROUPS_MAX", 2)
    bus = MemoryBus()
    for count, agent in ((5, "a"), (9, "b"), (7, "c")):
        append(bus, spend_record(ANN, call(agent=agent), tokens(count), None))
    rows = [UserRow("ann", row) for row in run_sync(bus, read_user_usage, "ann").rows]

    groups, left_out = group_rows(rows, ["agent"])
    assert ([group.values for group in groups], left_out) == ([("b",), ("c",)], 1)
    bus.close()


def test_erasing_a_user_removes_the_usage_and_new_usage_counts_again(bus: Engine) -> None:
    append(bus, spend_record("usage:user:user:ann", call(), tokens(5), None))
    run_sync(bus, write_checkpoint, "user:ann", NOW_MS)
    append(bus, spend_record("usage:user:user:ann", call(), tokens(6), None))
    run_sync(bus, set_limit, BudgetName("user", "user:ann"), Limit(calls=3), "root")
    run_sync(bus, erase_user, "user:ann")

    assert run_sync(bus, read_user_usage, "user:ann").rows == ()
    assert not run_sync(bus, read_limits).set
    append(bus, spend_record("usage:user:user:ann", call(), tokens(7), None))
    assert run_sync(bus, read_ledger, "usage:user:user:ann").total.spent.tokens == 7
    assert [row.used.spent.tokens for row in run_sync(bus, read_user_usage, "user:ann").rows] == [7]


# --- limits

ROOT = CallRoot("ann", "one", "r1")


def test_limits_that_are_set_replace_those_of_the_configuration_until_they_are_reset(bus: Engine) -> None:
    configured = Budgets(user_day=Limit(calls=5))
    assert run_sync(bus, read_limits).budgets(ROOT, configured) == (
        Budget(BudgetName("user_day", "ann"), Limit(calls=5)),
    )
    run_sync(bus, set_limit, BudgetName("user_day", "ann"), Limit(tokens=9, cost_usd=Decimal("0.1")), "root")
    run_sync(bus, set_limit, BudgetName("day"), Limit(calls=7), "root")
    found = run_sync(bus, read_limits).budgets(ROOT, configured)
    assert [(str(budget.name), budget.limit) for budget in found] == [
        ("user_day:ann", Limit(tokens=9, cost_usd=Decimal("0.1"))),
        ("day", Limit(calls=7)),
    ]
    run_sync(bus, set_limit, BudgetName("user_day", "ann"), None, "root")
    run_sync(bus, write_snapshot)
    assert [str(budget.name) for budget in run_sync(bus, read_limits).budgets(ROOT, configured)] == [
        "user_day:ann",
        "day",
    ]


def test_setting_a_limit_wakes_the_runs_that_wait_for_it_and_no_others(bus: Engine) -> None:
    names = BudgetName("user", "ann"), BudgetName("user", "bob")
    append(bus, *(wait_record(WaitingRun(f"r-{name.name}", "Ada", f"talk-{name.name}", (name,))) for name in names))
    run_sync(bus, set_limit, names[0], Limit(calls=9), "root")

    (mail,) = bus.read("control:Ada")
    assert (mail.payload["content"], mail.payload["conversation_id"]) == ("resume", "talk-ann")
    assert list(run_sync(bus, read_limits).waiting) == ["r-bob"]


def test_very_many_waiting_runs_are_woken_by_several_appends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_of, "WAKES_PER_APPEND_MAX", 3)
    bus, name = MemoryBus(), BudgetName("day")
    append(bus, *(wait_record(WaitingRun(f"r{number}", "Ada", f"c{number}", (name,))) for number in range(8)))
    run_sync(bus, set_limit, name, Limit(calls=9), "root")

    assert not run_sync(bus, read_limits).waiting
    assert len(bus.read("control:Ada")) == 8
    bus.close()


def test_the_number_of_limits_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_of, "LIMITS_MAX", 1)
    bus = MemoryBus()
    run_sync(bus, set_limit, BudgetName("user", "a"), Limit(calls=1), "root")
    run_sync(bus, set_limit, BudgetName("user", "a"), Limit(calls=2), "root")
    with pytest.raises(LimitError, match="remove one"):
        run_sync(bus, set_limit, BudgetName("user", "b"), Limit(calls=1), "root")
    bus.close()


def test_snapshots_end_the_growth_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits_of, "LIMITS_SNAPSHOT_EVERY", 5)
    bus = MemoryBus()
    for number in range(40):
        run_sync(bus, set_limit, BudgetName("user", "a"), Limit(calls=number), "root")
    (info,) = bus.call(Describe(("budgets:limits",)))

    assert info.last - info.floor <= 8
    assert run_sync(bus, read_limits).set == {BudgetName("user", "a"): Limit(calls=39)}
    bus.close()


# --- the decision

RUN, USER_DAY = (
    Budget(BudgetName("run", "r1"), Limit(calls=3)),
    Budget(BudgetName("user_day", "ann"), Limit(tokens=100)),
)


def fold(*records: NewRecord) -> Ledger:
    bus = MemoryBus()
    if records:
        append(bus, *records)
    found = run_sync(bus, read_ledger, records[0].topic) if records else Ledger()
    bus.close()
    return found


def spent(count: int, day: str = "2026-11-17") -> Ledger:
    return fold(*(spend_record(ANN, call(day=day), tokens(10), None) for _ in range(count)))


def test_a_call_is_made_while_anything_is_left() -> None:
    assert decide([RUN], {RUN.name.topic: spent(2)}, NOW) == Allowed()
    assert decide([RUN], {RUN.name.topic: spent(3)}, NOW) == Reached((RUN,))
    assert decide([], {}, NOW) == Allowed()


def test_of_a_limit_of_nothing_no_call_is_made() -> None:
    nothing = Budget(RUN.name, Limit(cost_usd=Decimal(0)))
    assert decide([nothing], {RUN.name.topic: Ledger()}, NOW) == Reached((nothing,))


def test_calls_in_progress_may_use_the_rest_and_own_ones_of_an_earlier_attempt_are_lost() -> None:
    held = fold(
        *(spend_record(ANN, call(), tokens(1), None) for _ in range(2)),
        reserve_record(ANN, "x", call("other"), tokens(1)),
    )
    assert decide([RUN], {RUN.name.topic: held}, NOW, "r1") == Busy((RUN,))
    later = datetime.now(UTC) + timedelta(seconds=limits_of.IN_PROGRESS_MAX_S + 1)  # the log stamps by the clock
    assert decide([RUN], {RUN.name.topic: held}, later, "r1") == Reached((RUN,)), "nobody may settle it any more"
    assert decide([RUN], {RUN.name.topic: held}, NOW, "other") == Reached((RUN,))


def test_a_daily_budget_counts_one_day_and_says_when_it_ends() -> None:
    yesterday, today = spent(20, "2026-11-16"), spent(20)
    assert decide([USER_DAY], {USER_DAY.name.topic: yesterday}, NOW) == Allowed()
    found = decide([USER_DAY], {USER_DAY.name.topic: today}, NOW)
    assert found == Reached((USER_DAY,), datetime(2026, 11, 18, tzinfo=UTC))
    both = decide([USER_DAY, RUN], {USER_DAY.name.topic: today, RUN.name.topic: spent(3)}, NOW)
    assert isinstance(both, Reached)
    assert both.resumes_at is None  # the run needs more budget of another kind


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ("2026-03-28T12:00:00", "2026-03-28T23:00:00"),  # the day before the clock is set forward
        ("2026-03-29T12:00:00", "2026-03-29T22:00:00"),  # a day of 23 hours
        ("2026-10-25T12:00:00", "2026-10-25T23:00:00"),  # a day of 25 hours
    ],
)
def test_a_day_ends_at_midnight_of_the_time_zone_also_when_its_clock_is_set(now: str, expected: str) -> None:
    moment = datetime.fromisoformat(now).replace(tzinfo=ZoneInfo("Europe/Berlin"))
    assert next_day(moment) == datetime.fromisoformat(expected).replace(tzinfo=UTC)


def test_a_day_is_one_of_the_time_zone() -> None:
    late = round(datetime(2026, 11, 17, 23, 30, tzinfo=UTC).timestamp() * 1000)
    assert local_time(late, "Europe/Berlin").date().isoformat() == "2026-11-18"
    assert local_time(late, "UTC").date().isoformat() == "2026-11-17"
