"""The plan for the mail of a claimed lane."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from magent2.bus.records import MailRef, Record
from magent2.mail.headers import AWAITED, MAIL_SEEN, TARGET_ENVELOPE
from magent2.worker.cancellation import StopCommand
from magent2.worker.lane_mail import ConsumedMail, NothingToRun, RunPlan, UnreadablePlan, plan_lane

CHAT, CONTROL = "chat:Ada", "control:Ada"


def mail(seq: int, text: str = "hello", at_ms: int = 0, topic: str = CHAT, **fields: Any) -> Record:
    payload = {"conversation_id": "one", "sender": "user:ann", "recipient": "agent:Ada", "content": text}
    if topic == CONTROL:
        payload["type"] = "control"
    return Record(topic, {**payload, **fields}, f"id-{seq}", seq, at_ms or seq)


def control(seq: int, text: str, at_ms: int = 1000, **fields: Any) -> Record:
    return mail(seq, text, at_ms, CONTROL, **fields)


def seeing(seq: int, command: Record) -> Record:
    """Return a command whose sender had seen mail up to this seq."""
    return replace(command, headers={MAIL_SEEN: seq})


def answer_of(*records: Record) -> RunPlan:
    plan = plan_lane("one", records)
    assert isinstance(plan, RunPlan)
    return plan


def test_the_first_mail_is_answered() -> None:
    plan = answer_of(mail(1, "first"), mail(2, "second"))

    assert plan.parsed.envelope.content == "first"
    assert plan.consumed.refs == ()
    assert plan.stop_request is None


def test_mail_without_an_id_gets_the_id_of_its_record() -> None:
    assert answer_of(mail(7)).parsed.envelope.id == "id-7"
    assert answer_of(mail(7, id="mine")).parsed.envelope.id == "mine"


def test_erased_mail_is_settled_with_what_follows() -> None:
    erased = Record(CHAT, {}, "id-1", 1, erased=True)

    assert answer_of(erased, mail(2)).consumed.refs == (MailRef(CHAT, 1),)
    assert plan_lane("one", [erased]) == NothingToRun(ConsumedMail((MailRef(CHAT, 1),)))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"sender": None}, "sender"),
        ({"type": "song"}, "type"),
        ({"content": {"text": "hi"}}, "content"),
        ({"metadata": "none"}, "metadata"),
        ({"created_at": "yesterday"}, "created_at"),
        ({"id": ""}, "id"),
        ({"id": 7}, "id"),
    ],
)
def test_mail_that_is_no_envelope_is_unreadable_and_says_why(fields: dict[str, Any], reason: str) -> None:
    record = mail(1, **fields)

    plan = plan_lane("one", [record, mail(2)])

    assert isinstance(plan, UnreadablePlan)
    assert plan.record is record
    assert plan.reason.startswith("not an envelope: ")
    assert reason in plan.reason


def test_an_empty_payload_is_unreadable_and_names_a_few_faults() -> None:
    plan = plan_lane("one", [Record(CHAT, {}, "id-1", 1)])

    assert isinstance(plan, UnreadablePlan)
    assert "conversation_id: Field required; sender: Field required" in plan.reason


def test_a_malformed_record_is_unreadable() -> None:
    plan = plan_lane("", [Record(CHAT, {}, "@1", 1, malformed="not JSON")])

    assert isinstance(plan, UnreadablePlan)
    assert plan.reason == "the record cannot be read: not JSON"


def test_mail_without_a_conversation_is_unreadable() -> None:
    plan = plan_lane("", [mail(1, conversation_id=" ")])

    assert isinstance(plan, UnreadablePlan)
    assert plan.reason == "the mail names no conversation"


def test_a_stop_ends_the_run_of_mail_that_is_older() -> None:
    plan = answer_of(control(1, "stop", at_ms=20), mail(1, at_ms=10))

    assert plan.stop_request == StopCommand("stopped by user:ann")
    assert plan.consumed.refs == (MailRef(CONTROL, 1),)


def test_a_stop_of_the_same_millisecond_applies() -> None:
    assert answer_of(control(1, "stop", at_ms=10), mail(1, at_ms=10)).stop_request


def test_a_stop_does_not_end_the_run_of_mail_that_is_younger() -> None:
    plan = answer_of(control(1, "stop", at_ms=10), mail(1, at_ms=11))

    assert plan.stop_request is None
    assert plan.consumed.refs == (MailRef(CONTROL, 1),)


def test_what_a_stop_has_seen_counts_more_than_the_clock() -> None:
    late, early = control(1, "stop", at_ms=9), control(1, "stop", at_ms=1)

    assert answer_of(seeing(4, early), mail(4, at_ms=5)).stop_request is not None
    assert answer_of(seeing(3, late), mail(4, at_ms=5)).stop_request is None


def test_a_stop_of_an_ended_run_does_not_stop_the_next() -> None:
    stop = replace(control(1, "stop"), headers={MAIL_SEEN: 9, TARGET_ENVELOPE: "mail-3"})

    assert answer_of(stop, mail(4, id="mail-4")).stop_request is None
    assert answer_of(stop, mail(3, id="mail-3")).stop_request is not None


def test_a_stop_ends_the_first_run_only() -> None:
    plan = answer_of(control(1, "stop"), mail(1, "first"), mail(2, "second"))

    assert plan.parsed.envelope.content == "first"
    assert MailRef(CHAT, 2) not in plan.consumed.refs


def test_a_stop_of_an_idle_lane_is_consumed() -> None:
    plan = plan_lane("one", [control(1, " stop ")])

    assert isinstance(plan, NothingToRun)
    assert (plan.consumed.refs, plan.consumed.unknown) == ((MailRef(CONTROL, 1),), ())


def test_an_unknown_command_is_kept_to_report_it() -> None:
    plan = answer_of(control(1, "dance"), control(2, "stop", at_ms=0), mail(9))

    assert [parsed.command for parsed in plan.consumed.unknown] == ["dance"]
    assert plan.stop_request is None


def test_a_command_without_content_is_unknown() -> None:
    plan = plan_lane("one", [control(1, "stop", content=None)])

    assert isinstance(plan, NothingToRun)
    assert len(plan.consumed.unknown) == 1


def test_control_in_the_inbox_of_mail_is_a_command_too() -> None:
    plan = plan_lane("one", [mail(1, "stop", type="control")])

    assert isinstance(plan, NothingToRun)
    assert plan.consumed.unknown == ()


def test_a_stop_that_waits_behind_its_mail_stops_it_when_its_turn_comes() -> None:
    stop = replace(mail(3, "stop", type="control"), headers={MAIL_SEEN: 2, TARGET_ENVELOPE: "id-2", AWAITED: True})

    first = answer_of(mail(1), mail(2), stop)
    second = answer_of(mail(2), stop)
    after = answer_of(stop, mail(4))

    assert (first.stop_request, first.consumed.refs) == (None, ())
    assert second.stop_request is not None
    assert second.consumed.refs == (MailRef(CHAT, 3),)
    assert (after.stop_request, after.consumed.refs) == (None, (MailRef(CHAT, 3),))


def test_an_unreadable_command_is_buried_before_the_mail_is_answered() -> None:
    plan = plan_lane("one", [control(1, "dance"), control(2, "stop", sender=None), mail(1)])

    assert isinstance(plan, UnreadablePlan)
    assert plan.record.ref == MailRef(CONTROL, 2)
    assert plan.consumed.refs == (MailRef(CONTROL, 1),)


def test_a_disconnect_follows_the_policy_of_the_mail() -> None:
    gone = control(1, "disconnected")

    assert answer_of(gone, mail(1)).stop_request is None
    assert answer_of(gone, mail(1, metadata={"on_disconnect": "cancel"})).stop_request
    grace = answer_of(gone, mail(1, metadata={"on_disconnect": "grace", "grace_s": 3})).stop_request
    assert grace is not None
    assert grace.in_s == 3


def test_a_client_that_reconnected_keeps_its_run() -> None:
    stop_request = answer_of(
        control(1, "disconnected"), control(2, "connected"), mail(1, metadata={"on_disconnect": "grace"})
    ).stop_request

    assert stop_request is None
