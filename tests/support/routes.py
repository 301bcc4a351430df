"""Every route of a gateway and its answers per kind of user. A test fails if a route is missing here."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from fastapi import FastAPI

from magent2.gateway.openai_api.ids import ResponseId

Right: TypeAlias = Literal["open", "admin", "own", "all"]

UNKNOWN = ("unknown_conversation", "unknown_session", "conversation_not_found")
CONVERSATION = "{conversation}"
NO_RESPONSE = ResponseId("never-created", "never-sent", 1)


@dataclass(frozen=True, slots=True)
class Row:
    """`own` is the answer to users with access. `foreign` is the answer to others about a conversation.

    `path`, `params` and `body` say `{conversation}` where a request names one.
    """

    right: Right
    own: int = 200
    foreign: int = 404
    path: str | None = None
    params: dict[str, str] = field(default_factory=dict)
    body: dict[str, Any] | None = None


def own(own: int = 200, **more: Any) -> Row:
    return Row("own", own, **more)


OPEN, ALL = Row("open"), Row("all")

TABLE: dict[tuple[str, str], Row] = {
    ("GET", "/"): OPEN,
    ("HEAD", "/"): OPEN,
    ("GET", "/page/{name}"): Row("open", path="/page/page.js"),
    ("HEAD", "/page/{name}"): Row("open", path="/page/page.js"),
    ("GET", "/health"): OPEN,
    ("HEAD", "/health"): OPEN,
    ("GET", "/ready"): OPEN,
    ("HEAD", "/ready"): OPEN,
    ("GET", "/openapi.json"): OPEN,
    ("HEAD", "/openapi.json"): OPEN,
    ("GET", "/metrics"): Row("admin"),
    ("GET", "/api/workers"): Row("admin"),
    ("POST", "/send"): own(
        body={"conversation_id": CONVERSATION, "recipient": "agent:Ada", "content": "more", "id": "m2"}
    ),
    ("GET", "/stream/{conversation_id}"): own(),
    ("GET", "/api/me"): ALL,
    ("GET", "/api/agents"): ALL,
    ("GET", "/api/scenarios"): ALL,
    ("GET", "/api/tools/list"): ALL,
    ("GET", "/api/tools/config/status"): ALL,
    ("GET", "/api/sdk/sessions"): ALL,
    ("GET", "/api/sdk/sessions/counts"): ALL,
    ("GET", "/api/approvals"): ALL,
    # A stream of many sessions reports a foreign session as unknown; the other sessions continue.
    ("GET", "/api/stream"): own(foreign=200, params={"session": CONVERSATION}),
    ("POST", "/api/sdk/session/create"): own(foreign=409, body={"session_id": CONVERSATION, "overlay": "be brief"}),
    ("POST", "/api/sdk/session/message"): own(
        202, body={"session_id": CONVERSATION, "user_input": "more", "wait": False}
    ),
    ("POST", "/api/orchestrate"): own(body={"session_id": CONVERSATION, "last_user_text": "hello"}),
    ("POST", "/api/sdk/session/set_active_agent"): own(body={"session_id": CONVERSATION, "agent_name": "sales"}),
    ("POST", "/api/tools/execute"): own(403, body={"session_id": CONVERSATION, "tool": "WebSearchTool", "args": {}}),
    ("GET", "/api/sdk/session/{session_id}"): own(),
    ("PATCH", "/api/sdk/session/{session_id}"): own(body={"title": "mine"}),
    ("DELETE", "/api/sdk/session/{session_id}"): own(204),
    ("GET", "/api/sdk/session/{session_id}/events"): own(),
    ("GET", "/api/sdk/session/{session_id}/stream"): own(),
    ("GET", "/api/sdk/session/{session_id}/transcript"): own(),
    ("GET", "/api/sdk/session/{session_id}/usage"): own(),
    ("POST", "/api/sdk/session/{session_id}/stop"): own(202, body={"mode": "now"}),
    ("POST", "/api/sdk/session/{session_id}/steer"): own(202, body={"text": "hurry"}),
    ("GET", "/api/sdk/session/{session_id}/receipts/{receipt_id}"): own(
        404, path="/api/sdk/session/{conversation}/receipts/m1"
    ),
    ("GET", "/api/sdk/session/{session_id}/approvals"): own(),
    ("POST", "/api/sdk/session/{session_id}/approvals/{call_id}"): own(
        404, path="/api/sdk/session/{conversation}/approvals/never", body={"decision": "approve"}
    ),
    ("POST", "/api/sdk/session/{session_id}/retry"): own(404, body={"message_id": "never-sent"}),
    # The message has no answer yet, so there is nothing to replace.
    ("POST", "/api/sdk/session/{session_id}/regenerate"): own(409, body={"client_message_id": "r1"}),
    ("POST", "/api/sdk/session/{session_id}/edit"): own(409, body={"message_id": "never-sent", "text": "hi"}),
    ("GET", "/api/sdk/session/{session_id}/files/{sha256}"): own(
        404, path=f"/api/sdk/session/{CONVERSATION}/files/{'0' * 64}"
    ),
    ("GET", "/api/schedules"): ALL,
    ("POST", "/api/schedules"): own(201, body={"session_id": CONVERSATION, "text": "later", "in": "15m"}),
    ("GET", "/api/schedules/{schedule_id}"): Row("all", 404, path="/api/schedules/unknown"),
    ("DELETE", "/api/schedules/{schedule_id}"): Row("all", 404, path="/api/schedules/unknown"),
    ("POST", "/api/schedules/{schedule_id}/pause"): Row("all", 404, path="/api/schedules/unknown/pause"),
    ("POST", "/api/schedules/{schedule_id}/resume"): Row("all", 404, path="/api/schedules/unknown/resume"),
    ("POST", "/api/schedules/{schedule_id}/run"): Row(
        "all", 404, path="/api/schedules/unknown/run", body={"client_message_id": "k1"}
    ),
    ("GET", "/api/files"): ALL,
    ("POST", "/api/files"): Row("all", 201, params={"name": "a.json"}, body={"a": "file of JSON"}),
    ("GET", "/api/files/{file_id}"): Row("all", 404, path="/api/files/file-unknown"),
    ("GET", "/api/files/{file_id}/content"): Row("all", 404, path="/api/files/file-unknown/content"),
    ("DELETE", "/api/files/{file_id}"): Row("all", 404, path="/api/files/file-unknown"),
    ("GET", "/api/users"): Row("admin"),
    ("POST", "/api/users"): Row("admin", body={"id": "dan", "nametag": "dan"}),
    ("DELETE", "/api/users/{user}"): Row("admin", 404, path="/api/users/nobody"),
    ("GET", "/api/friends"): ALL,
    # Neither ann nor the admin has a nametag yet, so they cannot have friends.
    ("POST", "/api/friends"): Row("all", 404, body={"nametag": "@bob", "action": "request"}),
    ("GET", "/api/swarms"): ALL,
    ("POST", "/api/swarms"): Row("all", 404, body={"nametag": "@desk", "action": "open"}),
    ("GET", "/api/swarms/{nametag}/contacts"): Row("all", 404, path="/api/swarms/desk/contacts"),
    ("GET", "/api/channels"): ALL,
    ("POST", "/api/channels"): Row("admin", 404, body={"name": "launch", "action": "remove"}),
    ("GET", "/api/channels/{name}/messages"): Row("all", 404, path="/api/channels/launch/messages"),
    ("GET", "/api/connectors"): Row("admin"),
    ("POST", "/api/connectors"): Row("admin", body={"id": "out", "kind": "console"}),
    ("DELETE", "/api/connectors/{connector}"): Row("admin", 404, path="/api/connectors/nobody"),
    ("GET", "/api/outbox"): Row("admin"),
    ("POST", "/api/outbox/{connector}/{item}/retry"): Row("admin", 404, path="/api/outbox/out/m-1/retry"),
    ("DELETE", "/api/outbox/{connector}/{item}"): Row("admin", 404, path="/api/outbox/out/m-1"),
    ("GET", "/api/webhooks"): ALL,
    ("POST", "/api/webhooks"): Row("all", 201, body={"url": "https://example.com/hooks"}),
    ("GET", "/api/webhooks/{webhook}"): Row("all", 404, path="/api/webhooks/wh-unknown"),
    ("PATCH", "/api/webhooks/{webhook}"): Row("all", 404, path="/api/webhooks/wh-unknown", body={}),
    ("DELETE", "/api/webhooks/{webhook}"): Row("all", 404, path="/api/webhooks/wh-unknown"),
    ("POST", "/api/webhooks/{webhook}/test"): Row("all", 404, path="/api/webhooks/wh-unknown/test"),
    ("GET", "/api/webhooks/{webhook}/deliveries"): Row("all", 404, path="/api/webhooks/wh-unknown/deliveries"),
    ("POST", "/api/webhooks/{webhook}/deliveries/{delivery}/retry"): Row(
        "all", 404, path="/api/webhooks/wh-unknown/deliveries/evt-1/retry"
    ),
    ("GET", "/api/dead"): Row("admin"),
    ("POST", "/api/dead"): Row("admin", body={"action": "retry", "all": True, "dry_run": True}),
    ("POST", "/api/dead/{agent}/{seq}/retry"): Row("admin", 404, path="/api/dead/Ada/1/retry"),
    ("DELETE", "/api/dead/{agent}/{seq}"): Row("admin", 404, path="/api/dead/Ada/1"),
    ("GET", "/api/usage"): ALL,
    ("GET", "/api/budgets"): own(params={"conversation": CONVERSATION}),
    ("PUT", "/api/budgets"): own(body={"budget": "conversation", "name": CONVERSATION, "calls": 5}),
    ("GET", "/v1/models"): ALL,
    ("GET", "/v1/models/{model}"): Row("all", path="/v1/models/general"),
    ("POST", "/v1/responses"): own(
        body={"model": "general", "input": "more", "conversation": CONVERSATION, "background": True}
    ),
    # An id names the session of a response. `test_openai_responses` asks for a response of another user.
    ("GET", "/v1/responses/{response_id}"): Row("all", 404, path=f"/v1/responses/{NO_RESPONSE}"),
    ("DELETE", "/v1/responses/{response_id}"): Row("all", 404, path=f"/v1/responses/{NO_RESPONSE}"),
    ("POST", "/v1/responses/{response_id}/cancel"): Row("all", 404, path=f"/v1/responses/{NO_RESPONSE}/cancel"),
    ("GET", "/v1/responses/{response_id}/input_items"): Row(
        "all", 404, path=f"/v1/responses/{NO_RESPONSE}/input_items"
    ),
    ("POST", "/v1/chat/completions"): Row(
        "all", body={"model": "general", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    ),
}


# Paths of 0.1.x. Whoever may not use the new path is refused at the old one as well.
MOVED_TABLE: dict[str, Row] = {
    "/conversations": Row("all", 308),
    "/conversations/{rest:path}": Row("all", 308, path=f"/conversations/{CONVERSATION}"),
    "/dead": Row("admin", 308),
    "/dead/{rest:path}": Row("admin", 308, path="/dead/Ada/1"),
    "/agents": Row("admin", 308),
}


def routes_of(app: FastAPI) -> set[tuple[str, str]]:
    """Methods and paths as in the OpenAPI document, those of routers within routers included."""
    return {
        (method, re.sub(r":\w+}", "}", route.path)) for route in _flat(app.routes) for method in route.methods or ()
    }


def redirects_of(app: FastAPI) -> set[str]:
    """Paths that answer every method."""
    return {route.path for route in _flat(app.routes) if route.methods is None}


def _flat(routes: Iterable[Any]) -> Iterable[Any]:
    for route in routes:
        inner = getattr(route, "effective_route_contexts", None)
        if inner is None:
            yield route
        else:
            yield from inner()


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    params: dict[str, str]
    body: dict[str, Any] | None

    @classmethod
    def of(cls, key: tuple[str, str], conversation: str) -> Request:
        """The route's request about a conversation."""
        method, route = key
        row = TABLE[key]
        path = row.path or re.sub(r"\{(conversation|session)_id\}", CONVERSATION, route)
        return cls(method, *(_filled(item, conversation) for item in (path, row.params, row.body)))


def _filled(value: Any, conversation: str) -> Any:
    if isinstance(value, dict):
        return {name: _filled(item, conversation) for name, item in value.items()}
    return value.replace(CONVERSATION, conversation) if isinstance(value, str) else value
