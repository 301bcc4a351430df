"""Regenerate and edit over the API, on every engine: what is replaced, what stays, and what is refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import pytest
from agents import Agent, function_tool
from agents.testing import assistant_message, function_call

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.memory import MemoryBus
from magent2.errors import ConversationBusy
from magent2.gateway.catalogue import Catalogue
from magent2.mail.delivery import DeliveryResult, SendOptions
from magent2.roster.registry import Registry
from magent2.roster.spec import AgentSpec, Roster, Scenario
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.sessions.history import History, fold, read_history
from magent2.sessions.superseding import Replacement, replace_answer
from tests.support.api.sessions import api, create
from tests.support.audit import whole_log
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.journaled_runs import CallbackModel, Items, results_in
from tests.support.worker_fixture import AGENT, history, run_worker, stream, until

ROSTER = Roster(
    scenarios={"default": Scenario("default", root=AGENT, agents={AGENT: AgentSpec(AGENT, "You are Ada.")})},
    default="default",
)


@pytest.fixture(params=DISTINCT_ENGINES)
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    bus = new_engines(request.param, request)()
    yield bus
    await bus.aclose()


class Talk:
    """An agent whose every answer has another number. A message "wait" makes a call that waits for the gate."""

    def __init__(self) -> None:
        self.requests: list[list[Mapping[str, Any]]] = []
        self.gate = asyncio.Event()

        @function_tool
        async def step() -> str:
            """Take a step."""
            await self.gate.wait()
            return "taken"

        self.runner = OpenAIAgentsRunner(Agent[Any](name=AGENT, model=CallbackModel(self._say), tools=[step]))

    def _say(self, items: Sequence[Mapping[str, Any]]) -> Items:
        self.requests.append([dict(item) for item in items])
        if items[-1].get("content") == "wait" and not results_in(items):
            return [function_call("step", {}, call_id="c0")]
        if items[-1].get("content") == "fail":
            raise ValueError("no")
        return [assistant_message(f"answer {len(self.requests)}")]

    def input(self, n: int) -> list[str]:
        """The texts in the input of a request."""
        texts = []
        for item in self.requests[n]:
            content = item.get("content") or ""
            texts.append(content if isinstance(content, str) else content[0]["text"])
        return texts


class Place:
    """A gateway with a session, and a worker behind it."""

    def __init__(self, bus: Engine, client: httpx2.AsyncClient, talk: Talk) -> None:
        self.bus, self.client, self.talk = bus, client, talk

    async def ask(self, text: str, **fields: Any) -> httpx2.Response:
        body = {"session_id": "s1", "user_input": text, **fields}
        return await self.client.post("/api/sdk/session/message", json=body)

    async def regenerate(self, **fields: Any) -> httpx2.Response:
        return await self.client.post("/api/sdk/session/s1/regenerate", json=fields)

    async def edit(self, message_id: str, text: str, **fields: Any) -> httpx2.Response:
        body = {"message_id": message_id, "text": text, **fields}
        return await self.client.post("/api/sdk/session/s1/edit", json=body)

    async def answered(self, accepted: httpx2.Response) -> None:
        assert accepted.status_code == 202, accepted.text
        await self.ended(accepted.json()["message_id"], "finished")

    async def ended(self, message_id: str, status: str) -> None:
        await until(
            lambda: any(
                event.get("status") == status and event.get("envelope_id") == message_id
                for event in stream(self.bus, "s1")
            )
        )

    async def transcript(self, **params: Any) -> list[str]:
        found = await self.client.get("/api/sdk/session/s1/transcript", params=params)
        return [line["text"] for line in found.json()["messages"]]

    async def listed(self) -> dict[str, Any]:
        found: dict[str, Any] = (await self.client.get("/api/sdk/sessions")).json()["sessions"][0]
        return found


@asynccontextmanager
async def place(bus: Engine) -> AsyncIterator[Place]:
    talk = Talk()
    async with run_worker(bus, talk.runner), api(bus, catalogue=Catalogue(Registry.of(ROSTER))) as client:
        await create(client)
        yield Place(bus, client, talk)


def refusal(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


async def test_a_regenerated_answer_takes_the_place_of_the_last_one(bus: Engine) -> None:
    async with place(bus) as one:
        await one.ask("first")
        before = (await one.ask("second")).json()
        await one.answered(await one.regenerate())
        shown = await one.transcript()
        await one.ask("third")
        usage = (await one.client.get("/api/sdk/session/s1/usage")).json()

    assert shown == ["first", "answer 1", "second", "answer 3"]
    assert one.talk.input(2) == ["first", "answer 1", "second"], "the model does not see the answer that it replaces"
    assert one.talk.input(3) == ["first", "answer 1", "second", "answer 3", "third"]
    assert "answer 2" in [event.get("text") for event in stream(bus, "s1")], "the original stays on the log"
    (event,) = (event for event in stream(bus, "s1") if event["event"] == "superseded")
    assert event["envelope_id"] == before["reply_to"]
    assert event["messages"] == [before["reply_to"]]
    assert [record["run"] for record in history(bus, "s1") if record["kind"] == "superseded"] == [event["run_id"]]
    assert usage["runs"] == 4, "what was replaced has cost something too"


async def test_an_edited_message_takes_the_place_of_the_last_one(bus: Engine) -> None:
    async with place(bus) as one:
        first = (await one.ask("frist")).json()
        await one.answered(await one.edit(first["reply_to"], "first"))
        shown, listed = await one.transcript(), await one.listed()
        again = await one.client.get(f"/api/sdk/session/s1/receipts/{first['reply_to']}")

    assert shown == ["first", "answer 2"]
    assert one.talk.input(1) == ["first"]
    assert (listed["title"], listed["last_text"]) == ("first", "first")
    assert again.json()["status"] == "dead"
    assert "replaced" in again.json()["receipts"][0]["reason"]


async def test_it_is_one_append_once_per_key(bus: Engine) -> None:
    async with place(bus) as one:
        first = (await one.ask("first", client_message_id="k1")).json()
        answers = await asyncio.gather(*(one.regenerate(client_message_id="k2") for _ in range(5)))
        await one.answered(answers[0])
        later = await one.regenerate(client_message_id="k2")
        repeat = await one.ask("first", client_message_id="k1")
        wrong = await one.edit(first["reply_to"], "else", client_message_id="k2")
        taken = await one.regenerate(client_message_id="k1")

    assert {answer.status_code for answer in answers} == {202}
    assert len({answer.json()["seq"] for answer in (*answers, later)}) == 1
    assert [event["event"] for event in stream(bus, "s1")].count("superseded") == 1
    assert refusal(repeat) == (409, "superseded")
    assert repeat.json()["message_id"] == later.json()["message_id"]
    assert [refusal(wrong), refusal(taken)] == [(409, "id_conflict")] * 2


async def test_of_two_different_requests_one_is_refused(bus: Engine) -> None:
    async with place(bus) as one:
        await one.ask("wait", wait=False)
        one.talk.gate.set()
        await until(lambda: "output" in [event["event"] for event in stream(bus, "s1")])
        one.talk.gate.clear()
        answers = await asyncio.gather(*(one.regenerate() for _ in range(5)))
        one.talk.gate.set()

    assert Counter(answer.status_code for answer in answers) == {202: 1, 409: 4}
    assert {answer.json().get("code") for answer in answers} == {None, "busy"}


async def test_a_request_that_lost_the_race_is_told_that_the_conversation_is_busy(bus: Engine) -> None:
    """Another request replaces the answer after this one has seen an idle conversation, before it reads the history."""
    first: list[DeliveryResult] = []

    async def read_after_another_request(log: Log, conversation: str) -> History:
        if not first:
            first.append(await replace_answer(log, Replacement("s1", "other", "user:u1"), SendOptions()))
        return await read_history(log, conversation)

    async with place(bus) as one:
        await one.ask("first")

    wanted = Replacement("s1", "late", "user:u1")
    with pytest.raises(ConversationBusy):  # no worker runs any more: the message of the other request waits
        await replace_answer(Log(bus), wanted, SendOptions(), read_after_another_request)


async def test_it_is_refused_by_name_while_a_run_is_under_way_and_changes_nothing(bus: Engine) -> None:
    async with place(bus) as one:
        first = (await one.ask("first")).json()
        await one.ask("wait", wait=False)
        await until(lambda: "tool_step" in [event["event"] for event in stream(bus, "s1")])
        before = [whole_log(bus, topic) for topic in ("stream:s1", "history:s1", "chat:s1")]
        refused = await one.regenerate(), await one.edit(first["reply_to"], "x")
        after = [whole_log(bus, topic) for topic in ("stream:s1", "history:s1", "chat:s1")]
        one.talk.gate.set()

    assert [refusal(answer) for answer in refused] == [(409, "busy")] * 2
    assert after == before


async def test_only_the_last_answer_can_be_replaced() -> None:
    bus = MemoryBus()
    async with place(bus) as one:
        nothing = await one.regenerate()
        first = (await one.ask("first")).json()
        await one.ask("second")
        old = await one.edit(first["reply_to"], "x")
        blank = await one.edit(first["reply_to"], "  ")
        strange = await one.client.post("/api/sdk/session/else/regenerate", json={})

    assert [refusal(answer) for answer in (nothing, old)] == [(409, "not_supersedable")] * 2
    assert refusal(blank) == (422, "blank")
    assert refusal(strange) == (404, "unknown_session")


async def test_a_stopped_and_a_failed_run_can_be_replaced() -> None:
    bus = MemoryBus()
    async with place(bus) as one:
        stopped = (await one.ask("wait", wait=False)).json()["message_id"]
        await until(lambda: one.talk.requests)
        await one.client.post("/api/sdk/session/s1/stop", json={})
        await one.ended(stopped, "stopped")
        failed = (await one.edit(stopped, "fail")).json()["message_id"]
        await one.ended(failed, "failed")
        await one.answered(await one.edit(failed, "well"))
        shown = await one.transcript()
        retry = await one.client.post("/api/sdk/session/s1/retry", json={"message_id": failed})

    assert shown == ["well", "answer 3"]
    assert refusal(retry) == (409, "superseded")


async def test_a_dead_letter_of_a_replaced_run_is_not_answered() -> None:
    bus = MemoryBus()
    async with place(bus) as one:
        failed = (await one.ask("fail", wait=False)).json()["message_id"]
        await one.ended(failed, "failed")
        await one.answered(await one.edit(failed, "well"))
        await one.client.post(f"/api/dead/{AGENT}/1/retry")
        await one.ended(failed, "stopped")
        shown = await one.transcript()

    assert len(one.talk.requests) == 2
    assert shown == ["well", "answer 2"]


async def test_it_holds_after_a_restart_and_with_snapshots(bus: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "SNAPSHOT_EVERY", 2)
    monkeypatch.setattr(fold, "DROP_EVERY", 2)
    for text in ("first", "second"):
        async with place(bus) as one:
            await one.ask(text)
            await one.answered(await one.regenerate())
            await one.answered(await one.regenerate())
    async with place(bus) as one:
        await one.ask("third")
        usage = (await one.client.get("/api/sdk/session/s1/usage")).json()

    assert one.talk.input(0) == ["first", "answer 3", "second", "answer 3", "third"]
    assert usage["runs"] == 7
    assert any(record["kind"] == "snapshot" for record in history(bus, "s1"))


async def test_a_page_of_the_transcript_leaves_out_what_is_replaced_behind_it() -> None:
    bus = MemoryBus()
    async with place(bus) as one:
        await one.ask("first")
        await one.ask("second")
        await one.answered(await one.regenerate())
        pages = [await one.transcript(limit=limit) for limit in (1, 2, 3, 4)]

    # The third page ends with the replaced message, and is short without it.
    assert pages == [["first"], ["first", "answer 1"], ["first", "answer 1"], ["first", "answer 1"]]


async def test_a_steer_goes_with_the_run_that_has_seen_it() -> None:
    bus = MemoryBus()
    async with place(bus) as one:
        await one.ask("wait", wait=False)
        await until(lambda: one.talk.requests)
        await one.client.post("/api/sdk/session/s1/steer", json={"text": "quickly"})
        one.talk.gate.set()
        await until(lambda: "finished" in [event.get("status") for event in stream(bus, "s1")])
        with_steer = await one.transcript()
        await one.answered(await one.regenerate())
        shown = await one.transcript()

    assert with_steer == ["wait", "quickly", "answer 2"]
    assert shown == ["wait", "answer 4"]
