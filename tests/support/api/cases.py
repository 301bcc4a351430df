"""Conformance cases of `/api`: a request for every answer that each route can give, on every engine.

`{name}` in a request is replaced by the value of that name in the case data: sessions in every state, message ids.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from magent2.models.address import NAME_MAX_CHARS
from magent2.models.files import FILE_ID_MAX_CHARS

Who: TypeAlias = Literal["ann", "admin"]
Route: TypeAlias = tuple[str, str]

TOO_LONG = "x" * (NAME_MAX_CHARS + 1)
HOLD = "use hold {}"  # the demo model calls a tool that waits
JSON = {"content-type": "application/json"}
FILE_CONTENT = b"what is in the file"
FILE_KEY = {"idempotency-key": "f1"}  # of the upload of `file`


@dataclass(frozen=True, slots=True)
class Case:
    """A request and its expected answer. `code` is the error code; `at` is a path other than the route's own."""

    route: Route
    status: int
    code: str | None = None
    at: str | None = None
    params: dict[str, Any] = field(default_factory=dict)
    body: Any = None
    content: bytes | None = None
    headers: dict[str, str] = field(default_factory=dict)
    who: Who = "ann"
    hasty: bool = False

    @property
    def label(self) -> str:
        return " ".join([*self.route, str(self.status), self.code or ""])


@dataclass(frozen=True, slots=True)
class CaseData:
    """The values that requests refer to by name."""

    names: dict[str, str]

    def fill(self, value: Any) -> Any:
        if isinstance(value, dict):
            return {name: self.fill(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        if isinstance(value, str):
            for name, text in self.names.items():
                value = value.replace(f"{{{name}}}", text)
        return value


CREATE: Route = ("POST", "/api/sdk/session/create")
MESSAGE: Route = ("POST", "/api/sdk/session/message")
SESSIONS: Route = ("GET", "/api/sdk/sessions")
COUNTS: Route = ("GET", "/api/sdk/sessions/counts")
SHOW: Route = ("GET", "/api/sdk/session/{session_id}")
RENAME: Route = ("PATCH", "/api/sdk/session/{session_id}")
REMOVE: Route = ("DELETE", "/api/sdk/session/{session_id}")
EVENTS: Route = ("GET", "/api/sdk/session/{session_id}/events")
STREAM: Route = ("GET", "/api/sdk/session/{session_id}/stream")
TRANSCRIPT: Route = ("GET", "/api/sdk/session/{session_id}/transcript")
USAGE: Route = ("GET", "/api/sdk/session/{session_id}/usage")
STOP: Route = ("POST", "/api/sdk/session/{session_id}/stop")
RETRY: Route = ("POST", "/api/sdk/session/{session_id}/retry")
REGENERATE: Route = ("POST", "/api/sdk/session/{session_id}/regenerate")
EDIT: Route = ("POST", "/api/sdk/session/{session_id}/edit")
STEER: Route = ("POST", "/api/sdk/session/{session_id}/steer")
RECEIPT: Route = ("GET", "/api/sdk/session/{session_id}/receipts/{receipt_id}")
APPROVALS: Route = ("GET", "/api/sdk/session/{session_id}/approvals")
DECIDE: Route = ("POST", "/api/sdk/session/{session_id}/approvals/{call_id}")
PENDING: Route = ("GET", "/api/approvals")
MANY: Route = ("GET", "/api/stream")
ROUTE: Route = ("POST", "/api/orchestrate")
SWITCH: Route = ("POST", "/api/sdk/session/set_active_agent")
ME: Route = ("GET", "/api/me")
AGENTS: Route = ("GET", "/api/agents")
SCENARIOS: Route = ("GET", "/api/scenarios")
TOOLS: Route = ("GET", "/api/tools/list")
STATUS: Route = ("GET", "/api/tools/config/status")
EXECUTE: Route = ("POST", "/api/tools/execute")
WORKERS: Route = ("GET", "/api/workers")
DEAD: Route = ("GET", "/api/dead")
BULK: Route = ("POST", "/api/dead")
REVIVE: Route = ("POST", "/api/dead/{agent}/{seq}/retry")
DROP: Route = ("DELETE", "/api/dead/{agent}/{seq}")
UPLOAD: Route = ("POST", "/api/files")
UPLOADS: Route = ("GET", "/api/files")
FILE: Route = ("GET", "/api/files/{file_id}")
CONTENT: Route = ("GET", "/api/files/{file_id}/content")
DISCARD: Route = ("DELETE", "/api/files/{file_id}")

BY_PATH = (SHOW, RENAME, REMOVE, EVENTS, STREAM, TRANSCRIPT, USAGE, STOP, RETRY, REGENERATE, EDIT, STEER, RECEIPT,
           APPROVALS, DECIDE)  # fmt: skip
BY_BODY = (MESSAGE, ROUTE, SWITCH, EXECUTE)
# A valid body for every route that takes one.
BODIES: dict[Route, dict[str, Any]] = {
    CREATE: {"session_id": "{quiet}"},
    MESSAGE: {"session_id": "{quiet}", "user_input": "hello"},
    RENAME: {"title": "x"},
    STOP: {"mode": "now"},
    RETRY: {"message_id": "m"},
    REGENERATE: {"client_message_id": "r1"},
    EDIT: {"message_id": "m", "text": "hello again"},
    STEER: {"text": "in Celsius"},
    DECIDE: {"decision": "approve"},
    ROUTE: {"session_id": "{quiet}"},
    SWITCH: {"session_id": "{quiet}", "agent_name": "general"},
    EXECUTE: {"session_id": "{quiet}", "tool": "weather", "args": {"city": "Oslo"}},
}
# The answer of each route to a body with the wrong shape.
MISSHAPEN: dict[Route, dict[str, Any]] = {
    CREATE: {"session_id": "{quiet}", "overlay": 7},
    MESSAGE: {"session_id": "{quiet}"},
    RENAME: {"title": "x" * 201},
    STOP: {"mode": "soon"},
    RETRY: {"message_id": ""},
    REGENERATE: {"client_message_id": ""},
    EDIT: {"message_id": "m"},
    STEER: {"text": ""},
    DECIDE: {"decision": "perhaps"},
    ROUTE: {"session_id": 7},
    SWITCH: {"session_id": "{quiet}"},
    EXECUTE: {"session_id": "{quiet}", "tool": "weather", "args": []},
}


def _path(route: Route, session: str) -> str:
    return route[1].replace("{session_id}", session).replace("{receipt_id}", "m").replace("{call_id}", "c")


def _about(route: Route, session: str, status: int, code: str) -> Case:
    """A request about a session that does not exist."""
    body = BODIES.get(route)
    if route in BY_PATH:
        return Case(route, status, code, at=_path(route, session), body=body)
    return Case(route, status, code, body={**(body or {}), "session_id": session})


def _of_sessions() -> list[Case]:
    found = []
    for route in (*BY_PATH, *BY_BODY):
        found.append(_about(route, "never", 404, "unknown_session"))
        found.append(_about(route, "{bobs}", 404, "unknown_session"))
        found.append(_about(route, "{gone}", 410, "conversation_deleted"))
    return found + [_about(route, TOO_LONG, 422, "bad_parameter") for route in BY_PATH]


def _of_bodies() -> list[Case]:
    found = []
    for route, body in BODIES.items():
        at = _path(route, "{quiet}")
        padded = b'{"pad": "' + b"x" * 4000 + b'"}'
        found += [
            Case(route, 400, "bad_json", at, content=b"{", headers=JSON),
            Case(route, 413, "too_large", at, content=padded, headers=JSON, hasty=True),
            Case(route, 415, "not_json", at, content=b"session_id=s1"),
            Case(route, 422, "bad_envelope", at, body=[1]),
            Case(route, 422, "bad_envelope", at, body=MISSHAPEN[route]),
        ]
        if "session_id" in body:
            found.append(Case(route, 422, "bad_address", body={**body, "session_id": " outer "}))
    return found


def _of_cursors() -> list[Case]:
    found = []
    for route in (EVENTS, TRANSCRIPT, STREAM):
        at = route[1].replace("{session_id}", "{trimmed}")
        found.append(Case(route, 422, "bad_cursor", at, {"since": "x"}))
        found.append(Case(route, 422, "bad_cursor", at, {"since": 2**53 + 1}))
        if route != STREAM:
            found.append(Case(route, 410, "cursor_gone", at, {"since": 1}))
            found.append(Case(route, 422, "bad_cursor", at, {"since": 999}))
            found.append(Case(route, 422, "bad_parameter", at, {"limit": 0}))
    return found


def _of_files() -> list[Case]:
    found = []
    for route in (FILE, CONTENT, DISCARD):
        for file_id, status, code in (
            ("never", 404, "unknown_file"),
            ("{bobs_file}", 404, "unknown_file"),
            ("x" * (FILE_ID_MAX_CHARS + 1), 422, "bad_parameter"),
        ):
            found.append(Case(route, status, code, route[1].replace("{file_id}", file_id)))
    return found


SUCCESSES = [
    Case(CREATE, 200, body={"session_id": "{fresh}", "agent_name": "sales", "overlay": "Be kind."}),
    Case(CREATE, 200, body={}),
    Case(MESSAGE, 200, body={"session_id": "{mine}", "user_input": "weather in Oslo"}),
    Case(MESSAGE, 202, body={"session_id": "{idle}", "user_input": "later", "wait": False}),
    Case(MESSAGE, 202, body={"session_id": "{held}", "user_input": HOLD, "client_message_id": "k"}, hasty=True),
    Case(SESSIONS, 200, params={"q": "{mine}"}),
    Case(COUNTS, 200),
    Case(PENDING, 200),
    Case(SHOW, 200, at="/api/sdk/session/{mine}"),
    Case(RENAME, 200, at="/api/sdk/session/{mine}", body={"title": "Lamps"}),
    Case(REMOVE, 204, at="/api/sdk/session/{doomed}"),
    Case(EVENTS, 200, at="/api/sdk/session/{mine}/events", params={"since": 1, "limit": 3}),
    Case(STREAM, 200, at="/api/sdk/session/{mine}/stream", params={"since": 1, "max_events": 3}),
    Case(STREAM, 200, at="/api/sdk/session/{trimmed}/stream", params={"since": 1, "max_events": 1}),
    Case(TRANSCRIPT, 200, at="/api/sdk/session/{mine}/transcript"),
    Case(USAGE, 200, at="/api/sdk/session/{mine}/usage"),
    Case(STOP, 202, at="/api/sdk/session/{idle}/stop", body={"mode": "after_turn"}),
    Case(STOP, 202, at="/api/sdk/session/{idle}/stop"),
    Case(RETRY, 202, at="/api/sdk/session/{stopped}/retry", body={"message_id": "{stopped_message}"}),
    Case(REGENERATE, 202, at="/api/sdk/session/{redone}/regenerate"),
    Case(EDIT, 202, at="/api/sdk/session/{reworded}/edit", body={"message_id": "{reworded_message}", "text": "hi"}),
    Case(STEER, 202, at="/api/sdk/session/{idle}/steer", body={"text": "in Celsius", "client_message_id": "s1"}),
    Case(RECEIPT, 200, at="/api/sdk/session/{mine}/receipts/{answered_message}"),
    Case(APPROVALS, 200, at="/api/sdk/session/{asking}/approvals"),
    Case(DECIDE, 200, at="/api/sdk/session/{asking}/approvals/{asked_call}", body={"decision": "approve"}),
    Case(MANY, 200, params={"session": ["{mine}:0", "never"], "max_events": 4}),
    Case(ROUTE, 200, body={"scenario_id": "default", "last_user_text": "the printer is broken"}),
    Case(ROUTE, 200, body={"session_id": "{idle}", "last_user_text": "the printer is broken"}),
    Case(SWITCH, 200, body={"session_id": "{idle}", "agent_name": "sales"}),
    Case(ME, 200),
    Case(ME, 200, who="admin"),
    Case(AGENTS, 200),
    Case(AGENTS, 200, params={"scenario_id": "ruins"}),
    Case(SCENARIOS, 200),
    Case(TOOLS, 200),
    Case(STATUS, 200),
    Case(EXECUTE, 200, body={"session_id": "{quiet}", "tool": "weather", "args": {"city": "Oslo"}}),
    Case(EXECUTE, 200, body={"session_id": "{quiet}", "tool": "trip"}),
    Case(EXECUTE, 202, body={"session_id": "{held}", "tool": "weather", "args": {"city": "Oslo"}}, hasty=True),
    Case(WORKERS, 200, who="admin"),
    Case(DEAD, 200, params={"agent": "broken"}, who="admin"),
    Case(BULK, 200, body={"action": "retry", "agent": "broken", "dry_run": True}, who="admin"),
    Case(REVIVE, 200, at="/api/dead/broken/1/retry", who="admin"),
    Case(DROP, 204, at="/api/dead/broken/2", who="admin"),
    Case(UPLOAD, 201, params={"name": "a.txt"}, content=FILE_CONTENT),
    Case(UPLOADS, 200),
    Case(FILE, 200, at="/api/files/{file}"),
    Case(CONTENT, 200, at="/api/files/{file}/content"),
    Case(DISCARD, 204, at="/api/files/{doomed_file}"),
]  # fmt: skip

REFUSALS = [
    *_of_sessions(),
    *_of_bodies(),
    *_of_cursors(),
    *_of_files(),
    Case(UPLOAD, 409, "id_conflict", params={"name": "a.txt"}, content=b"other", headers=FILE_KEY),
    Case(UPLOAD, 413, "file_too_large", params={"name": "a.txt"}, content=FILE_CONTENT * 100, hasty=True),
    Case(UPLOAD, 415, "unsupported_file", params={"name": "a.txt"}, content=b"MZ\0"),
    Case(UPLOAD, 422, "invalid", content=FILE_CONTENT),
    Case(UPLOAD, 422, "invalid", params={"name": "../a.txt"}, content=FILE_CONTENT),
    Case(UPLOADS, 422, "bad_parameter", params={"limit": 0}),
    Case(UPLOADS, 422, "bad_cursor", params={"before": "x"}),
    Case(CREATE, 409, "name_taken", body={"session_id": "general"}),
    Case(CREATE, 409, "name_taken", body={"session_id": "{bobs}"}),
    Case(CREATE, 410, "conversation_deleted", body={"session_id": "{gone}"}),
    Case(CREATE, 422, "unknown_scenario", body={"session_id": "new", "scenario_id": "nowhere"}),
    Case(CREATE, 422, "unknown_agent", body={"session_id": "new", "agent_name": "nobody"}),
    Case(CREATE, 422, "bad_envelope", body={"session_id": TOO_LONG}),
    Case(MESSAGE, 422, "blank", body={"session_id": "{quiet}", "user_input": " \n"}),
    Case(MESSAGE, 422, "too_long", body={"session_id": "{quiet}", "user_input": "x" * 21}, hasty=True),
    Case(MESSAGE, 409, "id_conflict", body={"session_id": "{mine}", "user_input": "other", "client_message_id": "m1"}),
    Case(MESSAGE, 409, "run_stopped", body={"session_id": "{ended}", "user_input": HOLD, "client_message_id": "m1"}),
    Case(MESSAGE, 502, "run_failed", body={"session_id": "{failed}", "user_input": "hello", "client_message_id": "m1"}),
    Case(SESSIONS, 422, "bad_parameter", params={"limit": 0}),
    Case(SESSIONS, 422, "bad_cursor", params={"before": "x"}),
    Case(PENDING, 422, "bad_cursor", params={"before": "x"}),
    Case(STREAM, 400, "bad_cursor", at="/api/sdk/session/{mine}/stream", headers={"last-event-id": "x"}),
    Case(STREAM, 422, "bad_parameter", at="/api/sdk/session/{mine}/stream", params={"max_events": 0}),
    Case(STOP, 409, "no_active_agent", at="/api/sdk/session/{unheard}/stop"),
    Case(RETRY, 404, "unknown_message", at="/api/sdk/session/{mine}/retry", body={"message_id": "never"}),
    Case(RETRY, 409, "not_retryable", at="/api/sdk/session/{mine}/retry", body={"message_id": "{answered_message}"}),
    Case(RETRY, 409, "in_progress", at="/api/sdk/session/{held}/retry", body={"message_id": "{held_message}"}),
    Case(REGENERATE, 409, "busy", at="/api/sdk/session/{held}/regenerate"),
    Case(REGENERATE, 409, "not_supersedable", at="/api/sdk/session/{unheard}/regenerate"),
    Case(EDIT, 409, "not_supersedable", at="/api/sdk/session/{mine}/edit", body={"message_id": "never", "text": "x"}),
    Case(EDIT, 422, "blank", at="/api/sdk/session/{mine}/edit", body={"message_id": "m", "text": " "}),
    Case(MESSAGE, 409, "busy", body={"session_id": "{held}", "user_input": "hello", "when_busy": "reject"}),
    Case(STEER, 422, "blank", at="/api/sdk/session/{quiet}/steer", body={"text": " "}),
    Case(STEER, 422, "bad_address", at="/api/sdk/session/{quiet}/steer", body={"text": "x", "target": " a "}),
    Case(STEER, 409, "no_active_run", at="/api/sdk/session/{quiet}/steer", body={"text": "x", "require_active": True}),
    Case(RECEIPT, 404, "unknown_message", at="/api/sdk/session/{mine}/receipts/never"),
    Case(RECEIPT, 422, "bad_parameter", at="/api/sdk/session/{mine}/receipts/never", params={"wait_s": -1}),
    Case(DECIDE, 404, "unknown_call", at="/api/sdk/session/{quiet}/approvals/never", body={"decision": "approve"}),
    Case(DECIDE, 409, "already_decided", at="/api/sdk/session/{asking}/approvals/{asked_call}",
         body={"decision": "reject"}),
    Case(MANY, 422, "too_many_sessions", params={"session": [f"s{number}" for number in range(51)]}),
    Case(MANY, 422, "bad_cursor", params={"session": [f"s1:{2**60}"]}),
    Case(MANY, 422, "bad_address", params={"session": [":5"]}),
    Case(MANY, 422, "bad_parameter", params={"max_events": 0}),
    Case(MANY, 400, "bad_cursor", params={"session": ["s1"]}, headers={"last-event-id": f"s1:{2**60}"}),
    Case(ROUTE, 422, "unknown_scenario", body={"scenario_id": "nowhere"}),
    Case(ROUTE, 409, "other_scenario", body={"session_id": "{quiet}", "scenario_id": "ruins"}),
    Case(SWITCH, 422, "unknown_agent", body={"session_id": "{quiet}", "agent_name": "broken"}),
    Case(AGENTS, 422, "unknown_scenario", params={"scenario_id": "nowhere"}),
    Case(EXECUTE, 403, "tool_not_allowed", body={"session_id": "{quiet}", "tool": "product_search"}),
    Case(EXECUTE, 403, "tool_not_allowed", body={"session_id": "{quiet}", "tool": "no_such_tool"}),
    Case(EXECUTE, 403, "builtin_tool", body={"session_id": "{quiet}", "tool": "WebSearchTool"}),
    Case(EXECUTE, 422, "bad_arguments", body={"session_id": "{quiet}", "tool": "weather", "args": {"town": "Oslo"}}),
    Case(EXECUTE, 502, "run_failed", body={"session_id": "{failed}", "tool": "weather", "args": {"city": "Oslo"}}),
    Case(DEAD, 422, "bad_parameter", params={"after": -1}, who="admin"),
    Case(DEAD, 410, "cursor_gone", params={"agent": "broken", "after": 999}, who="admin"),
    Case(BULK, 400, "bad_json", content=b"{", headers=JSON, who="admin"),
    Case(BULK, 413, "too_large", content=b'{"pad": "' + b"x" * 4000 + b'"}', headers=JSON, hasty=True, who="admin"),
    Case(BULK, 415, "not_json", content=b"action=drop", who="admin"),
    Case(BULK, 422, "bad_envelope", body={"action": "drop"}, who="admin"),
    Case(BULK, 422, "bad_envelope", body={"action": "drop", "all": True, "since": "yesterday"}, who="admin"),
    Case(BULK, 422, "invalid", body={"action": "drop", "all": True, "after": "x"}, who="admin"),
    Case(REVIVE, 404, "unknown_letter", at="/api/dead/broken/999/retry", who="admin"),
    Case(REVIVE, 422, "bad_parameter", at="/api/dead/broken/0x1/retry", who="admin"),
    Case(DROP, 404, "unknown_letter", at="/api/dead/broken/999", who="admin"),
    Case(DROP, 422, "bad_parameter", at="/api/dead/broken/0x1", who="admin"),
    *(Case(route, 403, "admin_only", at=at) for route, at in
      ((DEAD, "/api/dead"), (REVIVE, "/api/dead/broken/1/retry"), (DROP, "/api/dead/broken/1"))),
]  # fmt: skip

# Errors that every route can return; a test requests each of them.
ADMIN_CASES = frozenset({401, 403, 408, 414, 421, 429, 431, 501, 503, 507})
