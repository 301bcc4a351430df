"""Approvals over HTTP: notices for waiting messages, one decision per call, and the answer after it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx2
import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, SetHead
from magent2.bus.records import NewRecord
from magent2.gateway.routes import control
from magent2.models.address import stream_topic
from magent2.sessions.store import HIDDEN
from magent2.worker.lane_run import Outcome
from magent2.worker.service import WorkerService
from tests.support.api.sessions import answer_to, api, create, events, say, team_at_work
from tests.support.worker_fixture import until

PATH = "/api/sdk/session/s1"
WAITS = "waits for approval; the message waits for the decision"


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


@pytest.fixture
async def house(bus: MemoryBus) -> AsyncIterator[tuple[httpx2.AsyncClient, WorkerService]]:
    """A session in which a call waits."""
    async with team_at_work(bus) as service, api(bus) as client:
        await create(client, agent_name="support")
        await answer_to(client, "hello")
        await say(client, "refund order 7", wait=False)
        await until(lambda: service.outcomes[Outcome.PAUSED])
        yield client, service


async def call_of(client: httpx2.AsyncClient) -> dict[str, Any]:
    (call,) = (await client.get(f"{PATH}/approvals")).json()["approvals"]
    found: dict[str, Any] = call
    return found


async def test_a_message_behind_a_pending_approval_gets_a_notice(
    house: tuple[httpx2.AsyncClient, WorkerService],
) -> None:
    client, service = house
    mail = {"conversation_id": "s1", "sender": "user:ann", "recipient": "chat:s1", "content": "and this"}

    sent = (await client.post("/send", json=mail)).json()
    said = (await say(client, "and that", wait=False)).json()
    steered = (await client.post(f"{PATH}/steer", json={"text": "hurry"})).json()
    assert [WAITS in answer["notice"] for answer in (sent, said, steered)] == [True] * 3

    call = await call_of(client)
    await client.post(f"{PATH}/approvals/{call['call_id']}", json={"decision": "approve"})
    await until(lambda: service.outcomes[Outcome.ANSWERED] == 4)
    assert "notice" not in (await say(client, "at last", wait=False)).json()


async def test_the_list_of_all_sessions_has_the_calls_that_wait_and_those_of_hidden_sessions(
    house: tuple[httpx2.AsyncClient, WorkerService], bus: MemoryBus
) -> None:
    client, _ = house
    call = await call_of(client)
    topic = stream_topic("s1")
    await bus.acall(Append(records=(NewRecord(topic, {"event": "note"}),), heads=(SetHead(topic, {HIDDEN: True}),)))
    await create(client, "s2", agent_name="support")

    listed = (await client.get("/api/approvals")).json()
    await client.post(f"{PATH}/approvals/{call['call_id']}", json={"decision": "approve"})
    decided = (await client.get("/api/approvals")).json()
    refused = await client.get("/api/approvals", params={"before": "!"})

    assert listed == {"approvals": [call], "next": None}
    assert (call["session_id"], decided) == ("s1", {"approvals": [], "next": None})
    assert refused.status_code == 422


async def test_the_list_of_all_sessions_goes_on_after_its_first_page(
    house: tuple[httpx2.AsyncClient, WorkerService], monkeypatch: pytest.MonkeyPatch
) -> None:
    client, service = house
    await create(client, "s2", agent_name="support")
    await say(client, "refund order 8", "s2", wait=False)
    await until(lambda: service.outcomes[Outcome.PAUSED] == 2)
    monkeypatch.setattr(control, "WAITING_SESSIONS_MAX", 1)

    first = (await client.get("/api/approvals")).json()
    second = (await client.get("/api/approvals", params={"before": first["next"]})).json()

    assert [[one["session_id"] for one in page["approvals"]] for page in (first, second)] == [["s2"], ["s1"]]


async def test_a_decision_is_taken_once_and_told(house: tuple[httpx2.AsyncClient, WorkerService]) -> None:
    client, service = house
    call = await call_of(client)
    assert (call["tool"], call["args"], call["agent_id"], call["status"]) == (
        "refund",
        {"order": "7"},
        "support",
        "pending",
    )
    where = f"{PATH}/approvals/{call['call_id']}"

    first = await client.post(where, json={"decision": "reject", "reason": "too dear"})
    again = await client.post(where, json={"decision": "reject"})
    other = await client.post(where, json={"decision": "approve"})
    await until(lambda: service.outcomes[Outcome.ANSWERED] == 2)

    assert first.json() == again.json()
    assert (first.json()["status"], first.json()["reason"]) == ("rejected", "too dear")
    assert (other.status_code, other.json()["code"]) == (409, "already_decided")
    told = [event for event in await events(client) if event["type"] == "approval"]
    assert [event["data"]["status"] for event in told] == ["requested", "rejected"]
    assert told[1]["reason"] == "too dear"
