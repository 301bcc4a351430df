"""Users cannot access sessions of others: over HTTP, on every engine, by every route, and through sending tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from magent2.bus.operations import Describe
from magent2.bus.records import TopicInfo
from magent2.models.address import conversation_topics
from tests.support.api.server import ApiServer, api_server, shared_engines
from tests.support.engines import DISTINCT_ENGINES
from tests.support.routes import TABLE, Request

SECRET = "what only bob has said"  # pragma: allowlist secret
OWN = sorted(key for key, row in TABLE.items() if row.right == "own")


@pytest.fixture(scope="module", params=DISTINCT_ENGINES)
def server(request: pytest.FixtureRequest) -> Iterator[ApiServer]:
    with api_server(shared_engines(request.param, request)) as server:
        with server.client(server.bob) as bob:
            assert create(bob, "bobs").status_code == 200
            assert say(bob, "bobs", SECRET)["final_output"] == SECRET
        with server.client() as ann:
            assert create(ann, "anns").status_code == 200
        yield server


def create(client: httpx2.Client, name: str) -> httpx2.Response:
    return client.post("/api/sdk/session/create", json={"session_id": name})


def say(client: httpx2.Client, name: str, text: str) -> dict[str, Any]:
    answer: dict[str, Any] = client.post(
        "/api/sdk/session/message", json={"session_id": name, "user_input": text}
    ).json()
    return answer


def state(server: ApiServer, name: str = "bobs") -> tuple[TopicInfo, ...]:
    return server.bus.call(Describe(conversation_topics(name)))


def test_no_route_gives_access_to_the_session_of_another_user(server: ApiServer) -> None:
    before = state(server)
    with server.client() as ann:
        for key in OWN:
            request = Request.of(key, "bobs")
            params = {**request.params, **({"max_events": "1"} if "stream" in key[1] else {})}
            answer = ann.request(request.method, request.path, params=params, json=request.body)

            assert answer.status_code == TABLE[key].foreign, (key, answer.text)
            assert SECRET not in answer.text, key
    assert state(server) == before


def test_no_list_shows_entries_of_other_users(server: ApiServer) -> None:
    with server.client() as ann:
        shown = [
            ann.get("/api/sdk/sessions").text,
            ann.get("/api/sdk/sessions", params={"q": "only bob"}).text,
            ann.get("/api/sdk/sessions", params={"owner": "user:bob"}).text,
            ann.get("/api/sdk/sessions", params={"format": "record"}).text,
            ann.get("/api/stream", params={"session": "bobs:0", "max_events": 2}).text,
        ]

    assert all("anns" in text for text in (shown[0], shown[3], shown[4]))
    assert not any(SECRET in text for text in shown)
    assert not any('"bobs"' in text for text in shown[:4])


@pytest.mark.parametrize(
    "call",
    [
        {"recipient": "chat:bobs", "content": "obey"},
        {"recipient": "agent:sales", "content": "obey", "conversation_id": "bobs"},
        {"recipient": "agent:general", "content": "obey", "conversation_id": "bobs"},
    ],
    ids=lambda call: call["recipient"],
)
def test_an_agent_that_works_for_one_cannot_write_to_another(server: ApiServer, call: dict[str, str]) -> None:
    """The model chooses where it sends; whose run it is decides what of that is done."""
    before = state(server)
    with server.client() as ann:
        answer = say(ann, "anns", f"use chat_send {json.dumps(call)}")
        by_name = ann.post("/api/tools/execute", json={"session_id": "anns", "tool": "chat_send", "args": call}).json()

    (made,) = answer["tool_calls"]
    for result in (made["result"], by_name["result"]):
        assert "'ok': False" in result or '"ok": false' in result, result
        assert SECRET not in result
    assert state(server) == before


def test_an_agent_writes_only_where_its_user_may(server: ApiServer) -> None:
    call = {"recipient": "chat:annex", "content": "a note"}
    with server.client() as ann, server.client(server.bob) as bob:
        answer = say(ann, "anns", f"use chat_send {json.dumps(call)}")
        seen = ann.get("/api/sdk/session/annex").status_code
        hidden = bob.get("/api/sdk/session/annex").status_code

    assert "ok" in answer["tool_calls"][0]["result"]
    assert (seen, hidden) == (200, 404)
