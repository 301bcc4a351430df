from __future__ import annotations

from dataclasses import replace

import httpx2
import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, SetHead
from magent2.bus.records import NewRecord
from magent2.errors import NotYours
from magent2.gateway.limits import GatewayLimits
from magent2.mail.delivery import SendOptions
from magent2.models.envelope import MessageEnvelope
from magent2.sessions import queue_depth as queues
from magent2.sessions.store import SessionStore
from tests.support.gateway import asgi_client, message

MAX = 8
LIMITS = GatewayLimits(queue_max_messages=MAX)


async def send(client: httpx2.AsyncClient, count: int, **fields: str) -> list[int]:
    return [(await client.post("/send", json=message(**fields))).status_code for _ in range(count)]


def begin_run(bus: MemoryBus, envelope_id: str) -> None:
    """What a worker writes when it begins to answer."""
    record = NewRecord("stream:one", {"event": "run", "conversation_id": "one"})
    bus.call(Append(records=(record,), heads=(SetHead("stream:one", {"run_envelope": envelope_id}),)))


async def test_so_much_mail_waits_and_no_more_until_some_is_taken_up(bus: MemoryBus) -> None:
    async with asgi_client(bus, limits=LIMITS) as client:
        assert await send(client, MAX + 2) == [200] * MAX + [429, 429]
        refused = await client.post("/send", json=message())
        assert refused.json()["code"] == "queue_full"
        assert refused.headers["retry-after"]

        begin_run(bus, bus.read("chat:one")[2].id)

        assert await send(client, 5) == [200] * 3 + [429, 429]
        assert await send(client, 1, conversation="two") == [200]


async def test_a_tool_that_is_run_by_name_waits_in_the_same_queue(bus: MemoryBus) -> None:
    async with asgi_client(bus, limits=replace(LIMITS, wait_max_s=0.0)) as client:
        await client.post("/api/sdk/session/create", json={"session_id": "one", "agent_name": "general"})
        body = {"session_id": "one", "tool": "weather", "args": {"city": "Oslo"}}

        sends = await send(client, MAX - 2, recipient="chat:one")
        calls = [await client.post("/api/tools/execute", json=body) for _ in range(4)]

        assert sends == [200] * (MAX - 2)
        assert [answer.status_code for answer in calls] == [202, 202, 429, 429]
        assert calls[-1].json()["code"] == "queue_full"


async def test_a_repeat_of_an_accepted_message_gets_the_first_answer_when_the_queue_is_full(bus: MemoryBus) -> None:
    async with asgi_client(bus, limits=LIMITS) as client:
        first = await client.post("/send", json=message(id="m1"))
        await send(client, MAX)

        again = await client.post("/send", json=message(id="m1"))
        changed = await client.post("/send", json=message(id="m1", text="something else"))

        assert (again.status_code, again.json()) == (200, first.json())
        assert (changed.status_code, changed.json()["code"]) == (409, "id_conflict")
        assert (await client.post("/send", json=message(id="m2"))).status_code == 429


async def test_a_repeat_in_the_session_api_gets_the_first_answer_when_the_queue_is_full(bus: MemoryBus) -> None:
    async with asgi_client(bus, limits=replace(LIMITS, wait_max_s=0.0)) as client:
        await client.post("/api/sdk/session/create", json={"session_id": "one", "agent_name": "general"})
        body = {"session_id": "one", "user_input": "hello", "client_message_id": "k1", "wait": False}
        steer = {"text": "hurry", "client_message_id": "k2"}

        async def post_both() -> list[httpx2.Response]:
            posted = await client.post("/api/sdk/session/message", json=body)
            return [posted, await client.post("/api/sdk/session/one/steer", json=steer)]

        first = await post_both()
        await send(client, MAX, recipient="chat:one")
        again = await post_both()

        assert [answer.status_code for answer in (*first, *again)] == [202] * 4
        assert [answer.json()["seq"] for answer in again] == [answer.json()["seq"] for answer in first]
        other = await client.post("/api/sdk/session/message", json={**body, "client_message_id": "k3"})
        assert other.status_code == 429


async def test_another_user_does_not_learn_which_ids_a_full_conversation_has(bus: MemoryBus) -> None:
    store = SessionStore(bus, admit=queues.QueueLimit(bus, MAX).admit)
    anns, bobs = SendOptions(principal="user:ann"), SendOptions(principal="user:bob")
    for number in range(MAX):
        await store.post(mail(f"m{number}"), anns)

    for known_or_new in ("m1", "new"):
        with pytest.raises(NotYours):
            await store.post(mail(known_or_new), bobs)


def mail(envelope_id: str) -> MessageEnvelope:
    return MessageEnvelope(
        id=envelope_id, conversation_id="one", sender="user:ann", recipient="agent:Ada", content="hello"
    )


async def test_a_stop_gets_through_when_the_queue_is_full(bus: MemoryBus) -> None:
    async with asgi_client(bus, limits=LIMITS) as client:
        await send(client, MAX + 1)

        assert (await client.post("/api/sdk/session/one/stop")).status_code == 202


async def test_what_agents_say_in_a_conversation_is_no_mail_that_waits(bus: MemoryBus) -> None:
    async with asgi_client(bus, limits=LIMITS) as client:
        await send(client, 1, id="m1")
        begin_run(bus, "m1")
        assert await send(client, 3 * MAX, sender="agent:Ada", recipient="chat:one") == [200] * 3 * MAX

        assert await send(client, 1) == [200]


async def test_mail_for_an_agent_that_was_never_started_fills_the_queue(bus: MemoryBus) -> None:
    async with asgi_client(bus, limits=LIMITS) as client:
        answers = await send(client, 3 * MAX, recipient="agent:nobody")

    assert answers == [200] * MAX + [429] * 2 * MAX


async def test_a_conversation_with_no_agent_has_no_queue(bus: MemoryBus) -> None:
    async with asgi_client(bus, limits=LIMITS) as client:
        assert await send(client, 3 * MAX, recipient="chat:one") == [200] * 3 * MAX


async def test_a_run_of_mail_that_the_gateway_did_not_send_does_not_fill_the_queue(bus: MemoryBus) -> None:
    async with asgi_client(bus, limits=LIMITS) as client:
        await send(client, MAX)
        begin_run(bus, "published-straight-into-the-inbox")

        assert await send(client, 1) == [200]


async def test_only_so_many_conversations_are_counted(bus: MemoryBus) -> None:
    limit = queues.QueueLimit(bus, MAX)
    for number in range(queues.CONVERSATIONS_MAX + 5):
        limit._allow(str(number), 1)

    assert len(limit._left) == queues.CONVERSATIONS_MAX
