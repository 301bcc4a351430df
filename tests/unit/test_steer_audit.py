"""The auditor of steers finds what is broken on purpose, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Operation, OwnedAppend, Write
from magent2.bus.records import NewRecord
from magent2.worker.lane_run import Outcome
from tests.support.engine_wrappers import EngineWrapper
from tests.support.steer_audit import steer_findings
from tests.support.steerable_run import SteerableAgent, pending_mail, steer
from tests.support.worker_fixture import run_worker, send, until


class KeepsMail(EngineWrapper):
    """What an answer has seen stays in the lane."""

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, OwnedAppend):
            operation = replace(operation, mail=())
        return self.inner.call(operation)


class Rewriting(EngineWrapper):
    """Changes the records of every append."""

    def change(self, record: NewRecord) -> list[NewRecord]:
        raise NotImplementedError

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Write):
            records = tuple(new for record in operation.records for new in self.change(record))
            operation = replace(operation, records=records)
        return self.inner.call(operation)


class ForgetsSteers(Rewriting):
    """Answers are recorded without what they have seen."""

    def change(self, record: NewRecord) -> list[NewRecord]:
        payload = {name: value for name, value in record.payload.items() if name != "steers"}
        return [replace(record, payload=payload)]


class WithoutReceipts(Rewriting):
    def change(self, record: NewRecord) -> list[NewRecord]:
        return [] if record.payload.get("event") == "message_received" else [record]


class TwoReceipts(Rewriting):
    def change(self, record: NewRecord) -> list[NewRecord]:
        return [record] * (2 if record.payload.get("event") == "message_received" else 1)


BROKEN: dict[str, tuple[Callable[[Engine], Engine], str]] = {
    "mail is not taken from the lane": (KeepsMail, "was the input of 1 runs"),
    "the record does not tell": (ForgetsSteers, "was seen by []"),
    "no receipt": (WithoutReceipts, "has the receipts []"),
    "two receipts": (TwoReceipts, "has the receipts"),
}


async def audited(make: Callable[[Engine], Engine]) -> list[str]:
    """The findings after a run of two turns to which something was said in each."""
    log = MemoryBus()
    bus = make(log)
    talk = SteerableAgent(turns=2)
    send(log, "go")
    async with run_worker(bus, talk.runner) as service:
        await talk.at(0)
        steers = [steer(log, "first").envelope_id]
        talk.open(0)
        await talk.at(1)
        steers.append(steer(log, "second").envelope_id)
        talk.open()
        await until(lambda: service.outcomes[Outcome.ANSWERED] and not pending_mail(log))
    findings = steer_findings(log, "one", steers)
    log.close()
    return findings


async def test_a_sound_log_has_no_findings() -> None:
    assert await audited(lambda bus: bus) == []


@pytest.mark.parametrize("name", BROKEN)
async def test_whatever_is_broken_is_found(name: str) -> None:
    make, finding = BROKEN[name]

    findings = await audited(make)

    assert any(finding in found for found in findings), findings
