from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import pytest

from magent2.bus.log import Log
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Claim, Delete, Read
from magent2.errors import BusUnavailable, StorageFull
from magent2.gateway.limits import GatewayLimits
from magent2.mail.registration import register_agent
from magent2.models.events import UserMessageEvent
from magent2.sessions.store import create_session, switch_agent
from tests.support.engine_wrappers import OperationCounter
from tests.support.flaky_engine import FlakyEngine
from tests.support.gateway import asgi_client, message

JSON = {"content-type": "application/json"}


async def serve(bus: MemoryBus, agent: str = "Ada") -> None:
    await bus.acall(Claim(worker="w1", agents=(agent,), limit=0, lease_s=60))


async def test_a_message_is_accepted_and_its_seq_is_that_of_the_event(
    bus: MemoryBus, client: httpx2.AsyncClient
) -> None:
    await serve(bus)

    answer = await client.post("/send", json=message("hello", id="m1"))

    (event,) = (await bus.acall(Read("stream:one", 0))).records
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "topic": "chat:one", "envelope_id": "m1", "seq": event.seq}
    assert event.payload["event"] == "user_message"
    assert [record.id for record in bus.read("chat:one")] == ["m1"]
    assert [record.payload["id"] for record in bus.read("chat:Ada")] == ["m1"]


async def test_the_same_id_and_body_get_the_same_answer_also_when_defaults_are_written_out(
    bus: MemoryBus, client: httpx2.AsyncClient
) -> None:
    first = await client.post("/send", json=message(id="m1"))
    await client.post("/send", json=message(id="m2"))

    again = await client.post("/send", json=message(id="m1", type="message", metadata={}))

    assert again.json() == first.json()
    assert len(bus.read("chat:Ada")) == 2


async def test_the_same_id_with_another_body_is_a_conflict(client: httpx2.AsyncClient) -> None:
    await client.post("/send", json=message("one", id="m1"))

    answer = await client.post("/send", json=message("two", id="m1"))

    assert (answer.status_code, answer.json()["code"]) == (409, "id_conflict")


async def test_ten_posts_at_once_are_one_message(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    answers = await asyncio.gather(*(client.post("/send", json=message(id="m1")) for _ in range(10)))

    assert {answer.json()["seq"] for answer in answers} == {1}
    assert len(bus.read("chat:Ada")) == len(bus.read("stream:one")) == 1
    (lane,) = bus.call(Claim(worker="w1", agents=("Ada",), limit=5, lease_s=60)).lanes
    assert lane.pending == 1


async def test_mail_to_the_conversation_goes_to_its_active_agent(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    await client.post("/send", json=message("first"))

    await client.post("/send", json=message("second", recipient="chat:one"))

    assert [record.payload["content"] for record in bus.read("chat:Ada")] == ["first", "second"]


async def test_a_guess_about_the_active_agent_is_checked(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    async with asgi_client(bus) as elsewhere:  # another gateway, which knows nothing of the first
        await client.post("/send", json=message("first"))
        await elsewhere.post("/send", json=message("second", recipient="chat:one"))

    assert [record.payload["content"] for record in bus.read("chat:Ada")] == ["first", "second"]


@pytest.mark.parametrize("agent", ["Ada", "nobody"])  # one without a worker, and one that was never started
async def test_every_message_after_the_first_is_one_exchange_with_the_log(bus: MemoryBus, agent: str) -> None:
    counter = OperationCounter(bus)
    async with asgi_client(counter) as client:
        await client.post("/send", json=message("first", recipient=f"agent:{agent}"))
        counter.kinds.clear()
        for text in ("second", "third"):
            await client.post("/send", json=message(text, recipient=f"agent:{agent}"))

    # The list of live workers is read at most every two seconds, for all messages.
    assert [kind for kind in counter.kinds if kind != "Workers"] == ["Append", "Append"]


async def test_an_agent_that_is_registered_meanwhile_becomes_active(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    await client.post("/send", json=message("first", recipient="agent:Bob"))
    await register_agent(Log(bus), "Bob")

    await client.post("/send", json=message("second", recipient="agent:Bob"))

    (stream,) = await Log(bus).describe("stream:one")
    assert stream.head["active_agent"] == "Bob"


async def test_an_active_agent_whose_name_a_conversation_has_taken_gets_no_mail(
    bus: MemoryBus, client: httpx2.AsyncClient
) -> None:
    await switch_agent(Log(bus), "one", "Bob", "test")  # an agent of a roster that was never started
    await client.post("/send", json=message("first", recipient="chat:one"))
    await create_session(Log(bus), "Bob", "user:ann")

    answer = await client.post("/send", json=message("second", recipient="agent:Bob"))

    assert (answer.status_code, answer.json()["code"]) == (422, "unknown_agent")
    assert [record.payload["content"] for record in bus.read("chat:Bob")] == ["first"]


async def test_the_event_of_a_message_is_the_one_of_the_contract(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    for moment in ("2026-01-31T12:00:00Z", "2026-01-31T13:00:00.5+01:00", "2026-01-31T12:00:00.000001"):
        await client.post("/send", json=message("hello", created_at=moment))

    for event in bus.read("stream:one"):
        parsed = UserMessageEvent.model_validate(event.payload)
        assert parsed.model_dump(mode="json", exclude_unset=True) == event.payload


async def test_a_command_goes_to_the_agent_and_is_numbered_there(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    await client.post("/send", json=message("hello"))

    answer = await client.post("/send", json=message("stop", type="control"))

    (command,) = bus.read("control:Ada")
    assert answer.json()["seq"] == command.seq
    assert len(bus.read("stream:one")) == 1


async def test_the_sender_is_told_when_no_worker_serves_the_agent(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    nobody = await client.post("/send", json=message())
    async with asgi_client(bus) as other:
        await serve(bus)
        somebody = await other.post("/send", json=message())

    assert "no worker serves 'Ada'" in nobody.json()["notice"]
    assert "notice" not in somebody.json()


async def test_the_sender_is_told_when_no_agent_is_active(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/send", json=message(recipient="chat:one"))

    assert "no agent is active" in answer.json()["notice"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"recipient": "Ada"}, "bad_address"),
        ({"recipient": "agent:"}, "bad_address"),
        ({"recipient": "chat:elsewhere"}, "bad_address"),
        ({"conversation_id": ""}, "bad_address"),
        ({"conversation_id": "x" * 500}, "bad_address"),
        ({"sender": " "}, "bad_address"),
        ({"content": "  \n"}, "blank"),
        ({"content": None}, "blank"),
        ({"metadata": {"run_options": {"model_settings": {"temperature": 3}}}}, "invalid"),
        ({"id": ""}, "bad_id"),
        ({"id": "x" * 300}, "bad_id"),
        ({"type": "shout"}, "bad_envelope"),
        ({"created_at": "yesterday"}, "bad_envelope"),
        ({"metadata": []}, "bad_envelope"),
        ({"sender": 7}, "bad_envelope"),
    ],
)
async def test_what_cannot_be_sent_is_refused_by_name(
    bus: MemoryBus, client: httpx2.AsyncClient, fields: dict[str, Any], code: str
) -> None:
    answer = await client.post("/send", json=message(**fields))

    assert (answer.status_code, answer.json()["code"]) == (422, code)
    assert answer.headers["content-type"] == "application/problem+json"
    assert bus.read("chat:Ada") == []


async def test_a_missing_field_is_named(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/send", json={"conversation_id": "one", "content": "hi"})

    assert {fault["where"] for fault in answer.json()["errors"]} == {"sender", "recipient"}


async def test_a_conversation_cannot_have_the_name_of_an_agent(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    await register_agent(Log(bus), "Ada")

    answer = await client.post("/send", json=message(conversation="Ada", recipient="agent:Bob"))

    assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")


async def test_a_deleted_conversation_takes_no_mail(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    await client.post("/send", json=message())
    await bus.acall(Delete(("stream:one", "chat:one"), conversation="one"))

    answer = await client.post("/send", json=message())

    assert (answer.status_code, answer.json()["code"]) == (410, "conversation_deleted")


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b"[1,", b"\xff\xfe", b"[" * 10_000])
async def test_a_body_that_is_no_json_is_told_so(client: httpx2.AsyncClient, body: bytes) -> None:
    answer = await client.post("/send", content=body, headers=JSON)

    assert (answer.status_code, answer.json()["code"]) == (400, "bad_json")


@pytest.mark.parametrize("body", [b"7", b"[]", b"null", b'"text"'])
async def test_json_that_is_no_envelope_is_told_so(client: httpx2.AsyncClient, body: bytes) -> None:
    answer = await client.post("/send", content=body, headers=JSON)

    assert (answer.status_code, answer.json()["code"]) == (422, "bad_envelope")


@pytest.mark.parametrize("declared", [None, "text/plain", "application/x-www-form-urlencoded", "application/jsonp"])
async def test_only_declared_json_is_read(client: httpx2.AsyncClient, declared: str | None) -> None:
    headers = {} if declared is None else {"content-type": declared}

    answer = await client.post("/send", content=b"{}", headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (415, "not_json")


async def test_numbers_that_json_does_not_have_are_refused(client: httpx2.AsyncClient) -> None:
    body = b'{"conversation_id":"one","sender":"user:a","recipient":"agent:Ada","content":"x","metadata":{"n":NaN}}'

    answer = await client.post("/send", content=body, headers=JSON)

    assert (answer.status_code, answer.json()["code"]) == (400, "bad_json")


async def test_too_much_is_refused_by_its_kind(bus: MemoryBus) -> None:
    async with asgi_client(bus, limits=GatewayLimits(body_max_bytes=2000, text_max_chars=100)) as client:
        long = await client.post("/send", json=message("x" * 101))
        large = await client.post("/send", json=message("x", metadata={"much": "x" * 3000}))

    assert (long.status_code, long.json()["code"]) == (422, "too_long")
    assert (large.status_code, large.json()["code"]) == (413, "too_large")


async def test_what_the_bus_finds_too_large_is_refused_too(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/send", json=message("x", metadata={"much": "x" * (1 << 20)}))

    assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_a_bus_that_is_away_or_full_is_told_and_the_same_send_works_later(bus: MemoryBus) -> None:
    moody = FlakyEngine(bus)
    async with asgi_client(moody) as client:
        moody.before.append(BusUnavailable("the server does not answer"))
        away = await client.post("/send", json=message(id="m1"))
        moody.before.append(StorageFull("no space left"))
        full = await client.post("/send", json=message(id="m1"))
        then = await client.post("/send", json=message(id="m1"))

    assert (away.status_code, away.json()["code"], away.headers["retry-after"]) == (503, "bus_unavailable", "1")
    assert (full.status_code, full.json()["code"]) == (507, "storage_full")
    assert then.status_code == 200
    assert len(bus.read("chat:Ada")) == 1
