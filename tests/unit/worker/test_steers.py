"""Steering a run in progress, on every engine: a steer is seen once, has a receipt, and is never lost."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magent2.bus.interface import Engine
from magent2.worker.lane_run import Outcome
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.runners import SyncRunner, output
from tests.support.steerable_run import (
    SteerableAgent,
    pending_mail,
    receipts,
    request_shape,
    seen_steers,
    shown_steers,
    steer,
)
from tests.support.worker_fixture import AGENT, history, kinds, outputs, run_worker, send, stream, until


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


async def test_a_steer_is_in_the_next_request_and_stays_at_its_place(bus: Engine) -> None:
    talk = SteerableAgent(turns=3)
    send(bus, "go")
    async with run_worker(bus, talk.runner) as service:
        await talk.at(1)
        steered = steer(bus, "mind the gap", sender="user:bob")
        talk.open()
        await until(lambda: service.outcomes[Outcome.ANSWERED])

    assert [shown_steers(request) for request in talk.requests] == [[], [], *[[("user:bob", "mind the gap")]] * 2]
    assert request_shape(talk.requests[-1]) == ["user", *["call", "result"] * 2, "steer", "call", "result"]
    assert seen_steers(bus) == [(2, "mind the gap")]
    assert receipts(bus) == [(steered.envelope_id, "seen")]
    assert outputs(bus) == ["done"], "it has a run of its own, though a turn has seen it"
    assert pending_mail(bus) == 0


async def test_steers_that_the_last_answer_saw_are_settled_with_the_run(bus: Engine) -> None:
    talk = SteerableAgent(turns=1)
    send(bus, "go")
    async with run_worker(bus, talk.runner) as service:
        await talk.at(0)
        steered = steer(bus, "one more thing")
        talk.open()
        await until(lambda: service.outcomes[Outcome.ANSWERED])

    assert seen_steers(bus) == [(1, "one more thing")]
    assert receipts(bus) == [(steered.envelope_id, "seen")]
    assert kinds(stream(bus))[-3:] == ["message_received", "output", "finished"]
    assert (outputs(bus), pending_mail(bus)) == (["done"], 0)


async def test_several_steers_are_seen_once_each_in_order(bus: Engine) -> None:
    talk = SteerableAgent(turns=2)
    send(bus, "go")
    async with run_worker(bus, talk.runner) as service:
        await talk.at(0)
        texts = [f"steer {n}" for n in range(5)]
        ids = [steer(bus, text).envelope_id for text in texts[:3]]
        talk.open(0)
        await talk.at(1)
        ids += [steer(bus, text).envelope_id for text in texts[3:]]
        talk.open()
        await until(lambda: service.outcomes[Outcome.ANSWERED])

    assert [text for _, text in shown_steers(talk.requests[-1])] == texts
    assert seen_steers(bus) == [*((1, text) for text in texts[:3]), *((2, text) for text in texts[3:])]
    assert receipts(bus) == [(name, "seen") for name in ids]


async def test_a_steer_after_the_last_request_is_the_input_of_the_next_run(bus: Engine) -> None:
    talk = SteerableAgent(turns=0)
    send(bus, "go")
    late: list[str] = []
    ask = talk.say

    def say(items):  # type: ignore[no-untyped-def]
        if not late:
            late.append(steer(bus, "too late").envelope_id)
        return ask(items)

    talk.agent.model._say = say  # type: ignore[union-attr]
    async with run_worker(bus, talk.runner) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 2)

    assert seen_steers(bus) == []
    assert receipts(bus) == [(late[0], "input")]
    starts = [record["envelope"]["content"] for record in history(bus) if record["kind"] == "start"]
    assert starts == ["go", "too late"]
    assert pending_mail(bus) == 0


async def test_later_runs_see_a_steer_at_its_place(bus: Engine) -> None:
    talk = SteerableAgent(turns=1)
    send(bus, "go")
    async with run_worker(bus, talk.runner) as service:
        await talk.at(0)
        steer(bus, "remember this")
        talk.open()
        await until(lambda: service.outcomes[Outcome.ANSWERED])
        send(bus, "again")
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 2)

    remembered = talk.requests[2]
    assert request_shape(remembered) == ["user", "call", "result", "steer", "assistant", "user"]
    assert shown_steers(remembered) == [("user:ann", "remember this")]


async def test_a_worker_without_a_free_slot_still_reads_steers(bus: Engine) -> None:
    talk = SteerableAgent(turns=1)
    send(bus, "go")
    async with run_worker(bus, talk.runner, concurrency=1) as service:
        await talk.at(0)
        send(bus, "somebody else", "two")
        steer(bus, "listen")
        talk.open()
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 2)

    assert seen_steers(bus) == [(1, "listen")]


async def test_mail_of_another_conversation_waits_for_a_free_slot_and_blocks_no_run(bus: Engine) -> None:
    talk = SteerableAgent(turns=1)
    send(bus, "go")
    async with run_worker(bus, talk.runner, concurrency=1) as service:
        await talk.at(0)
        send(bus, "somebody else", "two")
        talk.open()
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 2)

    assert (outputs(bus), outputs(bus, "two")) == (["done"], ["done"])


async def test_a_steer_is_ordinary_mail_for_a_runner_without_steers(bus: Engine) -> None:
    send(bus, "hello")
    steered = steer(bus, "and you", recipient=f"agent:{AGENT}")

    async with run_worker(bus, SyncRunner(lambda envelope: [output(envelope, envelope.content or "")])) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 2)

    assert outputs(bus) == ["hello", "and you"]
    assert receipts(bus) == [(steered.envelope_id, "input")]
