"""`when_busy` over the API, on every engine: who is refused, which run is stopped, and which answer a repeat gets."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.gateway.catalogue import Catalogue
from magent2.mail.headers import TARGET_ENVELOPE
from magent2.roster.registry import Registry
from magent2.roster.spec import AgentSpec, Roster, Scenario
from magent2.worker.lane_run import Outcome
from tests.support.api.sessions import api, create
from tests.support.audit import whole_log
from tests.support.engines import DISTINCT_ENGINES, ENGINES, new_engines
from tests.support.steerable_run import SteerableAgent
from tests.support.worker_fixture import AGENT, command, kinds, outputs, run_worker, send, stream, until

ROSTER = Roster(
    scenarios={"default": Scenario("default", root=AGENT, agents={AGENT: AgentSpec(AGENT, "You are Ada.")})},
    default="default",
)
MODES = ("queue", "steer", "interrupt", "reject")


@pytest.fixture(params=DISTINCT_ENGINES)
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    bus = new_engines(request.param, request)()
    yield bus
    await bus.aclose()


@pytest.fixture(params=ENGINES)
async def every_bus(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    bus = new_engines(request.param, request)()
    yield bus
    await bus.aclose()


class Place:
    """A gateway with a session, and an agent behind it whose runs wait in a call."""

    def __init__(self, bus: Engine, client: httpx2.AsyncClient, talk: SteerableAgent, outcomes: Counter[Any]) -> None:
        self.bus, self.client, self.talk, self.outcomes = bus, client, talk, outcomes

    async def post(self, text: str, when_busy: str = "queue", **fields: Any) -> httpx2.Response:
        body = {"session_id": "s1", "user_input": text, "wait": False, "when_busy": when_busy, **fields}
        return await self.client.post("/api/sdk/session/message", json=body)

    async def send(self, text: str, name: str, when_busy: str, **fields: Any) -> httpx2.Response:
        body = {"id": name, "conversation_id": "s1", "recipient": f"agent:{AGENT}", "content": text, **fields}
        return await self.client.post("/send", json=body, params={"when_busy": when_busy})

    async def begin(self) -> None:
        assert (await self.post("first")).status_code == 202
        await self.talk.at(0)

    async def end(self, *outcomes: Outcome) -> None:
        """Let the runs go on, after those that are to be stopped were stopped, and wait for their outcomes."""
        stopped = outcomes.count(Outcome.STOPPED)
        await until(lambda: self.outcomes[Outcome.STOPPED] == stopped)
        self.talk.open()
        await until(lambda: self.outcomes == Counter(outcomes))


@asynccontextmanager
async def place(bus: Engine, *, worker: bool = True) -> AsyncIterator[Place]:
    talk = SteerableAgent(1)
    async with api(bus, catalogue=Catalogue(Registry.of(ROSTER))) as client:
        await create(client)
        if not worker:
            yield Place(bus, client, talk, Counter())
            return
        async with run_worker(bus, talk.runner) as service:
            yield Place(bus, client, talk, service.outcomes)


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def everything(bus: Engine) -> list[Any]:
    return [whole_log(bus, topic) for topic in ("chat:s1", f"chat:{AGENT}", f"control:{AGENT}", "stream:s1")]


def runs(bus: Engine) -> list[tuple[str, str]]:
    """Text of the message and status, for each event of a run."""
    texts = {event["message_id"]: event["text"] for event in stream(bus, "s1") if event["event"] == "user_message"}
    return [(texts[event["envelope_id"]], event["status"]) for event in stream(bus, "s1") if event["event"] == "run"]


async def test_of_ten_parallel_messages_to_an_idle_conversation_one_is_accepted(every_bus: Engine) -> None:
    async with place(every_bus) as one:  # the first message of a conversation has a condition of its own
        one.talk.open()
        await one.post("first", wait=True)
    async with place(every_bus, worker=False) as one:
        answers = await asyncio.gather(*(one.post(f"text {n}", "reject") for n in range(10)))

    assert Counter(answer.status_code for answer in answers) == {202: 1, 409: 9}
    assert {refusal(answer) for answer in answers if answer.status_code == 409} == {(409, "busy")}
    assert len(whole_log(every_bus, "chat:s1")) == len(whole_log(every_bus, f"chat:{AGENT}")) == 2


async def test_a_rejected_message_changes_nothing(bus: Engine) -> None:
    async with place(bus, worker=False) as one:
        await one.post("first")
        before = everything(bus)
        answers = await one.post("second", "reject"), await one.send("third", "m3", "reject")

    assert [refusal(answer) for answer in answers] == [(409, "busy")] * 2
    assert everything(bus) == before


async def test_a_repeat_of_an_accepted_message_gets_its_first_answer_while_the_conversation_is_busy(
    bus: Engine,
) -> None:
    async with place(bus, worker=False) as one:
        first = await one.send("first", "m1", "reject")
        again = await one.send("first", "m1", "reject")
        other = await one.send("another text", "m1", "reject")

    assert (again.status_code, again.json()) == (200, first.json())
    assert refusal(other) == (409, "id_conflict")


async def test_a_conversation_is_idle_again_when_its_run_has_ended(bus: Engine) -> None:
    async with place(bus) as one:
        await one.begin()
        during = await one.post("second", "reject")
        await one.end(Outcome.ANSWERED)
        after = await one.post("third", "reject")
        await until(lambda: one.outcomes[Outcome.ANSWERED] == 2)

    assert refusal(during) == (409, "busy")
    assert after.status_code == 202
    assert runs(bus) == [("first", "started"), ("first", "finished"), ("third", "started"), ("third", "finished")]


async def test_an_interrupt_stops_the_run_and_its_message_is_answered_next(bus: Engine) -> None:
    async with place(bus) as one:
        await one.begin()
        answer = await one.post("second", "interrupt", client_message_id="k2")
        await one.end(Outcome.STOPPED, Outcome.ANSWERED)
        again = await one.post("second", "interrupt", client_message_id="k2")

    assert answer.status_code == 202
    assert runs(bus) == [("first", "started"), ("first", "stopped"), ("second", "started"), ("second", "finished")]
    assert again.status_code == 200, "a repeat gets the recorded answer and stops nothing"
    assert len(whole_log(bus, f"control:{AGENT}")) == 1
    assert stream(bus, "s1")[answer.json()["seq"] - 1]["text"] == "second"


async def test_an_interrupt_leaves_messages_that_waited_before_it(bus: Engine) -> None:
    async with place(bus) as one:
        await one.begin()
        await one.post("second")
        await one.post("third", "interrupt")
        await one.end(Outcome.STOPPED, Outcome.ANSWERED, Outcome.ANSWERED)

    assert [text for text, status in runs(bus) if status == "finished"] == ["second", "third"]


async def test_an_interrupt_stops_a_message_that_no_worker_has_read_yet(bus: Engine) -> None:
    async with place(bus, worker=False) as one:
        await one.post("first")
        await one.post("second", "interrupt")
        one.talk.open()
        async with run_worker(bus, one.talk.runner) as service:
            await until(lambda: service.outcomes == Counter([Outcome.STOPPED, Outcome.ANSWERED]))

    assert [run for run in runs(bus) if run[1] != "started"] == [("first", "stopped"), ("second", "finished")]


async def test_an_interrupt_of_an_idle_conversation_is_a_plain_message(bus: Engine) -> None:
    async with place(bus) as one:
        one.talk.open()
        answer = await one.post("first", "interrupt", wait=True)

    assert answer.json()["final_output"] == "done"
    assert whole_log(bus, f"control:{AGENT}") == []


async def test_of_parallel_interrupts_each_message_is_answered_or_stopped_once(bus: Engine) -> None:
    async with place(bus) as one:
        await one.begin()
        answers = await asyncio.gather(*(one.post(f"text {n}", "interrupt") for n in range(5)))
        await until(lambda: one.outcomes[Outcome.STOPPED])
        one.talk.open()
        await until(lambda: sum(one.outcomes.values()) >= 6)

    assert [answer.status_code for answer in answers] == [202] * 5
    ends = Counter(text for text, status in runs(bus) if status != "started")
    assert ends == Counter(["first", *(f"text {n}" for n in range(5))])
    stopped = {event["envelope_id"] for event in stream(bus, "s1") if event.get("status") == "stopped"}
    named = {record.headers.get(TARGET_ENVELOPE) for record in whole_log(bus, f"control:{AGENT}")}
    assert stopped, "the run that all senders saw was stopped"
    # Between two runs no run is seen. Then a stop names none, and ends the message that is first in the queue.
    assert stopped <= named or None in named


async def test_a_steer_joins_the_run_and_waits_for_its_answer(bus: Engine) -> None:
    async with place(bus) as one:
        await one.begin()
        answer = asyncio.create_task(one.post("in Celsius", "steer", wait=True))
        await until(lambda: len(whole_log(bus, "chat:s1")) == 2)
        await one.end(Outcome.ANSWERED)
        reply = await answer

    assert reply.json()["final_output"] == "done"
    assert outputs(bus, "s1") == ["done"]


async def test_a_conversation_with_only_a_stop_in_its_lane_is_busy_until_it_was_handled(bus: Engine) -> None:
    send(bus, "hello", "s1", recipient=f"agent:{AGENT}")
    async with place(bus) as one:
        one.talk.open()
        await until(lambda: one.outcomes[Outcome.ANSWERED] == 1)
        command(bus, "stop", "s1")
        await until(lambda: "message_received" in kinds(stream(bus, "s1")))
        answer = await one.post("second", "reject")

    assert answer.status_code == 202


@pytest.mark.parametrize("mode", MODES)
async def test_every_mode_delivers_the_first_message_of_a_conversation(mode: str) -> None:
    bus = MemoryBus()
    async with place(bus, worker=False) as one:
        answer = await one.send("first", "m1", mode, conversation_id="fresh")

    assert answer.status_code == 200, answer.text
    assert len(whole_log(bus, "chat:fresh")) == 1


@pytest.mark.parametrize(
    ("params", "fields"),
    [
        ({"when_busy": "now"}, {}),
        ({"when_busy": ""}, {}),
        ({"when_busy": ["queue", "reject"]}, {}),
        ({"when_busy": "reject"}, {"type": "control", "content": "stop"}),
    ],
)
async def test_a_bad_mode_is_refused_by_name(params: dict[str, Any], fields: dict[str, Any]) -> None:
    bus = MemoryBus()
    async with place(bus, worker=False) as one:
        body = {"id": "m1", "conversation_id": "s1", "recipient": f"agent:{AGENT}", "content": "go", **fields}
        answer = await one.client.post("/send", json=body, params=params)
        session = await one.post("go", "now")

    assert refusal(answer) == (422, "bad_parameter")
    assert session.status_code == 422
    assert whole_log(bus, "chat:s1") == []


async def test_a_steer_with_options_for_a_run_of_its_own_is_refused_and_changes_nothing(bus: Engine) -> None:
    schema = {"schema": {"type": "object"}}
    async with place(bus) as one:
        await one.begin()
        body = {"conversation_id": "s1", "recipient": f"agent:{AGENT}", "content": "in JSON"}
        metadata = {"run_options": {"output_schema": schema}}
        sent = await one.client.post("/send", json={**body, "metadata": metadata}, params={"when_busy": "steer"})
        message = {"session_id": "s1", "user_input": "in JSON", "output_schema": schema, "when_busy": "steer"}
        posted = await one.client.post("/api/sdk/session/message", json=message)
        await one.end(Outcome.ANSWERED)

    assert [(answer.status_code, "run_options" in answer.text) for answer in (sent, posted)] == [(422, True)] * 2
    assert len(whole_log(bus, "chat:s1")) == 1
