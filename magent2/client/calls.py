"""Requests to a gateway as values, and what its responses become. Nothing here waits."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from magent2.client.values import (
    AgentInfo,
    Approval,
    Conversation,
    ConversationPage,
    EventPage,
    LetterPage,
    Receipt,
    Sent,
    Steered,
    Stopping,
    ToolResult,
    known_fields,
)
from magent2.errors import (
    Conflict,
    GatewayBusy,
    GatewayFailed,
    GatewayProblem,
    Gone,
    NotFound,
    RequestRefused,
    Unauthorized,
)
from magent2.models.address import Address

T = TypeVar("T")

DETAIL_MAX_CHARS = 500

ERRORS: Mapping[int, type[GatewayProblem]] = {
    401: Unauthorized,
    403: Unauthorized,
    404: NotFound,
    409: Conflict,
    410: Gone,
    421: Unauthorized,
    429: GatewayBusy,
    503: GatewayBusy,
}


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request. `repeatable`: sending it again after a lost reply does no harm."""

    method: str
    path: str
    parse: Callable[[Any], T]
    params: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    repeatable: bool = True

    def read(self, status: int, headers: Mapping[str, str], content: bytes) -> T:
        """The answer, or the error that the gateway tells."""
        if not 200 <= status < 300:
            raise problem(status, headers, content)
        try:
            return self.parse(json.loads(content) if content else {})
        except (ValueError, LookupError, TypeError) as error:
            raise GatewayFailed(status, "no_gateway", f"what answered {self.path} is not a magent2 gateway") from error


def problem(status: int, headers: Mapping[str, str], content: bytes) -> GatewayProblem:
    """A problem document as an error, by what the caller can do about it."""
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    document = found if isinstance(found, dict) else {}
    detail = str(document.get("detail") or document.get("title") or f"the gateway answered {status}")
    fields: dict[str, object] = dict(document)
    if headers.get("retry-after", "").isdecimal():
        fields["retry_after_s"] = int(headers["retry-after"])
    return _error_type(status)(status, str(document.get("code") or status), detail[:DETAIL_MAX_CHARS], fields)


def _error_type(status: int) -> type[GatewayProblem]:
    return ERRORS.get(status, RequestRefused if 400 <= status < 500 else GatewayFailed)


# --- the routes --------------------------------------------------------------------------------------------------


def recipient_of(name: str) -> str:
    """`Bob` is the agent of that name; `agent:Bob` and `chat:c1` are what they say."""
    return name if name.startswith(("agent:", "chat:")) else f"agent:{name}"


def send(
    recipient: str,
    text: str,
    *,
    conversation_id: str | None = None,
    sender: str | None = None,
    envelope_id: str | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> Call[Sent]:
    """The id is chosen here, so that however often the request is sent there is one message."""
    address = Address.parse(recipient_of(recipient))
    conversation = conversation_id or (address.name if address.kind == "chat" else f"c-{uuid.uuid4().hex[:12]}")
    body: dict[str, Any] = {
        "id": envelope_id or str(uuid.uuid4()),
        "conversation_id": conversation,
        "recipient": str(address),
        "content": text,
    }
    if sender is not None:  # else whoever the credential stands for
        body["sender"] = sender
    if metadata:
        body["metadata"] = dict(metadata)

    def parse(data: Mapping[str, Any]) -> Sent:
        return Sent(conversation, data["envelope_id"], data["seq"], data.get("notice"))

    return Call("POST", "/send", parse, body=body)


def create_session(session_id: str | None, agent: str | None) -> Call[str]:
    given = (("session_id", session_id), ("agent_name", agent))
    body = {name: value for name, value in given if value is not None}
    return Call("POST", "/api/sdk/session/create", lambda data: str(data["session_id"]), body=body, repeatable=False)


def run_tool(session_id: str, tool: str, args: Mapping[str, Any]) -> Call[ToolResult | Sent]:
    """Not to be sent again: it may have been run."""

    def parse(data: Mapping[str, Any]) -> ToolResult | Sent:
        if "result" in data:
            return known_fields(ToolResult, data)
        return Sent(data["session_id"], data["message_id"], data["seq"], data.get("notice"))

    body = {"session_id": session_id, "tool": tool, "args": dict(args)}
    return Call("POST", "/api/tools/execute", parse, body=body, repeatable=False)


def stop(conversation_id: str, agent: str | None, sender: str | None) -> Call[Stopping]:
    body = {name: value for name, value in (("agent", agent), ("sender", sender)) if value is not None}
    return Call("POST", f"{_conversation(conversation_id)}/stop", lambda data: known_fields(Stopping, data), body=body)


def steer(
    conversation_id: str,
    text: str,
    *,
    target: str | None = None,
    require_active: bool = False,
    client_message_id: str | None = None,
) -> Call[Steered]:
    """The key is chosen here, so that however often the request is sent it is said once."""
    body: dict[str, Any] = {
        "text": text,
        "client_message_id": client_message_id or str(uuid.uuid4()),
        "require_active": require_active,
    }
    if target is not None:
        body["target"] = target

    def parse(data: Mapping[str, Any]) -> Steered:
        return Steered(conversation_id, data["receipt_id"], data["seq"])

    return Call("POST", f"{_session(conversation_id)}/steer", parse, body=body)


def receipt(conversation_id: str, receipt_id: str, wait_s: float) -> Call[Receipt]:
    path = f"{_session(conversation_id)}/receipts/{_quoted(receipt_id)}"
    return Call("GET", path, Receipt.parse, _params(wait_s=wait_s))


def approvals(conversation_id: str) -> Call[tuple[Approval, ...]]:
    def parse(data: Mapping[str, Any]) -> tuple[Approval, ...]:
        return tuple(known_fields(Approval, row) for row in data["approvals"])

    return Call("GET", f"{_session(conversation_id)}/approvals", parse)


def decide(conversation_id: str, call_id: str, decision: str, reason: str | None) -> Call[Approval]:
    """However often it is sent, it is decided once."""
    body = {"decision": decision} if reason is None else {"decision": decision, "reason": reason}
    path = f"{_session(conversation_id)}/approvals/{_quoted(call_id)}"
    return Call("POST", path, lambda data: known_fields(Approval, data), body=body)


def conversations(limit: int, before: str | None, owner: str | None) -> Call[ConversationPage]:
    return Call("GET", "/conversations", ConversationPage.parse, _params(limit=limit, before=before, owner=owner))


def conversation(conversation_id: str) -> Call[Conversation]:
    return Call("GET", _conversation(conversation_id), lambda data: known_fields(Conversation, data))


def events(conversation_id: str, since: int, limit: int) -> Call[EventPage]:
    params = _params(since=since, limit=limit)
    return Call("GET", f"{_conversation(conversation_id)}/events", EventPage.parse, params)


def delete(conversation_id: str) -> Call[None]:
    return Call("DELETE", _conversation(conversation_id), _nothing)


def agents() -> Call[tuple[AgentInfo, ...]]:
    return Call("GET", "/agents", AgentInfo.parse_all)


def dead(agent: str | None, after: str | int | None) -> Call[LetterPage]:
    return Call("GET", "/dead", LetterPage.parse, _params(agent=agent, after=after))


def retry_dead(agent: str, seq: int) -> Call[None]:
    return Call("POST", f"/dead/{_quoted(agent)}/{seq}/retry", _nothing, repeatable=False)


def drop_dead(agent: str, seq: int) -> Call[None]:
    return Call("DELETE", f"/dead/{_quoted(agent)}/{seq}", _nothing, repeatable=False)


def health() -> Call[Mapping[str, Any]]:
    return Call("GET", "/health", dict)


def ready() -> Call[Mapping[str, Any]]:
    return Call("GET", "/ready", dict)


def stream_path(conversation_id: str) -> str:
    return f"/stream/{_quoted(conversation_id)}"


def _conversation(conversation_id: str) -> str:
    return f"/conversations/{_quoted(conversation_id)}"


def _session(session_id: str) -> str:
    return f"/api/sdk/session/{_quoted(session_id)}"


def _quoted(name: str) -> str:
    return quote(name, safe="")


def _params(**values: object) -> dict[str, str]:
    return {name: str(value) for name, value in values.items() if value is not None}


def _nothing(_: object) -> None:
    return None
