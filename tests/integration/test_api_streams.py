"""Streams of sessions over HTTP: one of them, or many on one connection; dropped and resumed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.gateway.limits import GatewayLimits
from tests.support.api.sessions import (
    answer_to,
    api_on_socket,
    create,
    events,
    frames,
    gateway_on_socket,
    say,
    team_at_work,
    until_served,
)
from tests.support.engines import DISTINCT_ENGINES, new_engines
from tests.support.worker_fixture import until

WRITERS, FOLLOWERS, MESSAGES = 8, 8, 4
POLL_S = 0.05  # of those who read pages, once they have seen all there is
DEADLINE_S = 30.0
FOLLOW_DEADLINE_S = 60.0  # of the followers, from the last answer on: how long the writers take is not their matter


@pytest.fixture(params=DISTINCT_ENGINES)
async def bus(request: pytest.FixtureRequest) -> AsyncIterator[Engine]:
    bus = new_engines(request.param, request)()
    yield bus
    await bus.aclose()


@pytest.fixture
async def client(bus: Engine) -> AsyncIterator[httpx2.AsyncClient]:
    async with team_at_work(bus), api_on_socket(bus) as client:
        yield client


Following = AsyncIterator[tuple[str | None, str, dict[str, Any]]]


async def test_a_stream_shows_what_the_pages_show(client: httpx2.AsyncClient) -> None:
    await create(client)
    await answer_to(client, "hello")
    expected = await events(client)

    async with client.stream("GET", "/api/sdk/session/s1/stream", params={"max_events": len(expected)}) as answer:
        found = [frame async for frame in frames(answer)]

    assert [data for _, kind, data in found if kind != "end"] == expected
    assert [number for number, _, _ in found[:-1]] == [str(event["seq"]) for event in expected]
    assert (found[-1][1], found[-1][2]["reason"]) == ("end", "max_events")


async def test_one_connection_shows_the_list_and_the_sessions(client: httpx2.AsyncClient) -> None:
    await create(client, "a,b:c")
    await create(client, "other")

    async with client.stream("GET", "/api/stream", params={"session": ["a%2Cb%3Ac:0", "other"]}) as answer:
        follow = frames(answer)
        seen = await _until(follow, lambda kind, data: kind == "session" and data["session_id"] == "other")
        await answer_to(client, "hello", "a,b:c")
        seen += await _until(follow, lambda kind, data: kind == "run" and data["final"])
        # The list may show the end of the run before the session does, or after it.
        changes = [frame for frame in seen if _shows_the_end(frame[1], frame[2])]
        changes = changes or await _until(follow, _shows_the_end)

    lists = [data for _, kind, data in seen if kind == "sessions"]
    assert {one["session_id"] for one in lists[0]["sessions"]} == {"a,b:c", "other"}
    assert [data for _, kind, data in seen if data.get("session_id") == "a,b:c"] == await events(client, "a%2Cb%3Ac")
    assert [number for number, _, _ in seen if number][-1] == f"a%2Cb%3Ac:{seen[-1][2]['seq']},other:1"
    assert changes[-1][2]["changed"][0]["session_id"] == "a,b:c"


def _shows_the_end(kind: str, data: dict[str, Any]) -> bool:
    """Whether a frame is a change of the list that shows a run as ended."""
    statuses = [entry["run_status"] for entry in data["changed"]] if kind == "sessions_changed" else []
    return any(status not in (None, "running") for status in statuses)


async def test_the_list_tells_of_new_sessions_and_of_their_end(client: httpx2.AsyncClient) -> None:
    await create(client, "one")
    async with client.stream("GET", "/api/stream") as answer:
        follow = frames(answer)
        await _until(follow, lambda kind, data: kind == "sessions")

        await create(client, "two")
        made = await _until(follow, lambda kind, data: kind == "sessions_changed")
        sent = await client.post(
            "/send",
            json={"conversation_id": "three", "sender": "user:x", "recipient": "agent:general", "content": "hi"},
        )
        mailed = await _until(follow, lambda kind, data: "three" in str(data))
        await client.delete("/api/sdk/session/one")
        ended = await _until(follow, lambda kind, data: data.get("removed"))

    assert sent.status_code == 200
    assert [one["session_id"] for one in made[-1][2]["changed"]] == ["two"]
    assert mailed[-1][1] == "sessions_changed"
    assert ended[-1][2]["removed"] == ["one"]


async def test_a_session_that_ends_leaves_the_others(client: httpx2.AsyncClient) -> None:
    await create(client, "one")
    await create(client, "two")
    wanted = {"session": ["one:1", "two:1", "never:0"]}
    async with client.stream("GET", "/api/stream", params=wanted) as answer:
        follow = frames(answer)
        unknown = await _until(follow, lambda kind, data: kind == "end")
        await client.delete("/api/sdk/session/one")
        deleted = await _until(follow, lambda kind, data: kind == "end")
        await answer_to(client, "hello", "two")
        await _until(follow, lambda kind, data: kind == "run" and data["final"])

    assert (unknown[-1][2]["session_id"], unknown[-1][2]["reason"]) == ("never", "unknown")
    assert (deleted[-1][2]["session_id"], deleted[-1][2]["reason"]) == ("one", "deleted")


async def test_the_list_tells_of_sessions_that_another_gateway_began(log_url: str) -> None:
    """The mail of a new conversation is seen at once, a session without any by the sweep."""
    here, there = connect(log_url), connect(log_url)
    async with team_at_work(there), api_on_socket(here) as client, api_on_socket(there) as other:
        await until_served(client)
        async with client.stream("GET", "/api/stream") as answer:
            follow = frames(answer)
            await _until(follow, lambda kind, data: kind == "sessions")
            await create(other, "quiet")
            quiet = await _until(follow, lambda kind, data: kind == "sessions_changed")
            await create(other, "loud")
            await answer_to(other, "hello", "loud")
            await _until(follow, lambda kind, data: "loud" in str(data))
    await here.aclose()
    await there.aclose()

    assert [one["session_id"] for one in quiet[-1][2]["changed"]] == ["quiet"]


async def test_waiting_requests_end_when_the_gateway_shuts_down() -> None:
    bus = MemoryBus()
    async with gateway_on_socket(bus, GatewayLimits(wait_max_s=600)) as (gateway, client):
        await create(client)
        waiting = asyncio.create_task(say(client, "hello"))
        await until(lambda: gateway.app.state.services.replies.waiting == 1)
        gateway.drain()
        answer = await waiting
    await bus.aclose()

    assert (answer.status_code, answer.json()["status"]) == (202, "in_progress")


@pytest.mark.parametrize("path", ["one", "many", "pages"])
async def test_eight_writers_and_eight_followers_who_drop_and_resume(log_url: str, path: str) -> None:
    """Each follower sees the whole log, in order, nothing twice, however often it was cut off and wherever it went."""
    sessions = ["s1", "s2", "s3"] if path == "many" else ["s1"]
    here, there = connect(log_url), connect(log_url)
    async with team_at_work(here), api_on_socket(here) as one, api_on_socket(there) as other:
        gateways = [one, other]
        for session in sessions:
            await create(one, session)
        follow = _read_pages if path == "pages" else _follow_with_drops
        following = [asyncio.create_task(follow(gateways, sessions, random.Random(n))) for n in range(FOLLOWERS)]
        await asyncio.gather(*(_write(gateways[number % 2], sessions, number) for number in range(WRITERS)))
        for session in sessions:
            await answer_to(one, "the end", session)
        async with asyncio.timeout(FOLLOW_DEADLINE_S):
            seen = await asyncio.gather(*following)
        logs = {session: await events(other, session) for session in sessions}
    await here.aclose()
    await there.aclose()

    for session, log in logs.items():
        assert [event["seq"] for event in log] == list(range(1, len(log) + 1))
        assert len({event["message_id"] for event in log if event["role"] == "user"}) == len(_texts(log, "user"))
        assert sorted(_texts(log, "user")) == sorted(_texts(log, "assistant"))
        for one_seen in seen:
            assert one_seen[session] == log


def _texts(log: list[dict[str, Any]], role: str) -> list[str]:
    return [event["text"] for event in log if event["type"] == "message" and event["role"] == role]


async def _write(client: httpx2.AsyncClient, sessions: list[str], number: int) -> None:
    for message in range(MESSAGES):
        session = sessions[(number + message) % len(sessions)]
        await answer_to(client, f"writer {number} says {message}", session, client_message_id=f"{number}/{message}")


Seen = dict[str, list[dict[str, Any]]]


async def _read_pages(gateways: list[httpx2.AsyncClient], sessions: list[str], rng: random.Random) -> Seen:
    """What a client sees that reads page after page, of any size, at any gateway."""
    (session,) = sessions
    found: list[dict[str, Any]] = []
    while not (found and _is_over(found)):
        asked = {"since": found[-1]["seq"] if found else 0, "limit": rng.randrange(1, 200)}
        answer = await rng.choice(gateways).get(f"/api/sdk/session/{session}/events", params=asked)
        page = answer.json()
        found += page["events"]
        assert page["next_since"] == (found[-1]["seq"] if found else 0)
        if not page["has_more"]:
            await asyncio.sleep(POLL_S)
    return {session: found}


async def _follow_with_drops(gateways: list[httpx2.AsyncClient], sessions: list[str], rng: random.Random) -> Seen:
    """What a client sees that leaves in the middle, again and again, and comes back with its cursor, to any gateway."""
    seen: Seen = {session: [] for session in sessions}
    cursor: str | None = None
    while not all(_is_over(found) for found in seen.values()):
        patience = rng.randrange(1, 60)
        headers = {} if cursor is None else {"Last-Event-ID": cursor}
        one = len(sessions) == 1
        url = f"/api/sdk/session/{sessions[0]}/stream" if one else "/api/stream"
        params = {} if one else {"session": [f"{session}:0" for session in sessions]}
        async with rng.choice(gateways).stream("GET", url, params=params, headers=headers) as answer:
            async for number, _, data in frames(answer):
                if number is None:
                    continue
                cursor = number
                seen[data["session_id"]].append(data)
                patience -= 1
                if not patience or all(_is_over(found) for found in seen.values()):
                    break
    return seen


def _is_over(found: list[dict[str, Any]]) -> bool:
    """Whether the run that answered the last message has ended."""
    last = found[-1] if found else {}
    return last.get("type") == "run" and bool(last["final"]) and "the end" in _texts(found[-4:], "assistant")


async def _until(follow: Following, is_it: Any) -> list[tuple[str | None, str, dict[str, Any]]]:
    """Frames up to the one that was waited for."""
    seen = []
    async with asyncio.timeout(DEADLINE_S):
        async for frame in follow:
            seen.append(frame)
            if is_it(frame[1], frame[2]):
                return seen
    pytest.fail(f"the stream ended after {seen}")
