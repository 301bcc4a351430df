"""Usage and budgets over HTTP: who sees and sets what, and a run that goes on when its budget is raised."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import httpx2
import pytest

from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Operation
from magent2.gateway.app import create_app
from magent2.models.address import usage_topic
from magent2.models.budgets import SHARE_MAX, Amount, Limit
from magent2.sessions.usage.budgets import BudgetName, day_of, limit_record, read_limits
from magent2.sessions.usage.ledger import CallFacts, spend_record
from tests.support.api.sessions import team_at_work
from tests.support.engine_wrappers import EngineWrapper
from tests.support.gateway import app_client
from tests.support.keys import ACCESS, ADMIN, create_key_holder
from tests.support.worker_fixture import outputs, until

TALK = "anns-talk"


async def put(client: httpx2.AsyncClient, headers: dict[str, str], **body: object) -> httpx2.Response:
    return await client.put("/api/budgets", json=body, headers=headers)


async def test_a_run_waits_for_its_budget_and_goes_on_when_its_owner_raises_it() -> None:
    bus = MemoryBus()
    ann, bob = await create_key_holder(bus, "user:ann"), await create_key_holder(bus, "user:bob")
    async with team_at_work(bus), app_client(create_app(bus, access=ACCESS)) as client:
        await client.post("/api/sdk/session/create", json={"session_id": TALK}, headers=ann.headers)
        send = {"session_id": TALK, "user_input": "hello", "wait": False}
        assert (await client.post("/api/sdk/session/message", json=send, headers=ann.headers)).status_code == 202
        await until(lambda: outputs(bus, TALK))
        assert (await put(client, ann.headers, budget="conversation", name=TALK, calls=2)).json()["share"] == 0.5
        again = {**send, "user_input": "weather in Oslo"}
        await client.post("/api/sdk/session/message", json=again, headers=ann.headers)
        await until(lambda: run_sync(bus, read_limits).waiting)

        listed = (await client.get("/api/budgets", params={"conversation": TALK}, headers=ann.headers)).json()
        hidden = (await client.get("/api/budgets", headers=bob.headers)).json()
        (entry,) = (await client.get("/api/sdk/sessions", headers=ann.headers)).json()["sessions"]
        waits = (await client.post("/api/sdk/session/message", json=send, headers=ann.headers)).json()
        refused = await put(client, bob.headers, budget="conversation", name=TALK, calls=99)
        raised = await put(client, ann.headers, budget="conversation", name=TALK, calls=20)
        await until(lambda: len(outputs(bus, TALK)) == 3)

        own = (await client.get("/api/usage", params={"by": "user,day"}, headers=ann.headers)).json()
        everyone = (await client.get("/api/usage", params={"by": "user"}, headers=ADMIN)).json()
        others = (await client.get("/api/usage", headers=bob.headers)).json()
    await bus.aclose()

    assert [run["session_id"] for run in listed["waiting"]] == [TALK]
    assert listed["waiting"][0]["budgets"][0]["used"]["calls"] == 2
    assert hidden["waiting"] == []
    assert entry["budget"] == "conversation"
    assert "budget" in waits["notice"]
    assert (refused.status_code, raised.status_code) == (404, 200)
    assert (own["total"]["calls"], own["groups"][0]["user"]) == (4, "user:ann")
    assert (own["total"]["cost_usd"], own["total"]["unpriced_calls"]) == (None, 4)  # the demo model has no price
    assert (everyone["total"]["calls"], others["total"]["calls"]) == (4, 0)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"budget": "user_day", "name": "user:ann", "calls": 9}, "admin_only"),
        ({"budget": "day", "calls": 9}, "admin_only"),
        ({"budget": "run", "name": "run-1", "calls": 9}, "unknown_run"),
        ({"budget": "day", "name": "monday", "calls": 9}, "bad_name"),
        ({"budget": "user", "calls": 9}, "bad_name"),
        ({"budget": "user", "name": "user:ann"}, "no_limit"),
        ({"budget": "day"}, "no_limit"),
    ],
)
async def test_a_limit_that_a_user_may_not_set_or_that_makes_no_sense_changes_nothing(
    body: dict[str, object], code: str
) -> None:
    bus = MemoryBus()
    ann = await create_key_holder(bus, "user:ann")
    async with app_client(create_app(bus, access=ACCESS)) as client:
        answer = await put(client, ann.headers, **body)
    limits = run_sync(bus, read_limits)
    await bus.aclose()

    assert (answer.status_code >= 400, answer.json()["code"]) == (True, code)
    assert not limits.set


SENSELESS = [  # body, status, and what the answer names
    ('{"budget": "day"}', 422, "'tokens', 'calls' or 'cost_usd'"),
    ('{"budget": "day", "reset": false}', 422, "'tokens', 'calls' or 'cost_usd'"),
    ('{"budget": "day", "reset": true, "calls": 5}', 422, "'reset'"),
    ('{"budget": "day", "reset": true, "calls": null}', 422, "'reset'"),
    ('{"budget": "day", "reset": "yes"}', 422, "reset"),
    ('{"budget": "day", "calls": -1}', 422, "calls"),
    ('{"budget": "day", "calls": 1.5}', 422, "calls"),
    ('{"budget": "day", "calls": true}', 422, "calls"),
    ('{"budget": "day", "tokens": 1000000000000001}', 422, "tokens"),
    ('{"budget": "day", "tokens": "5"}', 422, "tokens"),
    ('{"budget": "day", "cost_usd": -0.01}', 422, "cost_usd"),
    ('{"budget": "day", "cost_usd": "5"}', 422, "cost_usd"),
    ('{"budget": "day", "cost_usd": true}', 422, "cost_usd"),
    ('{"budget": "day", "cost_usd": 1e10}', 422, "cost_usd"),
    ('{"budget": "day", "cost_usd": 1e400}', 400, "JSON"),
    ('{"budget": "day", "cost_usd": NaN}', 400, "JSON"),
    ('{"budget": "day", "calls": 1, "moon": 1}', 422, "moon"),
    ('{"budget": "week", "calls": 1}', 422, "budget"),
    ('{"budget": "conversation", "name": "never", "calls": 1}', 404, "never"),
    ('{"budget": "conversation", "name": "deleted", "calls": 1}', 410, "deleted"),
    ('{"budget": "user", "name": " ", "calls": 1}', 422, "name"),
]


async def test_a_limit_that_makes_no_sense_is_refused_for_administrators_too_and_changes_nothing() -> None:
    bus = MemoryBus()
    headers = {**ADMIN, "content-type": "application/json"}
    async with app_client(create_app(bus, access=ACCESS)) as client:
        await client.post("/api/sdk/session/create", json={"session_id": "deleted"}, headers=ADMIN)
        await client.delete("/api/sdk/session/deleted", headers=ADMIN)
        await put(client, ADMIN, budget="day", calls=7)
        before = run_sync(bus, read_limits)
        answers = [await client.put("/api/budgets", content=body, headers=headers) for body, _, _ in SENSELESS]
    after = run_sync(bus, read_limits)
    await bus.aclose()

    for answer, (body, status, named) in zip(answers, SENSELESS, strict=True):
        assert (answer.status_code, named in answer.json()["detail"]) == (status, True), (body, answer.text)
    assert after == before


async def test_a_limit_of_zero_is_used_up_and_the_smallest_price_has_a_finite_share() -> None:
    bus = MemoryBus()
    ledger, call = usage_topic("all"), CallFacts("run-1", "general", "m", "c", "run-1", day_of(datetime.now(UTC)))
    bus.call(Append(records=(spend_record(ledger, call, Amount(calls=1, cost_usd=Decimal(10**9)), None),)))
    async with app_client(create_app(bus, access=ACCESS)) as client:
        nothing = (await put(client, ADMIN, budget="user", name="user:ann", calls=0)).json()
        least = await put(client, ADMIN, budget="day", cost_usd=5e-324)
    await bus.aclose()

    assert nothing["share"] == 1
    assert least.json()["share"] == SHARE_MAX


async def test_the_limit_of_a_deleted_conversation_can_be_reset() -> None:
    bus = MemoryBus()
    gone = BudgetName("conversation", "gone")
    bus.call(Append(records=(limit_record(gone, Limit(calls=9), "user:ann"),)))
    async with app_client(create_app(bus, access=ACCESS)) as client:
        answer = await put(client, ADMIN, budget="conversation", name="gone", reset=True)
    limits = run_sync(bus, read_limits)
    await bus.aclose()

    assert (answer.status_code, dict(limits.set)) == (200, {})


async def test_a_limit_is_refused_if_others_set_theirs_before_every_attempt() -> None:
    class OthersAreQuicker(EngineWrapper):
        def answer(self, operation: Operation[Any]) -> Any:
            if isinstance(operation, Append):
                other = limit_record(BudgetName("day"), Limit(calls=99), "user:bob")
                self.inner.call(Append(records=(other,)))
            return self.inner.call(operation)

    bus = MemoryBus()
    async with app_client(create_app(OthersAreQuicker(bus), access=ACCESS)) as client:
        refused = await put(client, ADMIN, budget="user", name="user:ann", calls=9)
    limits = run_sync(bus, read_limits)
    await bus.aclose()

    assert (refused.status_code, refused.json()["code"]) == (409, "refused")
    assert list(limits.set) == [BudgetName("day")]


async def test_the_usage_of_others_is_for_administrators_and_bad_fields_are_refused() -> None:
    bus = MemoryBus()
    ann = await create_key_holder(bus, "user:ann")
    async with app_client(create_app(bus, access=ACCESS)) as client:
        foreign = await client.get("/api/usage", params={"user": "user:bob"}, headers=ann.headers)
        unknown = await client.get("/api/usage", params={"by": "moon"}, headers=ann.headers)
        days = await client.get(
            "/api/usage", params={"since": "2026-11-17", "until": "2026-11-01"}, headers=ann.headers
        )
    await bus.aclose()

    assert (foreign.status_code, unknown.json()["code"], days.json()["code"]) == (403, "bad_by", "bad_days")
