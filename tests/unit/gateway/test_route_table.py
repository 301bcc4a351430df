"""Routes × principals, every one of them: who is answered, who is refused, and that a refusal changes nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx2
import pytest
from fastapi import FastAPI

from magent2.bus.log import Log
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Describe
from magent2.bus.records import TopicInfo
from magent2.gateway.app import create_app
from magent2.mail.registration import register_agent
from magent2.models.address import conversation_topics
from tests.support.gateway import app_client, message
from tests.support.keys import ACCESS, ADMIN, KeyHolder, create_key_holder
from tests.support.routes import TABLE, UNKNOWN, Request, routes_of
from tests.support.worker_fixture import until

ANNS, BOBS = "anns-talk", "bobs-talk"
BOBS_SECRET = "what bob said"  # pragma: allowlist secret
ROUTES = sorted(TABLE)
CLOSED = [key for key in ROUTES if TABLE[key].right != "open"]
WRONG = {"authorization": "Bearer 00000000000000000000"}


@dataclass(slots=True)
class TwoUsers:
    """A gateway with two people, each of whom has begun a conversation."""

    bus: MemoryBus
    app: FastAPI
    client: httpx2.AsyncClient
    ann: KeyHolder
    bob: KeyHolder

    async def ask(self, key: tuple[str, str], conversation: str, headers: dict[str, str]) -> httpx2.Response:
        """The route's answer; a stream is ended once it has begun."""
        request = Request.of(key, conversation)
        asking = asyncio.create_task(
            self.client.request(request.method, request.path, params=request.params, json=request.body, headers=headers)
        )
        streams = self.app.state.services.streams
        await until(lambda: asking.done() or streams.open)
        if streams.open:
            streams.drain()
        return await asking

    def state(self, conversation: str) -> tuple[TopicInfo, ...]:
        return self.bus.call(Describe((*conversation_topics(conversation), "chat:Ada", "control:Ada")))


@asynccontextmanager
async def two_users() -> AsyncIterator[TwoUsers]:
    bus = MemoryBus()
    await register_agent(Log(bus), "Ada")
    app = create_app(bus, access=ACCESS)
    ann, bob = await create_key_holder(bus, "user:ann"), await create_key_holder(bus, "user:bob")
    async with app_client(app) as client:
        for who, talk, text in ((ann, ANNS, "hi"), (bob, BOBS, BOBS_SECRET)):
            body = {name: value for name, value in message(text, talk).items() if name != "sender"}
            assert (await client.post("/send", json=body, headers=who.headers)).status_code == 200
        yield TwoUsers(bus, app, client, ann, bob)
    app.state.services.streams.close()
    await bus.aclose()


def code_of(answer: httpx2.Response) -> str | None:
    if answer.request.url.path.startswith("/v1/") and answer.status_code >= 400:
        return str(answer.json()["error"]["code"])
    is_problem = answer.headers.get("content-type", "") == "application/problem+json"
    return str(answer.json()["code"]) if is_problem else None


def test_the_table_has_every_route_of_the_application_and_no_other() -> None:
    bus = MemoryBus()

    assert routes_of(create_app(bus)) == set(TABLE)

    bus.close()


async def test_closed_routes_refuse_missing_wrong_and_revoked_credentials() -> None:
    async with two_users() as site:
        await site.ann.revoke()
        await until(lambda: site.app.state.services.streams.keys.has_ended(site.ann.id))
        before = site.state(ANNS)

        for key in CLOSED:
            for headers in ({}, WRONG, site.ann.headers):
                answer = await site.ask(key, ANNS, headers)
                assert (answer.status_code, code_of(answer)) == (401, "unauthorized"), key
            assert site.state(ANNS) == before, key


@pytest.mark.parametrize("key", CLOSED, ids=" ".join)
async def test_a_person_on_what_is_theirs(key: tuple[str, str]) -> None:
    row = TABLE[key]
    async with two_users() as site:
        answer = await site.ask(key, ANNS, site.ann.headers)

        if row.right == "admin":
            assert (answer.status_code, code_of(answer)) == (403, "admin_only")
        else:
            assert (answer.status_code, code_of(answer) in UNKNOWN) == (row.own, False), answer.text
        assert BOBS_SECRET not in answer.text
        assert BOBS not in answer.text


@pytest.mark.parametrize("key", CLOSED, ids=" ".join)
async def test_a_person_on_what_is_anothers(key: tuple[str, str]) -> None:
    row = TABLE[key]
    async with two_users() as site:
        before = site.state(BOBS)

        answer = await site.ask(key, BOBS, site.ann.headers)

        if row.right == "own":
            assert answer.status_code == row.foreign, answer.text
            if row.foreign == 404:
                assert code_of(answer) in UNKNOWN
        assert BOBS_SECRET not in answer.text
        assert site.state(BOBS) == before


@pytest.mark.parametrize("key", CLOSED, ids=" ".join)
async def test_an_admin_reaches_the_conversations_of_every_user(key: tuple[str, str]) -> None:
    async with two_users() as site:
        answer = await site.ask(key, BOBS, ADMIN)

        assert (answer.status_code, code_of(answer) in UNKNOWN) == (TABLE[key].own, False), answer.text


@pytest.mark.parametrize("key", sorted(set(ROUTES) - set(CLOSED)), ids=" ".join)
async def test_open_routes_answer_every_caller_and_name_no_conversation(key: tuple[str, str]) -> None:
    async with two_users() as site:
        for headers in ({}, WRONG, site.ann.headers, ADMIN):
            answer = await site.ask(key, ANNS, headers)
            assert answer.status_code == TABLE[key].own
            assert ANNS not in answer.text
            assert BOBS not in answer.text
