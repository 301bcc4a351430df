"""Keys and owners over real sockets, with revocations from another process."""

from __future__ import annotations

import asyncio

import httpx2
import pytest

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from tests.support.gateway import Event, ServedGateway, message, parse_frames, serve_gateway, streams_open
from tests.support.keys import ACCESS, create_key_holder
from tests.support.worker_fixture import until

STREAMS = ("/stream/one", "/api/sdk/session/one/stream", "/api/stream?session=one:0", "/api/stream")


async def follow(site: ServedGateway, headers: dict[str, str], conversation: str = "one") -> list[Event]:
    """All of a stream, to its end."""
    return await follow_at(site, headers, f"/stream/{conversation}")


async def follow_at(site: ServedGateway, headers: dict[str, str], path: str) -> list[Event]:
    async with site.client.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        text = "".join([piece async for piece in answer.aiter_text()])
        return parse_frames("\n".join(line for line in text.split("\n") if not line.startswith("id: ")))


async def test_a_key_revoked_elsewhere_stops_at_once_its_open_streams_included(log_url: str, engine: Engine) -> None:
    bus = connect(log_url)
    ann = await create_key_holder(engine, "user:ann")
    other = await create_key_holder(engine, "user:ann")
    async with serve_gateway(bus, ACCESS) as site:
        sent = await site.client.post("/send", json=message(), headers=ann.headers)
        assert sent.status_code == 200
        following = [asyncio.create_task(follow_at(site, ann.headers, path)) for path in STREAMS for _ in range(2)]
        staying = [asyncio.create_task(follow_at(site, other.headers, path)) for path in STREAMS]
        await until(lambda: site.streams_open == len(following) + len(staying))

        await ann.revoke()

        for events in await asyncio.gather(*following):
            assert (events[-1].kind, events[-1].data["reason"]) == ("end", "revoked")
            assert [event.kind for event in events].count("end") == 1
        for path in STREAMS:
            assert (await site.client.get(path, headers=ann.headers)).status_code == 401
        refused = await site.client.post("/send", json=message(), headers=ann.headers)
        assert refused.status_code == 401
        assert not any(task.done() for task in staying)
        await other.revoke()
        await asyncio.gather(*staying)
    await bus.aclose()


async def test_concurrent_first_messages_at_two_gateways_give_one_owner(log_url: str, engine: Engine) -> None:
    buses = [connect(log_url), connect(log_url)]
    ann, bob = await create_key_holder(engine, "user:ann"), await create_key_holder(engine, "user:bob")
    async with serve_gateway(buses[0], ACCESS) as one, serve_gateway(buses[1], ACCESS) as two:
        for number in range(20):
            talk = f"talk-{number}"
            answers = await asyncio.gather(
                one.client.post("/send", json=message(conversation=talk, sender="user:ann"), headers=ann.headers),
                two.client.post("/send", json=message(conversation=talk, sender="user:bob"), headers=bob.headers),
            )
            assert sorted(answer.status_code for answer in answers) == [200, 404]
            shown = [
                (await site.client.get(f"/api/sdk/session/{talk}", headers=who.headers)).status_code
                for site, who in ((two, ann), (one, bob))
            ]
            assert shown == [answer.status_code for answer in answers]
    for bus in buses:
        await bus.aclose()


async def test_many_concurrent_users_see_nothing_of_each_other(log_url: str, engine: Engine) -> None:
    """All users follow before there are events, then all write to the same few conversations at once."""
    bus = connect(log_url)
    people = [await create_key_holder(engine, f"user:p{number}") for number in range(6)]
    talks = [f"talk-{number}" for number in range(4)]
    async with serve_gateway(bus, ACCESS) as site:
        watching = {
            (number, talk): asyncio.create_task(follow(site, who.headers, talk))
            for number, who in enumerate(people)
            for talk in talks
        }
        await streams_open(site.gateway.app, len(watching))  # and past their first look, which would be a 404 later

        async def write(number: int, talk: str) -> httpx2.Response:
            body = message(f"secret of p{number}", talk, sender=f"user:p{number}")
            return await site.client.post("/send", json=body, headers=people[number].headers)

        answers = await asyncio.gather(*(write(number, talk) for number, talk in watching))
        owners = {key[1]: key[0] for key, answer in zip(watching, answers, strict=True) if answer.status_code == 200}
        assert len(owners) == len(talks)
        losers = [task for (number, talk), task in watching.items() if owners[talk] != number]
        for events in await asyncio.gather(*losers):
            assert [(event.kind, event.data.get("reason")) for event in events] == [("end", "revoked")]
        site.gateway.app.state.services.streams.drain()
        for talk, number in owners.items():
            events = await watching[number, talk]
            assert [event.data.get("text") for event in events[:-1]] == [f"secret of p{number}"]
    await bus.aclose()


@pytest.mark.parametrize("path", ["/health", "/api/workers"])
async def test_answers_of_the_server_itself_are_safe_too(log_url: str, path: str) -> None:
    bus = connect(log_url)
    async with serve_gateway(bus, ACCESS) as site:
        answer = await site.client.get(path)

        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    await bus.aclose()
