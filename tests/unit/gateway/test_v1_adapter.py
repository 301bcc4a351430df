from __future__ import annotations

import asyncio

import pytest

from magent2.bus.interface import BusMessage
from magent2.gateway.app import create_app
from magent2.runner.echo import EchoRunner
from magent2.worker.worker import Worker
from tests.support.gateway import app_client, asgi_client, message, parse_frames, streams_open
from tests.support.v1_bus import V1Bus


async def test_a_send_is_published_to_both_topics_and_shown() -> None:
    bus = V1Bus()
    async with asgi_client(bus) as client:
        answer = await client.post("/send", json=message("hello", id="m1"))

    assert answer.json() == {"status": "ok", "topic": "chat:one", "envelope_id": "m1", "seq": 1}
    for topic in ("chat:one", "chat:Ada"):
        assert [(record.payload["id"], record.payload["content"]) for record in bus.read(topic)] == [("m1", "hello")]
    assert [record.payload["event"] for record in bus.read("stream:one")] == ["user_message"]


async def test_the_answer_of_a_worker_on_the_same_bus_is_streamed() -> None:
    bus = V1Bus()
    app = create_app(bus)
    async with app_client(app) as client:
        following = asyncio.create_task(client.get("/stream/one", params={"max_events": 4}))
        await streams_open(app, 1)
        await client.post("/send", json=message("hello you"))
        Worker("Ada", bus, EchoRunner()).process_available(1)

        events = parse_frames((await following).text)

    assert [event.kind for event in events] == ["user_message", "token", "token", "output", "end"]
    assert [event.id for event in events] == [1, 2, 3, 4, None]
    assert events[3].data["text"] == "hello you"


async def test_a_stream_resumes_by_its_number() -> None:
    bus = V1Bus()
    for number in range(5):
        bus.publish("stream:one", BusMessage("stream:one", {"event": "token", "text": str(number)}))
    async with asgi_client(bus) as client:
        answer = await client.get("/stream/one", params={"max_events": 2}, headers={"last-event-id": "3"})

    assert [event.id for event in parse_frames(answer.text)] == [4, 5, None]


async def test_a_repeat_is_one_message_and_another_body_a_conflict() -> None:
    bus = V1Bus()
    async with asgi_client(bus) as client:
        first = await client.post("/send", json=message("hello", id="m1"))
        again = await client.post("/send", json=message("hello", id="m1"))
        other = await client.post("/send", json=message("other", id="m1"))

    assert first.json() == again.json()
    assert (other.status_code, other.json()["code"]) == (409, "id_conflict")
    assert len(list(bus.read("chat:Ada"))) == len(list(bus.read("stream:one"))) == 1


@pytest.mark.parametrize("failures", [1, 2, 3])
async def test_a_send_that_failed_halfway_can_be_sent_again(failures: int) -> None:
    bus = V1Bus()
    async with asgi_client(bus) as client:
        bus.failing = [OSError("gone")] * failures
        for _ in range(failures):
            assert (await client.post("/send", json=message("hello", id="m1"))).status_code == 500
        answer = await client.post("/send", json=message("hello", id="m1"))

    assert answer.status_code == 200
    assert [len(list(bus.read(topic))) for topic in ("chat:one", "chat:Ada", "stream:one")] == [1, 1, 1]


async def test_a_command_reaches_the_agent_and_what_the_bus_cannot_do_is_told() -> None:
    bus = V1Bus()
    async with asgi_client(bus) as client:
        await client.post("/send", json=message("hello"))
        stop = await client.post("/api/sdk/session/one/stop")
        delete = await client.delete("/api/sdk/session/one")

        assert stop.status_code == 202
        assert [record.payload["content"] for record in bus.read("control:Ada")] == ["stop"]
        assert (delete.status_code, delete.json()["code"]) == (501, "needs_engine")
        assert (await client.get("/ready")).json()["engine"] == "v1"
        listed = (await client.get("/api/sdk/sessions")).json()["sessions"]
        assert [one["session_id"] for one in listed] == ["one"]


async def test_a_session_is_held_titled_and_handed_over() -> None:
    bus = V1Bus()
    async with asgi_client(bus) as client:
        made = await client.post("/api/sdk/session/create", json={"session_id": "s1"})
        named = await client.patch("/api/sdk/session/s1", json={"title": "Lamps"})
        switched = await client.post(
            "/api/sdk/session/set_active_agent", json={"session_id": "s1", "agent_name": "sales"}
        )
        again = await client.post("/api/sdk/session/set_active_agent", json={"session_id": "s1", "agent_name": "sales"})
        events = (await client.get("/api/sdk/session/s1/events")).json()["events"]
        shown = (await client.get("/api/sdk/session/s1")).json()

    assert [answer.status_code for answer in (made, named, switched, again)] == [200] * 4
    assert (switched.json()["changed"], again.json()["changed"]) == (True, False)
    assert [(event["seq"], event["type"]) for event in events] == [(1, "session"), (2, "session"), (3, "handoff")]
    assert (shown["title"], shown["active_agent_id"]) == ("Lamps", "sales")
    assert [record.payload["event"] for record in bus.read("stream:s1")] == ["session", "session", "handoff"]
