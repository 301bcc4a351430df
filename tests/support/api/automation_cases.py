"""Conformance cases of schedules, webhooks, usage and budgets, and what they need."""

from __future__ import annotations

from typing import Any

import httpx2

from magent2.bus.interface import Engine
from magent2.bus.operations import Append
from magent2.connectors.outbox import state_record
from magent2.directory.webhooks import WEBHOOKS_PER_OWNER_MAX
from magent2.models.address import webhook_topic
from magent2.models.api.schedules import SCHEDULE_ID_MAX_CHARS
from tests.support.api.cases import JSON, TOO_LONG, Case, Route
from tests.support.waiting import eventually

PUT_SCHEDULE: Route = ("POST", "/api/schedules")
SCHEDULES: Route = ("GET", "/api/schedules")
SCHEDULE: Route = ("GET", "/api/schedules/{schedule_id}")
DROP_SCHEDULE: Route = ("DELETE", "/api/schedules/{schedule_id}")
PAUSE: Route = ("POST", "/api/schedules/{schedule_id}/pause")
RESUME: Route = ("POST", "/api/schedules/{schedule_id}/resume")
RUN: Route = ("POST", "/api/schedules/{schedule_id}/run")
PUT_WEBHOOK: Route = ("POST", "/api/webhooks")
WEBHOOKS: Route = ("GET", "/api/webhooks")
WEBHOOK: Route = ("GET", "/api/webhooks/{webhook}")
CHANGE_WEBHOOK: Route = ("PATCH", "/api/webhooks/{webhook}")
DROP_WEBHOOK: Route = ("DELETE", "/api/webhooks/{webhook}")
TEST: Route = ("POST", "/api/webhooks/{webhook}/test")
DELIVERIES: Route = ("GET", "/api/webhooks/{webhook}/deliveries")
RESEND: Route = ("POST", "/api/webhooks/{webhook}/deliveries/{delivery}/retry")
REPORT: Route = ("GET", "/api/usage")
BUDGETS: Route = ("GET", "/api/budgets")
PUT_BUDGET: Route = ("PUT", "/api/budgets")

OF_SCHEDULE = (SCHEDULE, DROP_SCHEDULE, PAUSE, RESUME, RUN)
OF_WEBHOOK = (WEBHOOK, DROP_WEBHOOK, TEST, DELIVERIES, RESEND)
YEARLY: dict[str, Any] = {"text": "happy new year", "cron": "0 0 1 1 *"}
PLANNED: dict[str, Any] = {**YEARLY, "session_id": "planned"}
URL = "https://example.com/hooks"  # nothing is sent to it: these tests run no relay
WEBHOOK_ID_TOO_LONG = "x" * 81
NO_CALLS: dict[str, Any] = {"budget": "conversation", "name": "broke", "calls": 0}


def automate(bus: Engine, ann: httpx2.Client, bob: httpx2.Client, admin: httpx2.Client) -> dict[str, str]:
    """Create schedules and webhooks in every state, and a run that waits for more budget. Return the generated ids.

    Session `held` must exist, with a run that does not end.
    """
    _schedules(ann, bob)
    _wait_for_budget(ann)
    return _webhooks(bus, ann, bob, admin)


def _schedules(ann: httpx2.Client, bob: httpx2.Client) -> None:
    for name in ("planned", "left"):
        _made(ann, "/api/sdk/session/create", 200, session_id=name)
    for name in ("yearly", "paused", "doomed"):
        _made(ann, "/api/schedules", 201, **PLANNED, schedule_id=name)
    _made(ann, "/api/schedules/paused/pause", 200)
    _made(ann, "/api/schedules/yearly/run", 202, client_message_id="k1")
    _made(ann, "/api/schedules", 201, **YEARLY, session_id="held", when_busy="reject", schedule_id="busy")
    _made(ann, "/api/schedules", 201, **YEARLY, session_id="left", schedule_id="ended")
    assert ann.delete("/api/sdk/session/left").status_code == 204
    eventually(lambda: ann.get("/api/schedules/ended").json()["status"] == "ended")
    _made(bob, "/api/schedules", 201, **YEARLY, session_id="bobs", schedule_id="of-bob")


def _webhooks(bus: Engine, ann: httpx2.Client, bob: httpx2.Client, admin: httpx2.Client) -> dict[str, str]:
    hook, doomed_hook = (_made(ann, "/api/webhooks", 201, url=URL, events=["run.failed"])["id"] for _ in range(2))
    bobs_hook = _made(bob, "/api/webhooks", 201, url=URL)["id"]
    for _ in range(WEBHOOKS_PER_OWNER_MAX):
        _made(admin, "/api/webhooks", 201, url=URL, scope="own")
    dead, waiting = (_made(ann, f"/api/webhooks/{hook}/test", 202)["id"] for _ in range(2))
    bus.call(Append(records=(state_record(dead, webhook_topic(hook), "dead", reason="410 Gone"),)))
    return {
        "hook": hook,
        "doomed_hook": doomed_hook,
        "bobs_hook": bobs_hook,
        "dead_delivery": dead,
        "waiting_delivery": waiting,
    }


def _wait_for_budget(ann: httpx2.Client) -> None:
    _made(ann, "/api/sdk/session/create", 200, session_id="broke")
    assert ann.put("/api/budgets", json=NO_CALLS).status_code == 200
    _made(ann, "/api/sdk/session/message", 202, session_id="broke", user_input="hello", wait=False)
    eventually(lambda: ann.get("/api/budgets").json()["waiting"])


def _made(client: httpx2.Client, path: str, status: int, **body: Any) -> dict[str, Any]:
    answer = client.post(path, json=body or None)
    assert answer.status_code == status, answer.text
    made: dict[str, Any] = answer.json()
    return made


def _at(route: Route, name: str, delivery: str = "evt-1") -> str:
    path = route[1].replace("{schedule_id}", name).replace("{webhook}", name)
    return path.replace("{delivery}", delivery)


# A body with the wrong shape for every route that takes one.
_MISSHAPEN: dict[Route, dict[str, Any]] = {
    PUT_SCHEDULE: {**PLANNED, "missed": "never"},
    RUN: {"client_message_id": ""},
    PUT_WEBHOOK: {"url": URL, "events": ["run.began"]},
    CHANGE_WEBHOOK: {"events": ["run.began"]},
    PUT_BUDGET: {**NO_CALLS, "calls": -1},
}


def _of_bodies() -> list[Case]:
    padded = b'{"pad": "' + b"x" * 4000 + b'"}'
    return [
        case
        for route, bad in _MISSHAPEN.items()
        for at in (_at(route, "yearly"),)
        for case in (
            Case(route, 400, "bad_json", at, content=b"{", headers=JSON),
            Case(route, 413, "too_large", at, content=padded, headers=JSON, hasty=True),
            Case(route, 415, "not_json", at, content=b"a=b"),
            Case(route, 422, "bad_envelope", at, body=bad),
        )
    ]


def _of_ids() -> list[Case]:
    found = []
    for route in OF_SCHEDULE:
        found += [Case(route, 404, "unknown_schedule", _at(route, name)) for name in ("never", "of-bob")]
        found.append(Case(route, 422, "bad_parameter", _at(route, "x" * (SCHEDULE_ID_MAX_CHARS + 1))))
    for route in OF_WEBHOOK:
        found += [Case(route, 404, "unknown_entity", _at(route, name)) for name in ("never", "{bobs_hook}")]
        found.append(Case(route, 422, "bad_parameter", _at(route, WEBHOOK_ID_TOO_LONG)))
    for name in ("never", "{bobs_hook}"):
        found.append(Case(CHANGE_WEBHOOK, 404, "unknown_entity", _at(CHANGE_WEBHOOK, name), body={}))
    return found


def _of_sessions() -> list[Case]:
    return [
        case
        for name, status, code in (
            ("never", 404, "unknown_session"),
            ("{bobs}", 404, "unknown_session"),
            ("{gone}", 410, "conversation_deleted"),
            (" outer ", 422, "bad_address"),
        )
        for case in (
            Case(PUT_SCHEDULE, status, code, body={**YEARLY, "session_id": name}),
            Case(BUDGETS, status, code, params={"conversation": name}),
            Case(PUT_BUDGET, status, code, body={**NO_CALLS, "name": name}),
        )
    ]


AUTOMATION_SUCCESSES = [
    Case(PUT_SCHEDULE, 201, body={**PLANNED, "schedule_id": "new", "timezone": "Europe/Berlin", "max_runs": 3}),
    Case(PUT_SCHEDULE, 201, body={**YEARLY, "agent": "general"}),
    Case(PUT_SCHEDULE, 201, body={"session_id": "planned", "text": "later", "in": "30d"}),
    Case(SCHEDULES, 200),
    Case(SCHEDULES, 200, params={"limit": 1}),
    *(Case(SCHEDULE, 200, at=_at(SCHEDULE, name)) for name in ("yearly", "paused", "ended")),
    Case(PAUSE, 200, at=_at(PAUSE, "paused")),
    Case(RESUME, 200, at=_at(RESUME, "paused")),
    Case(RUN, 202, at=_at(RUN, "yearly")),
    Case(RUN, 202, at=_at(RUN, "yearly"), body={"client_message_id": "k1"}),
    Case(DROP_SCHEDULE, 204, at=_at(DROP_SCHEDULE, "doomed")),
    Case(PUT_WEBHOOK, 201, body={"url": URL, "events": ["run.failed"]}),
    Case(PUT_WEBHOOK, 201, body={"url": URL, "scope": "deployment", "events": ["run.failed"]}, who="admin"),
    Case(WEBHOOKS, 200),
    Case(WEBHOOK, 200, at=_at(WEBHOOK, "{hook}")),
    Case(CHANGE_WEBHOOK, 200, at=_at(CHANGE_WEBHOOK, "{hook}"), body={"url": URL, "rotate_secret": True}),
    Case(TEST, 202, at=_at(TEST, "{hook}")),
    Case(DELIVERIES, 200, at=_at(DELIVERIES, "{hook}")),
    Case(RESEND, 200, at=_at(RESEND, "{hook}", "{dead_delivery}")),
    Case(DROP_WEBHOOK, 204, at=_at(DROP_WEBHOOK, "{doomed_hook}")),
    Case(REPORT, 200, params={"by": "user,agent,model,conversation,day"}),
    Case(REPORT, 200, who="admin"),
    Case(BUDGETS, 200, params={"conversation": "broke"}),
    Case(BUDGETS, 200, who="admin"),
    Case(PUT_BUDGET, 200, body={"budget": "conversation", "name": "planned", "calls": 1000}),
    Case(PUT_BUDGET, 200, body={"budget": "day", "cost_usd": 1000}, who="admin"),
]

AUTOMATION_REFUSALS = [
    *_of_bodies(),
    *_of_ids(),
    *_of_sessions(),
    Case(PUT_SCHEDULE, 409, "id_conflict", body={**PLANNED, "text": "other", "schedule_id": "yearly"}),
    Case(PUT_SCHEDULE, 409, "name_taken", body={**PLANNED, "schedule_id": "of-bob"}),
    Case(PUT_SCHEDULE, 422, "invalid", body={**PLANNED, "in": "5m"}),
    Case(PUT_SCHEDULE, 422, "blank", body={**PLANNED, "text": " "}),
    Case(PUT_SCHEDULE, 422, "too_long", body={**PLANNED, "text": "x" * 21}, hasty=True),
    Case(PUT_SCHEDULE, 422, "no_recipient", body=YEARLY),
    Case(PUT_SCHEDULE, 422, "unknown_agent", body={**PLANNED, "agent": "nobody"}),
    Case(SCHEDULES, 422, "bad_parameter", params={"limit": 0}),
    Case(SCHEDULES, 422, "bad_cursor", params={"before": "x"}),
    Case(PAUSE, 409, "schedule_ended", at=_at(PAUSE, "ended")),
    Case(RESUME, 409, "schedule_ended", at=_at(RESUME, "ended")),
    Case(RUN, 409, "busy", at=_at(RUN, "busy")),
    Case(RUN, 410, "conversation_deleted", at=_at(RUN, "ended")),
    Case(PUT_WEBHOOK, 409, "webhooks_full", body={"url": URL, "scope": "own"}, who="admin"),
    Case(PUT_WEBHOOK, 422, "invalid", body={"url": "https://127.0.0.1/"}),
    Case(PUT_WEBHOOK, 403, "admin_only", body={"url": URL, "scope": "deployment"}),
    Case(WEBHOOKS, 422, "bad_parameter", params={"owner": TOO_LONG}),
    Case(CHANGE_WEBHOOK, 422, "invalid", _at(CHANGE_WEBHOOK, "{hook}"), body={"url": "https://127.0.0.1/"}),
    Case(
        CHANGE_WEBHOOK,
        422,
        "two_secrets",
        _at(CHANGE_WEBHOOK, "{hook}"),
        body={"secret": "of-sixteen-chars", "rotate_secret": True},  # pragma: allowlist secret
    ),
    Case(RESEND, 404, "unknown_entity", at=_at(RESEND, "{hook}", "evt-never")),
    Case(RESEND, 422, "invalid", at=_at(RESEND, "{hook}", "{waiting_delivery}")),
    Case(REPORT, 403, "admin_only", params={"user": "user:bob"}),
    Case(REPORT, 422, "bad_by", params={"by": "moon"}),
    Case(REPORT, 422, "bad_days", params={"since": "2026-02-01", "until": "2026-01-01"}),
    Case(REPORT, 422, "bad_parameter", params={"since": "yesterday"}),
    Case(BUDGETS, 403, "admin_only", params={"user": "user:bob"}),
    Case(BUDGETS, 422, "bad_parameter", params={"conversation": TOO_LONG}),
    Case(PUT_BUDGET, 403, "admin_only", body={"budget": "user_day", "name": "user:ann", "calls": 9}),
    Case(PUT_BUDGET, 404, "unknown_run", body={"budget": "run", "name": "run-never", "calls": 9}),
    Case(PUT_BUDGET, 422, "bad_name", body={"budget": "day", "name": "monday", "calls": 9}),
    Case(PUT_BUDGET, 422, "no_limit", body={"budget": "conversation", "name": "planned"}),
]

AUTOMATION_ELSEWHERE = {
    (CHANGE_WEBHOOK, 403),  # of a webhook that an administrator registered: tests/unit/gateway/test_webhooks.py
    (CHANGE_WEBHOOK, 409),  # others change it all the time: tests/unit/gateway/test_webhooks.py
    (RESEND, 409),  # another decision just before: tests/unit/gateway/test_webhooks.py
    (PUT_BUDGET, 409),  # others set limits all the time: tests/integration/test_api_budgets.py
}
