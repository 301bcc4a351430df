"""Paths of 0.1.x: each answers 308 with the new path, to those who may use it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from urllib.parse import parse_qsl, urlsplit

import httpx2
import pytest

from magent2.bus.memory import MemoryBus
from magent2.gateway.app import create_app
from magent2.gateway.proxy import ProxySettings
from tests.support.gateway import app_client, message
from tests.support.keys import ACCESS, ADMIN, KeyHolder, create_key_holder
from tests.support.routes import MOVED_TABLE, redirects_of

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
MOVED = (
    ("/conversations", "/api/sdk/sessions?format=record"),
    ("/conversations?limit=2&before=a%26b", "/api/sdk/sessions?limit=2&before=a%26b&format=record"),
    ("/conversations/one", "/api/sdk/session/one?format=record"),
    ("/conversations/a%2Fb%20c%3F", "/api/sdk/session/a%2Fb%20c%3F?format=record"),
    ("/conversations/%2E%2E%2Fx/events?since=3", "/api/sdk/session/%2E%2E%2Fx/events?since=3&format=record"),
    ("/conversations/one/stop", "/api/sdk/session/one/stop?format=record"),
    ("/dead", "/api/dead"),
    ("/dead?agent=Ada", "/api/dead?agent=Ada"),
    ("/dead/a%2Fb/7/retry", "/api/dead/a%2Fb/7/retry"),
    ("/agents", "/api/workers"),
)


@pytest.fixture
async def client(bus: MemoryBus) -> AsyncIterator[httpx2.AsyncClient]:
    async with app_client(create_app(bus, access=ACCESS)) as client:
        yield client


@pytest.fixture
async def ann(bus: MemoryBus) -> KeyHolder:
    return await create_key_holder(bus, "user:ann")


def test_the_table_has_every_redirect_and_the_document_none(bus: MemoryBus) -> None:
    app = create_app(bus)

    assert redirects_of(app) == set(MOVED_TABLE)
    assert not [path for path in app.openapi()["paths"] if path.startswith(("/conversations", "/dead", "/agents"))]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("old", "new"), MOVED)
async def test_every_method_is_redirected_and_id_and_query_are_kept(
    client: httpx2.AsyncClient, method: str, old: str, new: str
) -> None:
    answer = await client.request(method, old, headers=ADMIN)

    assert (answer.status_code, answer.headers["location"], answer.content) == (308, new, b"")


@pytest.mark.parametrize("sent", ["/magent2/conversations/one?since=1", "/conversations/one?since=1"])
async def test_the_new_path_is_below_the_root_path(bus: MemoryBus, sent: str) -> None:
    """A proxy may remove the root path or leave it."""
    app = create_app(bus, proxy=ProxySettings.parse("/magent2"))
    async with app_client(app) as client:
        answer = await client.get(sent)

    assert answer.headers["location"] == "/magent2/api/sdk/session/one?since=1&format=record"


async def test_a_path_with_encoded_letters_is_redirected_too(bus: MemoryBus) -> None:
    app = create_app(bus, proxy=ProxySettings.parse("/magent2"))
    async with app_client(app) as client:
        answer = await client.get("/m%61gent2/conv%65rsations/a%20b")

    assert answer.headers["location"] == "/magent2/api/sdk/session/a%20b?format=record"


@pytest.mark.parametrize("path", sorted(MOVED_TABLE))
async def test_old_paths_have_the_authorization_of_the_new_ones(
    client: httpx2.AsyncClient, ann: KeyHolder, path: str
) -> None:
    row = MOVED_TABLE[path]
    old = (row.path or path).replace("{conversation}", "one")

    nobody, own, admin = [await client.get(old, headers=headers) for headers in ({}, ann.headers, ADMIN)]

    assert (nobody.status_code, admin.status_code) == (401, 308)
    assert own.status_code == (403 if row.right == "admin" else 308)


async def test_a_client_of_the_old_paths_that_follows_gets_the_same_responses(
    client: httpx2.AsyncClient, ann: KeyHolder
) -> None:
    client.follow_redirects = True
    body = {name: value for name, value in message("hi", "a/b").items() if name != "sender"}
    await client.post("/send", json=body, headers=ann.headers)

    listed = (await client.get("/conversations", headers=ann.headers)).json()["conversations"]
    one = (await client.get("/conversations/a%2Fb", headers=ann.headers)).json()
    page = (await client.get("/conversations/a%2Fb/events", headers=ann.headers)).json()
    stopped = await client.post("/conversations/a%2Fb/stop", json={"agent": "Ada"}, headers=ann.headers)
    deleted = await client.delete("/conversations/a%2Fb", headers=ann.headers)

    assert listed == [{**one, "usage": None}], "a list does not add up the usage of each session"
    assert (one["conversation_id"], page["conversation_id"]) == ("a/b", "a/b")
    assert [event["event"] for event in page["events"]] == ["user_message"]
    assert (stopped.status_code, stopped.json()["agent"], deleted.status_code) == (202, "Ada", 204)


async def test_a_redirect_never_leaves_the_gateway(client: httpx2.AsyncClient) -> None:
    answer = await client.get("/conversations//evil.example/x", headers=ADMIN)

    location = urlsplit(answer.headers["location"])
    assert (location.scheme, location.netloc) == ("", "")
    assert location.path.startswith("/api/sdk/session/")
    assert dict(parse_qsl(location.query)) == {"format": "record"}
