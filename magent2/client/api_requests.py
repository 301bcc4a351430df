"""The requests of the client as values: method, path, body, and how the response is parsed. Nothing here does I/O."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, Literal, TypeVar
from urllib.parse import quote

from magent2.client.results import ConversationEvent, Decision, EventPage, SentMessage, SteeredMessage, ToolResult
from magent2.errors import (
    AddressError,
    Conflict,
    GatewayBusy,
    GatewayFailed,
    GatewayProblem,
    Gone,
    NotFound,
    RequestRefused,
    Unauthorized,
)
from magent2.models.address import DOT_NAMES, Address
from magent2.models.api.administration import AgentInfo, AgentList, DeadLetterPage, DeadLettersResponse
from magent2.models.api.messages import (
    AcceptedResponse,
    ApprovalInfo,
    ApprovalList,
    MessageReceipt,
    PendingApprovalPage,
    RecordPage,
    SendResponse,
    SteerResponse,
)
from magent2.models.api.sessions import Conversation, ConversationPage, SessionSettings, StopResponse
from magent2.models.api.team import ToolRunResponse

T = TypeVar("T")

DETAIL_MAX_CHARS = 500
_RECORDS = {"format": "record"}  # the response as it is stored, not in the form for pages

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
class ApiRequest(Generic[T]):
    """One request. If it is `repeatable`, sending it again after a lost response has no further effect."""

    method: str
    path: str
    parse: Callable[[object], T]
    params: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, object] | None = None
    repeatable: bool = True

    def read(self, status: int, headers: Mapping[str, str], content: bytes) -> T:
        """Parse a response. Raises the error that the gateway reports."""
        if not 200 <= status < 300:
            raise problem(status, headers, content)
        try:
            return self.parse(json.loads(content) if content else {})
        except (ValueError, LookupError, TypeError) as error:
            raise GatewayFailed(status, "no_gateway", f"what answered {self.path} is not a magent2 gateway") from error


def problem(status: int, headers: Mapping[str, str], content: bytes) -> GatewayProblem:
    """Convert an error response to an error. Its class says what the caller can do."""
    try:
        found = json.loads(content)
    except ValueError:
        found = None
    document: dict[str, object] = found if isinstance(found, dict) else {}
    detail = str(document.get("detail") or document.get("title") or f"the gateway answered {status}")
    fields: dict[str, object] = dict(document)
    if headers.get("retry-after", "").isdecimal():
        fields["retry_after_s"] = int(headers["retry-after"])
    error_type = ERRORS.get(status, RequestRefused if 400 <= status < 500 else GatewayFailed)
    return error_type(status, str(document.get("code") or status), detail[:DETAIL_MAX_CHARS], fields)


# --- messages


def send(
    recipient: str,
    text: str,
    conversation_id: str | None = None,
    sender: str | None = None,
    envelope_id: str | None = None,
    metadata: Mapping[str, object] | None = None,
) -> ApiRequest[SentMessage]:
    # The id is chosen here and not by the gateway, so that a repeated request is still one message.
    address = Address.parse(recipient if recipient.startswith(("agent:", "chat:")) else f"agent:{recipient}")
    conversation = conversation_id or (address.name if address.kind == "chat" else f"c-{uuid.uuid4().hex[:12]}")
    body = _given(
        id=envelope_id or str(uuid.uuid4()),
        conversation_id=conversation,
        recipient=str(address),
        content=text,
        sender=sender,  # defaults to the caller's principal
        metadata=dict(metadata) if metadata else None,
    )

    def parse(data: object) -> SentMessage:
        response = SendResponse.model_validate(data)
        return SentMessage(conversation, response.envelope_id, response.seq, response.notice)

    return ApiRequest("POST", "/send", parse, body=body)


def steer(
    conversation_id: str, text: str, target: str | None, require_active: bool, client_message_id: str | None
) -> ApiRequest[SteeredMessage]:
    # As in `send`, the idempotency key is chosen here.
    body = _given(
        text=text,
        client_message_id=client_message_id or str(uuid.uuid4()),
        require_active=require_active,
        target=target,
    )

    def parse(data: object) -> SteeredMessage:
        response = SteerResponse.model_validate(data)
        return SteeredMessage(conversation_id, response.receipt_id, response.seq)

    return ApiRequest("POST", f"{_session(conversation_id)}/steer", parse, body=body)


def receipt(conversation_id: str, receipt_id: str, wait_s: float) -> ApiRequest[MessageReceipt]:
    path = f"{_session(conversation_id)}/receipts/{path_part(receipt_id)}"
    return ApiRequest("GET", path, MessageReceipt.model_validate, _params(wait_s=wait_s))


def stop(conversation_id: str, agent: str | None, sender: str | None) -> ApiRequest[StopResponse]:
    body = _given(agent=agent, sender=sender)
    path = f"{_session(conversation_id)}/stop"
    return ApiRequest("POST", path, StopResponse.model_validate, _RECORDS, body)


def pending_approvals(before: str | None) -> ApiRequest[PendingApprovalPage]:
    return ApiRequest("GET", "/api/approvals", PendingApprovalPage.model_validate, _params(before=before))


def approvals(conversation_id: str) -> ApiRequest[tuple[ApprovalInfo, ...]]:
    def parse(data: object) -> tuple[ApprovalInfo, ...]:
        return tuple(ApprovalList.model_validate(data).approvals)

    return ApiRequest("GET", f"{_session(conversation_id)}/approvals", parse)


def decide(conversation_id: str, call_id: str, decision: Decision, reason: str | None) -> ApiRequest[ApprovalInfo]:
    path = f"{_session(conversation_id)}/approvals/{path_part(call_id)}"
    return ApiRequest("POST", path, ApprovalInfo.model_validate, body=_given(decision=decision, reason=reason))


def run_tool(session_id: str, tool: str, args: Mapping[str, object]) -> ApiRequest[ToolResult | SentMessage]:
    """The result is a message to wait for, if the tool takes longer than the gateway waits."""

    def parse(data: object) -> ToolResult | SentMessage:
        if not isinstance(data, dict) or "result" not in data:
            accepted = AcceptedResponse.model_validate(data)
            return SentMessage(accepted.session_id, accepted.message_id, accepted.seq, accepted.notice)
        done = ToolRunResponse.model_validate(data)
        return ToolResult(done.session_id, done.tool, done.agent_id, done.result, done.error, done.duration_ms)

    body = {"session_id": session_id, "tool": tool, "args": dict(args)}
    # Not repeatable: the tool may have run before the response was lost.
    return ApiRequest("POST", "/api/tools/execute", parse, body=body, repeatable=False)


# --- conversations


def create_session(session_id: str | None, agent: str | None) -> ApiRequest[str]:
    def parse(data: object) -> str:
        return SessionSettings.model_validate(data).session_id

    body = _given(session_id=session_id, agent_name=agent)
    return ApiRequest("POST", "/api/sdk/session/create", parse, body=body, repeatable=False)


def conversations(limit: int, before: str | None, owner: str | None) -> ApiRequest[ConversationPage]:
    params = _params(limit=limit, before=before, owner=owner, format="record")
    return ApiRequest("GET", "/api/sdk/sessions", ConversationPage.model_validate, params)


def conversation(conversation_id: str) -> ApiRequest[Conversation]:
    return ApiRequest("GET", _session(conversation_id), Conversation.model_validate, _RECORDS)


def events(conversation_id: str, since: int, limit: int) -> ApiRequest[EventPage]:
    def parse(data: object) -> EventPage:
        page = RecordPage.model_validate(data)
        found = tuple(ConversationEvent(row["seq"], str(row.get("event", "")), row) for row in page.events)
        return EventPage(found, page.next_since, page.has_more)

    params = _params(since=since, limit=limit, format="record")
    return ApiRequest("GET", f"{_session(conversation_id)}/events", parse, params)


def delete(conversation_id: str) -> ApiRequest[None]:
    return ApiRequest("DELETE", _session(conversation_id), _nothing)


# --- administration


def agents() -> ApiRequest[tuple[AgentInfo, ...]]:
    def parse(data: object) -> tuple[AgentInfo, ...]:
        return tuple(AgentList.model_validate(data).agents)

    return ApiRequest("GET", "/api/workers", parse)


def dead(agent: str | None, after: int | None) -> ApiRequest[DeadLetterPage]:
    return ApiRequest("GET", "/api/dead", DeadLetterPage.model_validate, _params(agent=agent, after=after))


def retry_dead(agent: str, seq: int) -> ApiRequest[None]:
    return ApiRequest("POST", f"/api/dead/{path_part(agent)}/{seq}/retry", _nothing, repeatable=False)


def drop_dead(agent: str, seq: int) -> ApiRequest[None]:
    return ApiRequest("DELETE", f"/api/dead/{path_part(agent)}/{seq}", _nothing, repeatable=False)


def process_dead(
    action: Literal["retry", "drop"],
    agent: str | None,
    since: datetime | None,
    reason: str | None,
    all_letters: bool,
    dry_run: bool,
) -> ApiRequest[DeadLettersResponse]:
    body = _given(
        action=action,
        agent=agent,
        since=None if since is None else since.astimezone().isoformat(),
        reason=reason,
        all=all_letters,
        dry_run=dry_run,
    )
    return ApiRequest("POST", "/api/dead", DeadLettersResponse.model_validate, body=body)


def health() -> ApiRequest[dict[str, object]]:
    return ApiRequest("GET", "/health", _json_object)


def ready() -> ApiRequest[dict[str, object]]:
    return ApiRequest("GET", "/ready", _json_object)


# --- paths, parameters and bodies


def _session(session_id: str) -> str:
    return f"/api/sdk/session/{path_part(session_id)}"


def path_part(name: str) -> str:
    """Return a name as one part of a path. Raises `AddressError` for a name that no path can have."""
    if name in DOT_NAMES:
        raise AddressError(f"{name!r} cannot be a part of a path, because clients remove it; take another name")
    return quote(name, safe="")


def _given(**values: object) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _params(**values: object) -> dict[str, str]:
    return {name: str(value) for name, value in _given(**values).items()}


def _json_object(data: object) -> dict[str, object]:
    if not isinstance(data, dict):
        raise TypeError(f"expected a JSON object, found {type(data).__name__}")
    return data


def _nothing(_: object) -> None:
    return None
