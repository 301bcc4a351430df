"""A key stands for somebody: what they send has their name as sender, and what they begin is theirs alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Describe
from magent2.gateway.access.auth import ANONYMOUS, check_sender, principal_of
from magent2.gateway.app import create_app
from magent2.gateway.problems import Problem
from magent2.models.principal import ADMIN as HOUSE
from magent2.models.principal import Principal
from tests.support.gateway import app_client, message, parse_frames, streams_open
from tests.support.keys import ACCESS, ADMIN, KeyHolder, create_key_holder


@pytest.fixture
def app(bus: MemoryBus) -> FastAPI:
    return create_app(bus, access=ACCESS)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    async with app_client(app) as client:
        yield client


@pytest.fixture
async def ann(bus: MemoryBus) -> KeyHolder:
    return await create_key_holder(bus, "user:ann")


@pytest.fixture
async def bob(bus: MemoryBus) -> KeyHolder:
    return await create_key_holder(bus, "user:bob")


def unsigned(text: str = "hello", conversation: str = "one", **fields: Any) -> dict[str, Any]:
    return {name: value for name, value in message(text, conversation, **fields).items() if name != "sender"}


async def send(client: httpx2.AsyncClient, who: KeyHolder, conversation: str = "one", **fields: Any) -> httpx2.Response:
    return await client.post("/send", json=unsigned(conversation=conversation, **fields), headers=who.headers)


def owner(bus: MemoryBus, conversation: str) -> object:
    return bus.call(Describe((f"stream:{conversation}",)))[0].head.get("owner")


# --- who signs


async def test_a_missing_sender_is_the_owner_of_the_key(
    bus: MemoryBus, client: httpx2.AsyncClient, ann: KeyHolder
) -> None:
    answer = await send(client, ann, id="m1")
    again = await client.post("/send", json=message(id="m1"), headers=ann.headers)

    assert answer.status_code == 200
    assert again.json() == answer.json()
    (record,) = bus.read("chat:Ada")
    assert (record.payload["sender"], record.headers["principal"]) == ("user:ann", "user:ann")


async def test_a_sender_that_is_not_ones_own_is_refused(
    bus: MemoryBus, client: httpx2.AsyncClient, ann: KeyHolder
) -> None:
    for sender in ("user:bob", "user:local", "agent:Ada", "ann"):
        answer = await client.post("/send", json=message(sender=sender), headers=ann.headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "foreign_sender")

    assert bus.read("chat:Ada") == []


async def test_an_admin_sends_for_every_user_into_every_conversation(
    bus: MemoryBus, client: httpx2.AsyncClient, ann: KeyHolder
) -> None:
    boss = await create_key_holder(bus, "admin")
    await send(client, ann)

    for headers in (ADMIN, boss.headers):
        assert (await client.post("/send", json=message(sender="user:bob"), headers=headers)).status_code == 200

    assert [dict(record.headers).get("principal") for record in bus.read("chat:Ada")] == ["user:ann", None, None]


async def test_a_body_that_lacks_more_than_its_sender_is_told_all_of_it(
    client: httpx2.AsyncClient, ann: KeyHolder
) -> None:
    answer = await client.post("/send", json={"conversation_id": "one"}, headers=ann.headers)

    assert answer.status_code == 422
    assert {fault["where"] for fault in answer.json()["errors"]} == {"sender", "recipient"}


@pytest.mark.parametrize("body", [{"sender": "user:bob"}, {"agent": "Ada", "sender": "user:local"}])
async def test_a_stop_is_signed_too(client: httpx2.AsyncClient, ann: KeyHolder, body: dict[str, str]) -> None:
    await send(client, ann)

    answer = await client.post("/api/sdk/session/one/stop", json=body, headers=ann.headers)

    assert (answer.status_code, answer.json()["code"]) == (403, "foreign_sender")


async def test_a_stop_without_a_sender_is_ones_own(bus: MemoryBus, client: httpx2.AsyncClient, ann: KeyHolder) -> None:
    await send(client, ann)

    bare = await client.post("/api/sdk/session/one/stop", headers=ann.headers)
    named = await client.post("/api/sdk/session/one/stop", json={"agent": "Ada"}, headers=ann.headers)

    assert bare.status_code == named.status_code == 202
    assert [record.payload["sender"] for record in bus.read("control:Ada")] == ["user:ann"] * 2


def test_an_anonymous_caller_owns_nothing_and_a_user_signs_only_as_themselves() -> None:
    assert not ANONYMOUS.principal.owns(None)
    assert not ANONYMOUS.principal.owns("")
    assert principal_of({"magent2.identity": "forged"}) == ANONYMOUS.principal
    assert principal_of({}) == HOUSE
    with pytest.raises(Problem):
        check_sender(Principal("user:ann"), "user:bob")


# --- whose it is


async def test_the_first_sender_owns_a_conversation_and_others_do_not_find_it(
    bus: MemoryBus, client: httpx2.AsyncClient, ann: KeyHolder, bob: KeyHolder
) -> None:
    await send(client, ann)

    assert owner(bus, "one") == "user:ann"
    for method, path in (
        ("GET", "/api/sdk/session/one"),
        ("GET", "/api/sdk/session/one/events"),
        ("GET", "/stream/one"),
        ("POST", "/api/sdk/session/one/stop"),
        ("DELETE", "/api/sdk/session/one"),
    ):
        answer = await client.request(method, path, headers=bob.headers)
        code = "unknown_conversation" if path == "/stream/one" else "unknown_session"
        assert (answer.status_code, answer.json()["code"]) == (404, code), path
    beyond = await client.get("/stream/one", params={"since": 7}, headers=bob.headers)
    assert beyond.status_code == 404
    refused = await send(client, bob)
    assert (refused.status_code, refused.json()["code"]) == (404, "unknown_conversation")
    assert len(bus.read("chat:one")) == 1
    assert bus.read("control:Ada") == []


async def test_a_conversation_without_an_owner_is_the_admins(
    bus: MemoryBus, client: httpx2.AsyncClient, ann: KeyHolder
) -> None:
    await client.post("/send", json=message(), headers=ADMIN)

    assert (await client.get("/api/sdk/session/one", headers=ann.headers)).status_code == 404
    assert (await send(client, ann)).status_code == 404
    assert (await client.get("/api/sdk/session/one", headers=ADMIN)).status_code == 200
    assert owner(bus, "one") is None


async def test_a_list_shows_ones_own_and_an_admin_all(
    client: httpx2.AsyncClient, ann: KeyHolder, bob: KeyHolder
) -> None:
    await send(client, ann, "of-ann")
    await send(client, bob, "of-bob")

    async def listed(headers: dict[str, str], **asked: str) -> set[str]:
        answer = await client.get("/api/sdk/sessions", params={"format": "record", **asked}, headers=headers)
        return {one["conversation_id"] for one in answer.json()["conversations"]}

    assert await listed(ann.headers) == await listed(ann.headers, owner="user:ann") == {"of-ann"}
    assert await listed(ann.headers, owner="user:bob") == set()
    assert await listed(ADMIN) == {"of-ann", "of-bob"}
    assert await listed(ADMIN, owner="user:bob") == {"of-bob"}


async def test_of_many_who_begin_together_one_owns_it_and_the_rest_are_refused(
    bus: MemoryBus, client: httpx2.AsyncClient
) -> None:
    people = [await create_key_holder(bus, f"user:p{number}") for number in range(8)]

    answers = await asyncio.gather(*(send(client, one) for one in people))

    assert sorted(answer.status_code for answer in answers) == [200] + [404] * 7
    winner = next(number for number, answer in enumerate(answers) if answer.status_code == 200)
    assert owner(bus, "one") == f"user:p{winner}"
    assert len(bus.read("chat:one")) == 1


async def test_a_deleted_conversation_is_gone_for_its_owner_and_stays_so(
    client: httpx2.AsyncClient, ann: KeyHolder
) -> None:
    await send(client, ann)

    assert (await client.delete("/api/sdk/session/one", headers=ann.headers)).status_code == 204
    assert (await client.get("/api/sdk/session/one", headers=ann.headers)).status_code == 410
    assert (await send(client, ann)).status_code == 410


# --- following


async def test_the_owner_follows_what_is_theirs(client: httpx2.AsyncClient, ann: KeyHolder) -> None:
    await send(client, ann)

    answer = await client.get("/stream/one", params={"max_events": 1}, headers=ann.headers)

    assert [event.kind for event in parse_frames(answer.text)] == ["user_message", "end"]


async def test_a_follower_who_was_there_first_sees_what_becomes_theirs(
    app: FastAPI, client: httpx2.AsyncClient, ann: KeyHolder
) -> None:
    following = asyncio.create_task(client.get("/stream/one", params={"max_events": 1}, headers=ann.headers))
    await streams_open(app, 1)

    await send(client, ann)

    assert [event.kind for event in parse_frames((await following).text)] == ["user_message", "end"]


@pytest.mark.parametrize("asked", [{}, {"since": 0}, {"since": 7}])
async def test_a_follower_who_was_there_first_is_sent_away_when_it_becomes_anothers(
    app: FastAPI, client: httpx2.AsyncClient, ann: KeyHolder, bob: KeyHolder, asked: dict[str, int]
) -> None:
    following = asyncio.create_task(client.get("/stream/one", params=asked, headers=bob.headers))
    await streams_open(app, 1)

    await send(client, ann, content="secret")

    answer = await following
    end = parse_frames(answer.text)[-1]
    assert (end.kind, end.data["reason"]) == ("end", "revoked")
    assert "secret" not in answer.text
    assert (await client.get("/stream/one", headers=bob.headers)).status_code == 404


async def test_a_follower_of_a_conversation_that_stays_unowned_is_sent_away(
    app: FastAPI, client: httpx2.AsyncClient, bob: KeyHolder
) -> None:
    following = asyncio.create_task(client.get("/stream/one", headers=bob.headers))
    await streams_open(app, 1)

    await client.post("/send", json=message(), headers=ADMIN)

    assert parse_frames((await following).text)[-1].data["reason"] == "revoked"


async def test_a_stream_of_what_was_deleted_is_over_for_everybody(
    client: httpx2.AsyncClient, ann: KeyHolder, bob: KeyHolder
) -> None:
    await send(client, ann)
    await client.delete("/api/sdk/session/one", headers=ann.headers)

    for who in (ann, bob):
        assert (await client.get("/stream/one", headers=who.headers)).status_code == 204


async def test_a_caller_can_ask_for_their_name_and_rights(client: httpx2.AsyncClient, ann: KeyHolder) -> None:
    told = [(await client.get("/api/me", headers=headers)).json() for headers in (ann.headers, ADMIN)]

    assert told == [
        {"principal": "user:ann", "scopes": ["user:ann"]},
        {"principal": "user:local", "scopes": ["admin", "user:local"]},
    ]


async def test_a_body_without_a_sender_is_looked_at_as_closely_as_any(
    client: httpx2.AsyncClient, ann: KeyHolder
) -> None:
    for extra in (b"NaN", b'"\\ud800"', b"123456789012345678901234567890", b"[" * 300 + b"]" * 300):
        head = b'{"conversation_id":"one","recipient":"agent:Ada","content":"x","metadata":{"n":'
        headers = {**ann.headers, "content-type": "application/json"}
        unsigned_answer = await client.post("/send", content=head + extra + b"}}", headers=headers)
        with_sender = b'{"sender":"user:ann",' + head[1:]
        signed_answer = await client.post("/send", content=with_sender + extra + b"}}", headers=headers)

        assert unsigned_answer.status_code == signed_answer.status_code, extra
        assert unsigned_answer.status_code in (400, 422), extra


async def test_behind_a_proxy_that_adds_to_the_path_the_same_rules_hold(bus: MemoryBus, ann: KeyHolder) -> None:
    transport = httpx2.ASGITransport(create_app(bus, access=ACCESS), root_path="/magent")
    async with httpx2.AsyncClient(transport=transport, base_url="http://testserver") as client:
        assert (await client.get("/magent/api/workers", headers=ann.headers)).status_code == 403
        assert (await client.get("/magent/api/workers", headers=ADMIN)).status_code == 200
        assert (await client.get("/magent/api/sdk/sessions", headers=ann.headers)).status_code == 200
        assert (await client.get("/magent/health")).status_code == 200
        assert (await client.get("/magent/api/workers")).status_code == 401
