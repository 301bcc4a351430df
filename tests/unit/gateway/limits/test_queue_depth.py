from __future__ import annotations

from dataclasses import replace

import httpx2

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, SetHead
from magent2.bus.records import NewRecord
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.limits import queue_depth as queues
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
