"""Which run an interrupt stops, and which run can be superseded: pure decisions."""

from __future__ import annotations

from typing import Any

import pytest

from magent2.errors import NotSupersedable
from magent2.mail.headers import RUN_AGENT, RUN_ENVELOPE, RUN_STATUS
from magent2.models.address import Address
from magent2.sessions.busy import StopTarget, stop_target
from magent2.sessions.history import EndStatus, History, RunRecord
from magent2.sessions.superseding import Replacement, new_message, supersedable_run


def run(agent: str, mail: str, end: EndStatus | None = None, **fields: Any) -> RunRecord:
    envelope = {
        "id": mail,
        "sender": "user:ann",
        "recipient": "chat:one",
        "content": mail,
        **fields.pop("envelope", {}),
    }
    record = RunRecord(f"run-{mail}", agent, envelope, fields.pop("spec", {}), 0, **fields)
    record.end = None if end is None else {"status": end, "output": None, "usage": None}
    return record


def history(*runs: RunRecord) -> History:
    return History({one.run: one for one in runs})


def head(status: str, agent: str, mail: str) -> dict[str, object]:
    return {RUN_STATUS: status, RUN_AGENT: agent, RUN_ENVELOPE: mail}


ADA, BEA = run("Ada", "m1"), run("Bea", "m2")


@pytest.mark.parametrize(
    ("recipient", "runs", "shown", "expected"),
    [
        ("chat:one", (ADA,), head("running", "Ada", "m1"), StopTarget("Ada", "m1")),
        ("chat:one", (ADA, BEA), head("running", "Ada", "m1"), StopTarget("Ada", "m1")),
        ("chat:one", (ADA, BEA), head("finished", "Cy", "m0"), StopTarget("Bea", "m2")),
        # a failed run whose dead letter was retried: only the head says that it is in progress again
        ("chat:one", (run("Ada", "m1", "failed"),), head("running", "Ada", "m1"), StopTarget("Ada", "m1")),
        ("agent:Ada", (ADA, BEA), head("running", "Bea", "m2"), StopTarget("Ada", "m1")),
        ("agent:Cy", (ADA, BEA), head("running", "Bea", "m2"), StopTarget("Cy")),
        ("chat:one", (run("Ada", "m1", "finished"),), head("finished", "Ada", "m1"), StopTarget("Ada")),
        ("chat:one", (), {}, StopTarget("Ada")),
    ],
)
def test_an_interrupt_stops_the_run_that_was_seen_or_else_the_first_message(
    recipient: str, runs: tuple[RunRecord, ...], shown: dict[str, object], expected: StopTarget
) -> None:
    address = Address.parse(recipient)
    addressed = address.name if address.kind == "agent" else "Ada"

    assert stop_target(history(*runs), shown, address, addressed) == expected


def test_without_an_agent_there_is_nothing_to_stop() -> None:
    assert stop_target(history(), {}, Address.parse("chat:one"), None) is None


DONE, LATER = run("Ada", "m1", "finished"), run("Ada", "m2", "stopped")


@pytest.mark.parametrize(
    ("runs", "message_id", "expected"),
    [
        ((DONE,), None, DONE),
        ((DONE, LATER), None, LATER),
        ((DONE, LATER), "m2", LATER),
        ((DONE, LATER), "run-m2/3", LATER),
        ((DONE, run("Ada", "t1", "finished", spec={"kind": "tool"})), None, DONE),
        ((DONE, run("Ada", "m2", "finished", superseded="m3")), None, DONE),
    ],
)
def test_the_last_run_of_the_dialogue_can_be_superseded(
    runs: tuple[RunRecord, ...], message_id: str | None, expected: RunRecord
) -> None:
    assert supersedable_run(history(*runs), message_id) is expected


@pytest.mark.parametrize(
    ("runs", "message_id"),
    [
        ((), None),
        ((run("Ada", "m1"),), None),
        ((DONE, LATER), "m1"),
        ((DONE, LATER), "never"),
        ((DONE, run("Bea", "m2", "finished", envelope={"sender": "agent:Ada"})), None),
    ],
)
def test_nothing_else_can_be_superseded(runs: tuple[RunRecord, ...], message_id: str | None) -> None:
    with pytest.raises(NotSupersedable):
        supersedable_run(history(*runs), message_id)


def test_the_new_message_keeps_what_its_sender_had_added() -> None:
    before = run("Ada", "m1", "finished", envelope={"metadata": {"client_message_id": "k1", "on_disconnect": "cancel"}})

    again = new_message(Replacement("one", "m2", "user:ann", key="k2"), before)
    edited = new_message(Replacement("one", "m2", "user:ann", text="else"), before)

    assert (again.content, again.recipient) == ("m1", "chat:one")
    assert again.metadata == {"client_message_id": "k2", "on_disconnect": "cancel", "supersedes": "m1"}
    assert (edited.content, edited.metadata) == ("else", {"on_disconnect": "cancel", "supersedes": "m1"})
