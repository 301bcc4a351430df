"""Steering over the API, on every engine: accepted with a receipt, refused with a named error, applied once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest

from magent2.bus.interface import Engine
from magent2.gateway.catalogue import Catalogue
from magent2.models.events import ReceiptEvent
from magent2.roster.registry import Registry
from magent2.roster.spec import AgentSpec, Roster, Scenario
from magent2.sessions.steering import STEER_MAX_CHARS, STEERS_WAITING_MAX
from magent2.worker.lane_run import Outcome
from tests.support.api.sessions import api, create
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.steerable_run import SteerableAgent, receipts, seen_steers
from tests.support.worker_fixture import AGENT, run_worker, stream, until

ROSTER = Roster(
    scenarios={"default": Scenario("default", root=AGENT, agents={AGENT: AgentSpec(AGENT, "You are Ada.")})},
    default="default",
)


@pytest.fixture(params=DISTINCT_ENGINES)
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    bus = new_engines(request.param, request)()
    yield bus
    await bus.aclose()


class Place:
    """A gateway, an agent at work behind it, and a session in which it waits in a call."""

    def __init__(self, bus: Engine, client: httpx2.AsyncClient, talk: SteerableAgent, outcomes: Any) -> None:
        self.bus, self.client, self.talk, self.outcomes = bus, client, talk, outcomes

    async def steer(self, text: str = "hurry", **fields: Any) -> httpx2.Response:
        return await self.client.post("/api/sdk/session/s1/steer", json={"text": text, **fields})

    async def receipt(self, name: str, wait_s: float = 0.0) -> dict[str, Any]:
        answer = await self.client.get(f"/api/sdk/session/s1/receipts/{name}", params={"wait_s": wait_s})
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    async def begin(self) -> None:
        body = {"session_id": "s1", "user_input": "go", "wait": False}
        assert (await self.client.post("/api/sdk/session/message", json=body)).status_code == 202
        await self.talk.at(0)

    async def end(self, runs: int = 1) -> None:
        self.talk.open()
        await until(lambda: self.outcomes[Outcome.ANSWERED] == runs)


@asynccontextmanager
async def place(bus: Engine, turns: int = 2) -> AsyncIterator[Place]:
    talk = SteerableAgent(turns)
    async with run_worker(bus, talk.runner) as service, api(bus, catalogue=Catalogue(Registry.of(ROSTER))) as client:
        await create(client)
        yield Place(bus, client, talk, service.outcomes)


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def test_a_steer_is_accepted_and_its_receipt_tells_what_became_of_it(bus: Engine) -> None:
    async with place(bus) as one:
        await one.begin()
        answer = await one.steer("in Celsius")
        name = answer.json()["receipt_id"]
        before = await one.receipt(name)
        waiting = asyncio.create_task(one.receipt(name, 10.0))
        one.talk.open(0)
        after = await waiting
        await one.end()
        last = await one.receipt(name)

    assert answer.status_code == 202
    assert answer.json() == {"status": "accepted", "session_id": "s1", "receipt_id": name, "seq": answer.json()["seq"]}
    assert stream(bus, "s1")[answer.json()["seq"] - 1]["message_id"] == name
    assert (before["status"], before["waiting"], before["receipts"]) == ("accepted", 1, [])
    assert (after["status"], after["waiting"]) == ("seen", 0)
    assert (after["receipts"][0]["agent_id"], after["receipts"][0]["turn"]) == (AGENT, 1)
    assert (last["status"], last["receipts"][0]["status"]) == ("answered", "answered")
    assert seen_steers(bus, "s1") == [(1, "in Celsius")]


async def test_the_same_key_says_it_once_even_after_the_run_has_ended(bus: Engine) -> None:
    async with place(bus) as one:
        await one.begin()
        answers = await asyncio.gather(
            *(one.steer("once", client_message_id="k", require_active=True) for _ in range(5))
        )
        await one.end()
        late = await one.steer("once", client_message_id="k", require_active=True)
        other = await one.steer("twice", client_message_id="k")

    assert [answer.status_code for answer in (*answers, late)] == [202] * 6
    assert len({answer.text for answer in (*answers, late)}) == 1
    assert refusal(other) == (409, "id_conflict")
    assert len(receipts(bus, "s1")) == 1


async def test_a_steer_without_an_active_run_is_refused_or_begins_a_run(bus: Engine) -> None:
    async with place(bus, turns=0) as one:
        refused = await one.steer(require_active=True)
        nothing = stream(bus, "s1")
        accepted = await one.steer("begin")
        await one.end()
        found = await one.receipt(accepted.json()["receipt_id"], 5.0)

    assert refusal(refused) == (409, "no_active_run")
    assert [event["event"] for event in nothing] == ["session"]
    assert (found["status"], found["receipts"][0]["turn"]) == ("answered", None)
    assert receipts(bus, "s1") == [(accepted.json()["receipt_id"], "input")]


async def test_too_many_and_too_long_are_refused_by_name(bus: Engine) -> None:
    async with place(bus) as one:
        await one.begin()
        for number in range(STEERS_WAITING_MAX):
            assert (await one.steer(f"steer {number}", client_message_id=f"k{number}")).status_code == 202
        full = await one.steer("one too many")
        again = await one.steer("steer 0", client_message_id="k0")
        long = await one.steer("x" * (STEER_MAX_CHARS + 1))
        blank = await one.steer(" ")
        await one.end()

    assert refusal(full) == (429, "queue_full")
    assert "retry-after" in full.headers
    assert again.status_code == 202, "what was accepted is not refused when it is sent again"
    assert (refusal(long), refusal(blank)) == ((422, "too_long"), (422, "blank"))
    assert len(receipts(bus, "s1")) == STEERS_WAITING_MAX


async def test_a_target_that_does_not_exist_waits_and_a_bad_one_is_refused(bus: Engine) -> None:
    async with place(bus) as one:
        await one.begin()
        elsewhere = await one.steer("for her", target="Bea")
        bad = await one.steer("for whom", target=" ")
        unknown = await one.client.get("/api/sdk/session/s1/receipts/never")
        nowhere = await one.client.post("/api/sdk/session/s2/steer", json={"text": "hello"})
        await one.end()
        found = await one.receipt(elsewhere.json()["receipt_id"])

    assert (found["status"], found["waiting"]) == ("accepted", 1)
    assert refusal(bad) == (422, "bad_address")
    assert refusal(unknown) == (404, "unknown_message")
    assert refusal(nowhere) == (404, "unknown_session")


async def test_a_stop_leaves_a_receipt_under_its_id(bus: Engine) -> None:
    async with place(bus) as one:
        await one.begin()
        answer = await one.client.post("/api/sdk/session/s1/stop", json={"mode": "now"})
        await until(lambda: one.outcomes[Outcome.STOPPED])

    (event,) = [event for event in stream(bus, "s1") if event["event"] == "message_received"]
    (message,) = ReceiptEvent.model_validate(event).messages
    assert (message.id, message.command, message.outcome) == (answer.json()["receipt_id"], "stop", "stopped")
