"""The shapes of answers, as the OpenAPI document shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from http import HTTPStatus
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from magent2.models.envelope import MessageEnvelope

PROBLEM_TYPE = "application/problem+json"


def example(**fields: Any) -> ConfigDict:
    """The configuration of a shape that shows an example of itself."""
    return ConfigDict(json_schema_extra={"examples": [fields]})


class ProblemDocument(BaseModel):
    """What went wrong (RFC 9457). `code` is stable; `detail` is for people and names the next step."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str


class Sent(BaseModel):
    """Accepted. `seq` is that of the message in the conversation's stream: follow after it to see the answer."""

    status: Literal["ok"]
    topic: str
    envelope_id: str
    seq: int
    notice: str | None = Field(default=None, description="present only when the sender should know something")


class Health(BaseModel):
    status: Literal["ok"] = "ok"


class Ready(BaseModel):
    status: Literal["ready"] = "ready"
    engine: str


class Conversation(BaseModel):
    """A conversation as a list shows it."""

    conversation_id: str
    last_seq: int
    active_agent: str | None
    title: str | None
    run_status: str | None
    last_active_at: datetime
    usage: dict[str, Any] | None


class ConversationList(BaseModel):
    conversations: list[Conversation]
    next: str | None = Field(description="give it back as `before` to go on")


class EventPage(BaseModel):
    conversation_id: str
    events: list[dict[str, Any]] = Field(description="each as it was recorded, with its `seq`")
    next_since: int
    has_more: bool


class StopRequest(BaseModel):
    """Whom to stop: the conversation's active agent, unless one is named."""

    agent: str | None = None
    sender: str = "user:local"


class Stopping(BaseModel):
    status: Literal["accepted"] = "accepted"
    agent: str
    envelope_id: str
    seq: int


class LaneCounts(BaseModel):
    ready: int = 0
    held: int = 0
    later: int = 0
    parked: int = 0


class Agent(BaseModel):
    """An agent that is known, or served now. `lanes`: conversations with mail for it; `pending`: that mail."""

    name: str
    alive: bool
    workers: list[str]
    lanes: LaneCounts
    pending: int


class AgentList(BaseModel):
    agents: list[Agent]


class Letter(BaseModel):
    """Mail that nobody could answer."""

    model_config = example(
        agent="general", seq=1, conversation_id="s-1", reason="gave up after 3 attempts", attempts=3,
        buried_at="2026-09-21T14:13:20Z", envelope_id="msg-8c…", text="weather in Oslo",
    )  # fmt: skip

    agent: str
    seq: int
    conversation_id: str
    reason: str
    attempts: int
    buried_at: datetime
    envelope_id: str
    text: str | None


class LetterList(BaseModel):
    model_config = example(letters=[], next=None)

    letters: list[Letter]
    next: int | None = Field(description="give it back as `after` to go on")


class Done(BaseModel):
    model_config = example(status="ok")

    status: Literal["ok"] = "ok"


FRAME: dict[str, Any] = {
    "type": "object",
    "description": "one event of the stream; `data` is JSON",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
}
RECORDED = '{"event":"token","conversation_id":"s-1","text":"it is ","index":2,"seq":8}'
SENT: dict[str, Any] = {"model": Sent, "description": "Accepted, now or before"}
EVENTS: dict[str, Any] = {
    "description": "Server-sent events: `id` is the seq, `event` the kind, `data` the record as JSON",
    "content": {"text/event-stream": {"schema": FRAME, "example": {"id": "8", "event": "token", "data": RECORDED}}},
}

# One refusal of each status, as an example; docs/http.md has all codes.
EXAMPLES: dict[int, tuple[str, str]] = {
    400: ("bad_json", "the body is not JSON: EOF while parsing an object at line 1 column 1"),
    401: ("unauthorized", "give the gateway's token, or a key, as 'Authorization: Bearer TOKEN'"),
    403: ("foreign_origin", "pages of other origins may not call this gateway"),
    404: ("unknown_session", "there is no session 's-1'; create it first"),
    408: ("body_too_slow", "the body did not arrive within 30 s; send it again"),
    409: ("id_conflict", "the same id was used for another body; take another id"),
    410: ("conversation_deleted", "session 's-1' was deleted"),
    413: ("too_large", "a body takes at most 1114112 bytes"),
    415: ("not_json", "send JSON, with the header 'Content-Type: application/json'"),
    421: ("foreign_host", "this gateway answers only to names of its own machine"),
    422: ("bad_envelope", "the body cannot be used: session_id: Field required"),
    429: ("rate_limited", "too many requests of the kind 'send'; try again in 1 s"),
    501: ("needs_engine", "the bus behind this gateway has only 'publish' and 'read'; use another"),
    502: ("run_failed", "the run failed: the model did not answer"),
    503: ("bus_unavailable", "the bus does not answer; try again"),
    507: ("storage_full", "the disk is full; make room and send the same body again"),
}


def envelope_body() -> dict[str, Any]:
    schema = MessageEnvelope.model_json_schema()
    schema["required"].remove("sender")  # whoever sends, when it is left out
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The refusals that a route knows, and the one that all have: a host that is not ours."""
    return {status: _refusal(status) for status in sorted({*statuses, 421})}


def _refusal(status: int) -> dict[str, Any]:
    code, detail = EXAMPLES[status]
    phrase = HTTPStatus(status).phrase
    shown = {"type": f"/problems/{code}", "title": phrase, "status": status, "detail": detail, "code": code}
    content = {"schema": {"$ref": "#/components/schemas/ProblemDocument"}, "example": shown}
    return {"description": phrase, "content": {PROBLEM_TYPE: content}}


BEARER = "bearer"


def complete(document: dict[str, Any], is_open: Callable[[str], bool]) -> None:
    """What FastAPI does not know of: the shape of refusals, which routes only name, and the credential at the door."""
    parts = document.setdefault("components", {})
    parts.setdefault("schemas", {})[ProblemDocument.__name__] = ProblemDocument.model_json_schema()
    about = "the gateway's token (`magent2 token show`), or a key (`magent2 keys create`)"
    parts["securitySchemes"] = {BEARER: {"type": "http", "scheme": "bearer", "description": about}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if is_open(path) else [{BEARER: []}]
    for schema in parts["schemas"].values():
        if "examples" in schema:
            schema["examples"] = [_with_nulls(schema, shown, parts["schemas"]) for shown in schema["examples"]]


def _with_nulls(schema: Mapping[str, Any], value: Any, known: Mapping[str, Any]) -> Any:
    """An example whose nulls FastAPI has left out, as it was: without them it does not fit its own schema."""
    schema = known[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if isinstance(value, list):
        return [_with_nulls(schema.get("items", {}), item, known) for item in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    wanted = {*value, *schema.get("required", ())}
    parts = schema["properties"].items()
    return {name: _with_nulls(part, value.get(name), known) for name, part in parts if name in wanted}
