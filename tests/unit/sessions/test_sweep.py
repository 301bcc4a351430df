"""A sweep of a log: what it removes, what it leaves, and what it counts in a dry run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import BlockingLog, run_sync
from magent2.bus.operations import Append, Claim, Compact, Describe, PutBlob, SetHead, Settle, Topics
from magent2.bus.records import NewRecord
from magent2.bus.retention import RetentionPolicy, TopicRetention
from magent2.mail.registration import register_agent
from magent2.models.address import usage_topic
from magent2.models.budgets import Amount, Limit
from magent2.models.principal import Principal
from magent2.sessions.history import RunKey, read_history
from magent2.sessions.settings import SessionChange, configure_session
from magent2.sessions.store import create_session, delete_session
from magent2.sessions.sweep import RecordLine, Sweep, SweepResult, closed_drafts, sweep_log, trimmable_history
from magent2.sessions.usage.budgets import BudgetName, read_limits, set_limit
from magent2.sessions.usage.ledger import CallFacts, read_user_usage, reserve_record, spend_record
from tests.support.audit import whole_log
from tests.support.engine_wrappers import EngineWrapper
from tests.support.engines import ENGINES, new_engines
from tests.support.waiting import eventually

LATER_MS = 10**14  # far in the future: everything is old
NOTHING = RetentionPolicy(tokens_after_s=None)
ALL_OLD = TopicRetention(max_age_s=0.0)


@pytest.fixture(params=ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


def sweep(bus: Engine, policy: RetentionPolicy, **options: Any) -> SweepResult:
    return run_sync(bus, sweep_log, policy, LATER_MS, **options)


def swept(bus: Engine, policy: RetentionPolicy, kind: str) -> SweepResult:
    """Sweep until something of this kind is old enough to go."""
    results: list[SweepResult] = []

    def look() -> bool:
        results.append(sweep(bus, policy))
        return bool(getattr(results[-1], kind))

    eventually(look)
    return results[-1]


def answer(bus: Engine, conversation: str = "one", tokens: int = 3) -> None:
    topic = f"stream:{conversation}"
    pieces = [NewRecord(topic, {"event": "token", "n": n}, draft="run-1") for n in range(tokens)]
    whole = NewRecord(topic, {"event": "output"}, closes="run-1")
    bus.call(Append(records=(*pieces, whole), heads=(SetHead(topic, {"run_status": "finished"}),)))


def run_of(bus: Engine, run: str, *, ended: bool = True, conversation: str = "one") -> None:
    key = RunKey(conversation, run, "Ada")
    records = [key.start({"id": run}, {}, 0), key.answer(0, {}, "Ada")]
    bus.call(Append(records=tuple(records + ([key.end("finished", "fine")] if ended else []))))


def kinds(bus: Engine, conversation: str = "one") -> list[tuple[str, str]]:
    records = whole_log(bus, f"history:{conversation}")
    return [(str(record.payload.get("run", "")), record.payload["kind"]) for record in records]


def test_the_default_policy_removes_closed_drafts_and_nothing_else(bus: Engine) -> None:
    answer(bus)
    bus.call(Append(records=(NewRecord("stream:one", {"event": "token"}, draft="run-2"),)))
    run_of(bus, "r1")
    bus.call(Append(records=(NewRecord("dead:Ada", {}), NewRecord("chat:one", {}), NewRecord("note:x", {}))))
    bus.call(PutBlob(b"unnamed"))

    result = swept(bus, RetentionPolicy(tokens_after_s=0.0), "tokens")

    assert result == SweepResult(visited=1, tokens=3)
    assert [record.seq for record in whole_log(bus, "stream:one")] == [4, 5]
    assert bus.call(Describe(("stream:one",)))[0].floor == 0
    assert RetentionPolicy() == RetentionPolicy(tokens_after_s=600.0)


def test_drafts_stay_for_the_time_that_the_policy_names(bus: Engine) -> None:
    answer(bus)

    assert sweep(bus, RetentionPolicy()).tokens == 0
    assert sweep(bus, NOTHING) == SweepResult()


def test_a_topic_with_many_drafts_is_compacted_in_steps(bus: Engine) -> None:
    for _ in range(3):
        answer(bus, tokens=900)
    counting = CountingSteps(bus)

    assert eventually(lambda: run_sync(counting, sweep_log, RetentionPolicy(tokens_after_s=0.0), LATER_MS).tokens)

    assert len(whole_log(bus, "stream:one")) == 3
    assert counting.most <= 1000
    assert counting.steps >= 3


class CountingSteps(EngineWrapper):
    """Counts compaction steps and the drafts that one of them removed."""

    steps = most = 0

    def answer(self, operation: Any) -> Any:
        answer = super().answer(operation)
        if isinstance(operation, Compact):
            self.steps += 1
            self.most = max(self.most, answer.dropped)
        return answer


def test_events_are_trimmed_by_age_or_number(bus: Engine) -> None:
    for n in range(5):
        bus.call(Append(records=(NewRecord("stream:one", {"n": n}),)))

    assert sweep(bus, RetentionPolicy(events=TopicRetention(max_count=2))).events == 3
    assert len(whole_log(bus, "stream:one")) == 2
    eventually(lambda: sweep(bus, RetentionPolicy(events=ALL_OLD)).events)
    assert whole_log(bus, "stream:one") == []


def test_only_ended_runs_leave_the_history_and_no_run_is_cut(bus: Engine) -> None:
    run_sync(bus, create_session, "one", "user:ann")
    run_of(bus, "r1")
    run_of(bus, "waits", ended=False)
    run_of(bus, "r3")

    removed = eventually(lambda: sweep(bus, RetentionPolicy(history=ALL_OLD)).history)

    assert removed == 3
    assert {run for run, _ in kinds(bus)} == {"waits", "r3"}


def test_the_settings_of_a_conversation_survive_its_history(bus: Engine) -> None:
    ann = Principal("user:ann")
    run_sync(bus, configure_session, "one", ann, SessionChange("Ada", "main", instructions="be kind"))
    before = run_sync(bus, read_history, "one").settings
    run_of(bus, "r1")
    run_of(bus, "r2")

    eventually(lambda: sweep(bus, RetentionPolicy(history=ALL_OLD)).history)

    assert [kind for _, kind in kinds(bus)] == ["settings"]
    assert run_sync(bus, read_history, "one").settings == before


def test_the_settings_of_a_conversation_without_history_can_be_changed(bus: Engine) -> None:
    run_sync(bus, create_session, "one", "ann")
    run_of(bus, "r1")
    swept(bus, RetentionPolicy(None, history=ALL_OLD), "history")
    assert kinds(bus) == []

    change = SessionChange(agent="Ada", scenario_id="s1", overlay="Be brief.")
    run_sync(bus, configure_session, "one", Principal("ann"), change)

    assert run_sync(bus, read_history, "one").settings["overlay"] == "Be brief."


def test_settled_mail_and_dead_letters_go_and_waiting_mail_stays(bus: Engine) -> None:
    run_sync(bus, register_agent, "Ada")
    for conversation in ("settled", "waits"):
        bus.call(Append(records=(NewRecord("chat:Ada", {"conversation_id": conversation, "sender": "user:ann"}),)))
    lane = bus.call(Claim(worker="w1", agents=("Ada",), limit=1, lease_s=60.0)).lanes[0]
    bus.call(Settle(owner=lane.owner, mail=(lane.mail[0].ref,), records=(NewRecord("dead:Ada", {}),)))

    policy = RetentionPolicy(mail=ALL_OLD, dead_letters=ALL_OLD)
    result = swept(bus, policy, "mail")

    assert (result.mail, result.dead_letters) == (1, 1)
    assert [record.payload["conversation_id"] for record in whole_log(bus, "chat:Ada")] == ["waits"]


def test_idle_conversations_and_unnamed_blobs_go_when_the_policy_names_them(bus: Engine) -> None:
    for name in ("one", "two"):
        run_sync(bus, create_session, name, "user:ann")
    bus.call(PutBlob(b"unnamed"))

    policy = RetentionPolicy(idle_conversations_s=0.0, blobs_after_s=0.0)
    gone = SweepResult()
    while gone.conversations < 2:
        result = sweep(bus, policy)
        gone.conversations, gone.blobs = gone.conversations + result.conversations, gone.blobs + result.blobs

    assert (gone.conversations, gone.blobs) == (2, 1)
    assert bus.call(Topics("stream:")).topics == ()


def ledger_of(bus: Engine, run: str, conversation: str = "one", *, settled: bool = True) -> None:
    """Ledgers of a run and of its conversation, with one call each."""
    call, used = CallFacts(run, "Ada", "m", conversation, run, "2026-11-17"), Amount(10, 5, calls=1)
    for topic in (usage_topic("run", run), usage_topic("conversation", conversation), usage_topic("user", "user:ann")):
        records = [reserve_record(topic, f"reserve-{run}", call, used)]
        records += [spend_record(topic, call, used, f"reserve-{run}")] if settled else []
        bus.call(Append(records=tuple(records)))


def ledgers(bus: Engine) -> set[str]:
    return {info.topic for info in bus.call(Topics("usage:")).topics}


LEDGERS_OLD = RetentionPolicy(tokens_after_s=None, blobs_after_s=None, ledgers_after_s=0.0)


def test_the_ledger_of_a_run_goes_when_it_has_ended_and_with_it_the_limit_that_was_set(bus: Engine) -> None:
    run_sync(bus, create_session, "one", "user:ann")
    for run in ("r1", "r2"):
        run_of(bus, run, ended=run == "r1")
        ledger_of(bus, run)
        run_sync(bus, set_limit, BudgetName("run", run), Limit(calls=9), "user:ann")

    eventually(lambda: sweep(bus, LEDGERS_OLD, dry_run=True).ledgers == 1)
    result = sweep(bus, LEDGERS_OLD)

    assert result.ledgers == 1
    assert ledgers(bus) == {"usage:run:r2", "usage:conversation:one", "usage:user:user:ann"}
    assert set(run_sync(bus, read_limits).set) == {BudgetName("run", "r2")}
    assert sum(row.used.spent.calls for row in run_sync(bus, read_user_usage, "user:ann").rows) == 2


def test_the_ledger_of_a_run_stays_while_a_call_a_subagent_or_a_dead_letter_may_need_it(bus: Engine) -> None:
    mail = {"topic": "chat:Ada", "id": "m", "payload": {"conversation_id": "dead~sub"}, "headers": {}}
    run_sync(bus, register_agent, "Ada")
    for conversation in ("open", "parent", "dead", "mail", "parent~sub"):
        run_sync(bus, create_session, conversation, "user:ann")
    for conversation in ("open", "parent", "dead", "mail"):
        run_of(bus, f"r-{conversation}", conversation=conversation)
        ledger_of(bus, f"r-{conversation}", conversation)
    ledger_of(bus, "r-reserved", "open", settled=False)
    running = SetHead("stream:parent~sub", {"run_status": "running"})
    waiting = NewRecord("chat:Ada", {"conversation_id": "mail", "sender": "user:ann"})
    bus.call(Append(records=(NewRecord("dead:Ada", {"mail": mail}), waiting), heads=(running,)))

    now_ms = bus.call(Describe(("usage:run:r-reserved",)))[0].active_ms + 60_000
    eventually(lambda: run_sync(bus, sweep_log, LEDGERS_OLD, now_ms).ledgers == 1)

    runs = {topic.removeprefix("usage:run:") for topic in ledgers(bus) if topic.startswith("usage:run:")}
    assert runs == {"r-parent", "r-dead", "r-mail", "r-reserved"}


def test_the_ledger_of_a_run_stays_for_the_time_that_the_policy_names_and_is_left_to_full_sweeps(bus: Engine) -> None:
    run_sync(bus, create_session, "one", "user:ann")
    run_of(bus, "r1")
    ledger_of(bus, "r1")
    now_ms = bus.call(Describe(("usage:run:r1",)))[0].active_ms + 60_000

    young = run_sync(bus, sweep_log, RetentionPolicy(), now_ms)
    never = sweep(bus, RetentionPolicy(ledgers_after_s=None))
    partial = run_sync(bus, lambda log: Sweep(log, LEDGERS_OLD, LATER_MS, since_ms=1).run())

    assert (young.ledgers, never.ledgers, partial.ledgers) == (0, 0, 0)
    eventually(lambda: sweep(bus, RetentionPolicy()).ledgers == 1)


def test_the_ledgers_and_the_limit_of_a_conversation_go_when_it_was_deleted(bus: Engine) -> None:
    for name in ("one", "two"):
        run_sync(bus, create_session, name, "user:ann")
        run_of(bus, f"r-{name}", ended=False, conversation=name)
        ledger_of(bus, f"r-{name}", name)
        run_sync(bus, set_limit, BudgetName("conversation", name), Limit(calls=9), "user:ann")
    run_sync(bus, delete_session, "one")

    sweep(bus, LEDGERS_OLD)

    assert ledgers(bus) == {"usage:conversation:two", "usage:run:r-two", "usage:user:user:ann"}
    assert set(run_sync(bus, read_limits).set) == {BudgetName("conversation", "two")}


def test_a_dry_run_counts_the_same_and_changes_nothing(bus: Engine) -> None:
    run_sync(bus, register_agent, "Ada")
    run_sync(bus, create_session, "one", "user:ann")
    answer(bus)
    run_of(bus, "r1")
    run_of(bus, "waits", ended=False)
    bus.call(Append(records=(NewRecord("dead:Ada", {"n": 1}),)))
    bus.call(PutBlob(b"unnamed"))
    policy = RetentionPolicy(
        tokens_after_s=0.0,
        history=ALL_OLD,
        dead_letters=ALL_OLD,
        blobs_after_s=0.0,
    )
    before = [whole_log(bus, topic) for topic in ("stream:one", "history:one", "dead:Ada")]

    planned = sweep(bus, policy, dry_run=True)

    assert [whole_log(bus, topic) for topic in ("stream:one", "history:one", "dead:Ada")] == before
    assert planned == SweepResult(visited=1, tokens=3, history=3, dead_letters=1, blobs=1)
    assert swept(bus, policy, "tokens") == planned


def test_a_sweep_visits_only_what_was_active_and_goes_on_where_it_stopped(bus: Engine) -> None:
    for name in ("a", "b", "c"):
        answer(bus, name)
        _wait_for_clock(bus, _active(bus, name))
    policy = RetentionPolicy()
    log = BlockingLog(bus)

    since = Sweep(log, policy, LATER_MS, since_ms=_active(bus, "b"))
    rest = Sweep(log, policy, LATER_MS, before=(_active(bus, "c"), "stream:c"))

    assert run_sync(bus, lambda _: since.run()).visited == 2
    assert run_sync(bus, lambda _: rest.run()).visited == 2
    assert rest.before == (_active(bus, "a"), "stream:a")


def _active(bus: Engine, name: str) -> int:
    return bus.call(Describe((f"stream:{name}",)))[0].active_ms


def _wait_for_clock(bus: Engine, after_ms: int) -> None:
    eventually(lambda: _clock(bus) > after_ms)


def _clock(bus: Engine) -> int:
    bus.call(Append(records=(NewRecord("note:clock", {}),), heads=(SetHead("note:clock", {"tick": 1}),)))
    return bus.call(Describe(("note:clock",)))[0].active_ms


def test_drafts_are_counted_as_closed_only_before_an_old_closing_record() -> None:
    lines = [
        RecordLine(1, 10, draft="a"),
        RecordLine(2, 20, closes="a"),
        RecordLine(3, 30, draft="a"),
        RecordLine(4, 30, draft="b"),
        RecordLine(5, 40, closes="b"),
    ]

    assert [closed_drafts(lines, at) for at in (19, 20, 39, 40)] == [0, 1, 1, 2]


def test_a_history_is_trimmed_up_to_the_first_run_that_is_not_over() -> None:
    runs = [("start", "a"), ("start", "b"), ("end", "a"), ("end", "b"), ("start", "c"), ("settings", ""), ("end", "c")]
    lines = [RecordLine(n, n * 1000, kind=kind, run=run) for n, (kind, run) in enumerate(runs, start=1)]

    def through(count: int) -> int:
        return trimmable_history(lines, TopicRetention(max_count=count), 0)

    assert [through(count) for count in (0, 1, 3, 4, 5, 6, 7)] == [7, 4, 4, 0, 0, 0, 0]
    assert trimmable_history(lines, TopicRetention(max_age_s=4.0), 10_000) == 4
