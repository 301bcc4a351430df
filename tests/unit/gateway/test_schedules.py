"""`/api/schedules`: create, list, show, pause, resume, run and delete; refusals change nothing."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from magent2.bus.log import Log
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Topics
from magent2.gateway.limits import GatewayLimits
from magent2.mail.registration import register_agent
from magent2.models.address import SCHEDULER
from magent2.sessions.schedules.store import SCHEDULE_TEXT_MAX_CHARS, run_message_id
from magent2.sessions.store import create_session
from tests.support.gateway import asgi_client
from tests.support.keys import ACCESS, create_key_holder
from tests.support.schedules import look_until_idle, messages

SESSION = "one"
DAILY: dict[str, Any] = {"session_id": SESSION, "text": "hello", "cron": "0 9 * * *", "timezone": "Europe/Berlin"}


@pytest.fixture
async def session(bus: MemoryBus) -> str:
    await register_agent(Log(bus), "Ada")
    await register_agent(Log(bus), SCHEDULER, {"hidden": True})  # as a worker does
    await create_session(Log(bus), SESSION, "user:ann", {"active_agent": "Ada"})
    return SESSION


async def post(client: httpx2.AsyncClient, body: dict[str, Any], expected: int = 201) -> dict[str, Any]:
    answer = await client.post("/api/schedules", json=body)
    assert answer.status_code == expected, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_schedule_is_created_once_listed_shown_and_deleted(bus: MemoryBus, session: str) -> None:
    async with asgi_client(bus) as client:
        created = await post(client, {**DAILY, "schedule_id": "news"})
        again = await post(client, {**DAILY, "schedule_id": "news"})
        listed = (await client.get("/api/schedules", params={"session_id": SESSION})).json()["schedules"]

        assert created == again
        assert (created["text"], created["status"], created["recent"]) == ("hello", "active", [])
        assert created["next_at"] is not None
        assert [one["schedule_id"] for one in listed] == ["news"]
        assert (await client.get("/api/schedules", params={"session_id": "other"})).json()["schedules"] == []
        assert (await post(client, {**DAILY, "text": "other", "schedule_id": "news"}, 409))["code"] == "id_conflict"

        assert (await client.delete("/api/schedules/news")).status_code == 204
        assert (await client.get("/api/schedules/news")).json()["code"] == "unknown_schedule"
    assert bus.call(Topics("schedule")).topics == ()


@pytest.mark.parametrize(
    ("change", "code", "says"),
    [
        ({"cron": None}, "invalid", "exactly one of 'at', 'in' and 'cron'"),
        ({"in": "5m"}, "invalid", "not 'in' and 'cron'"),
        ({"cron": "0 9 * *"}, "invalid", "5 fields"),
        ({"cron": "0 25 * * *"}, "invalid", "Bad hour"),
        ({"cron": "0 0 31 2 *"}, "invalid", "Bad day-of-month"),
        ({"cron": "*/5 * * * * *"}, "invalid", "5 fields"),
        ({"timezone": "Europe/Nowhere"}, "invalid", "no time zone 'Europe/Nowhere'"),
        ({"cron": None, "in": "soon"}, "invalid", "is not a duration"),
        ({"cron": None, "in": 0}, "invalid", "at least 1 s"),
        ({"cron": None, "in": "9" * 5000 + "s"}, "invalid", "is not a duration"),
        ({"cron": None, "in": "9" * 12 + "d"}, "invalid", "at most 3650 days"),
        ({"cron": None, "in": True}, "bad_envelope", "in"),
        ({"cron": None, "at": "2020-01-01T00:00:00Z"}, "invalid", "in the past"),
        ({"cron": None, "at": "tomorrow"}, "invalid", "must be an instant"),
        ({"cron": None, "timezone": None, "at": "2090-01-01T00:00:00"}, "invalid", "no offset"),
        ({"cron": None, "at": "2090-01-01T00:00:00Z"}, "invalid", "3650 days"),
        ({"cron": None, "at": "9999-12-31T23:59:59-14:00"}, "invalid", "outside the years 1 to 9999"),
        ({"cron": None, "at": "9999-12-31T23:59:59.9999Z"}, "invalid", "outside the years 1 to 9999"),
        ({"cron": None, "at": "9999-12-31T23:59:59", "timezone": "America/New_York"}, "invalid", "outside the years"),
        ({"cron": None, "at": "0001-01-01T00:00:00", "timezone": "Asia/Tokyo"}, "invalid", "outside the years"),
        ({"until": "9999-12-31T23:59:59-14:00"}, "invalid", "'until' is outside the years 1 to 9999"),
        ({"timezone": "localtime"}, "invalid", "no time zone 'localtime'"),
        ({"cron": "0 0 LW * */7"}, "invalid", "never matches a date"),
        ({"until": "2020-01-01T00:00:00Z"}, "invalid", "no slot before 'until'"),
        ({"text": " "}, "blank", "some text"),
        ({"text": "x" * (SCHEDULE_TEXT_MAX_CHARS + 1)}, "too_long", "at most"),
        ({"session_id": None}, "no_recipient", "'session_id'"),
        ({"agent": "nobody"}, "unknown_agent", "nobody"),
        ({"agent": SCHEDULER}, "unknown_agent", SCHEDULER),
        ({"agent": SCHEDULER, "session_id": None}, "unknown_agent", SCHEDULER),
        ({"missed": "never"}, "bad_envelope", "missed"),
        ({"cronn": "* * * * *"}, "bad_envelope", "cronn"),
        ({"max_runs": 0}, "bad_envelope", "max_runs"),
    ],
)
async def test_a_wrong_schedule_is_refused_and_changes_nothing(
    bus: MemoryBus, session: str, change: dict[str, Any], code: str, says: str
) -> None:
    body = {name: value for name, value in {**DAILY, **change}.items() if value is not None}
    async with asgi_client(bus) as client:
        problem = await post(client, body, 422)

    assert problem["code"] == code
    assert says in problem["detail"]
    assert bus.call(Topics("schedule")).topics == ()


async def test_limits_of_the_gateway_hold(bus: MemoryBus, session: str) -> None:
    limits = GatewayLimits(schedules_per_principal_max=1, schedule_interval_min_s=3600)
    async with asgi_client(bus, limits=limits) as client:
        assert "the limit is 3600 s" in (await post(client, {**DAILY, "cron": "*/30 * * * *"}, 422))["detail"]
        await post(client, DAILY)
        assert "the limit is 1" in (await post(client, DAILY, 422))["detail"]
        await post(client, {"agent": "Ada", "text": "x", "in": 60})
        assert "the limit is 1" in (await post(client, {"agent": "Ada", "text": "x", "in": 60}, 422))["detail"]
    assert len(bus.call(Topics("stream:")).topics) == 2


async def test_a_schedule_for_an_agent_gets_a_session_of_its_own(bus: MemoryBus, session: str) -> None:
    async with asgi_client(bus) as client:
        created = await post(client, {"agent": "Ada", "text": "hello", "schedule_id": "s9", "in": "1h"})
        assert created["session_id"] == "schedule-s9"
        assert (await client.get("/api/sdk/session/schedule-s9")).json()["active_agent_id"] == "Ada"

        await client.post("/api/schedules/s9/run")

    (message,) = messages(bus, "schedule-s9")
    assert (message["recipient"], message["content"]) == ("agent:Ada", "hello")


async def test_pause_resume_and_run_now(bus: MemoryBus, session: str) -> None:
    async with asgi_client(bus) as client:
        await post(client, {**DAILY, "schedule_id": "news"})
        paused = (await client.post("/api/schedules/news/pause")).json()
        assert (paused["status"], paused["next_at"]) == ("paused", None)
        assert (await client.post("/api/schedules/news/pause")).json()["status"] == "paused"
        assert (await client.post("/api/schedules/news/resume")).json()["status"] == "active"

        for _ in range(2):
            sent = await client.post("/api/schedules/news/run", json={"client_message_id": "k1"})
            assert (sent.status_code, sent.json()["message_id"]) == (202, run_message_id("news", "k1"))
        shown = (await client.get("/api/schedules/news")).json()

    assert len(messages(bus)) == 1
    assert [slot["outcome"] for slot in shown["recent"]] == ["sent"]
    assert (shown["runs"], shown["status"]) == (0, "active")


async def test_a_person_sees_and_changes_only_their_own_schedules(bus: MemoryBus, session: str) -> None:
    ann, bob = await create_key_holder(bus, "user:ann"), await create_key_holder(bus, "user:bob")
    async with asgi_client(bus, access=ACCESS) as client:
        created = await client.post("/api/schedules", json={**DAILY, "schedule_id": "a1"}, headers=ann.headers)
        assert created.status_code == 201
        foreign = await client.post("/api/schedules", json=DAILY, headers=bob.headers)
        assert foreign.json()["code"] == "unknown_session"
        for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/pause"), ("POST", "/resume"), ("POST", "/run")):
            answer = await client.request(method, f"/api/schedules/a1{path}", headers=bob.headers)
            assert (answer.status_code, answer.json()["code"]) == (404, "unknown_schedule"), path
        listed = await client.get("/api/schedules", headers=bob.headers)
        assert listed.json()["schedules"] == []
        taken = await client.post(
            "/api/schedules",
            json={"agent": "Ada", "text": "x", "in": 60, "schedule_id": "a1"},
            headers=bob.headers,
        )
        assert (taken.status_code, taken.json()["code"]) == (409, "name_taken")
    await look_until_idle(bus)
    assert messages(bus) == []
