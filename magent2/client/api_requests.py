"""The requests of the client as values: method, path, body, and how the response is parsed. Nothing here does I/O."""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Generic, Literal, TypeVar
from urllib.parse import quote

from magent2.client.results import ConversationEvent, Decision, EventPage, SentMessage, SteeredMessage, ToolResult
from magent2.client.uploads import FileSource, UploadBody
from magent2.errors import (
    AddressError,
    Conflict,
    GatewayBusy,
    GatewayFailed,
    GatewayProblem,
    Gone,
    InvalidInput,
    NotFound,
    RequestRefused,
    Unauthorized,
)
from magent2.models.address import DOT_NAMES, Address
from magent2.models.api.administration import AgentInfo, AgentList, DeadLetterPage, DeadLettersResponse
from magent2.models.api.files import FileInfo, FileList
from magent2.models.api.messages import (
    AcceptedResponse,
    ApprovalInfo,
    ApprovalList,
    MessageReceipt,
    PendingApprovalPage,
    RecordPage,
    SendResponse,
    SteerResponse,
    WhenBusy,
)
from magent2.models.api.schedules import Missed, ScheduleDetail, ScheduleList
from magent2.models.api.sessions import Conversation, ConversationPage, SessionSettings, StopResponse
from magent2.models.api.team import ToolRunResponse
from magent2.models.api.usage import BudgetInfo, BudgetList, UsageReportInfo
from magent2.models.api.webhooks import (
    WebhookDelivery,
    WebhookDeliveryList,
    WebhookInfo,
    WebhookList,
    WebhookScope,
)
from magent2.models.budgets import UNITS
from magent2.models.files import ATTACHMENTS
from magent2.models.webhook_events import WebhookEvent

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
    """One request, with a JSON `body` or a file to `upload`.

    If it is `repeatable`, sending it again after a lost response has no further effect.
    """

    method: str
    path: str
    parse: Callable[[object], T]
    params: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, object] | None = None
    repeatable: bool = True
    upload: UploadBody | None = None
    raw: bool = False  # the response is not JSON

    def read(self, status: int, headers: Mapping[str, str], content: bytes) -> T:
        """Parse a response. Raises the error that the gateway reports."""
        if not 200 <= status < 300:
            raise problem(status, headers, content)
        try:
            return self.parse(content if self.raw else json.loads(content) if content else {})
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


# --- files


def upload(source: FileSource) -> ApiRequest[FileInfo]:
    body = UploadBody.of(source)
    params = {"name": body.name}
    return ApiRequest("POST", "/api/files", FileInfo.model_validate, params, repeatable=False, upload=body)


def files(limit: int, before: str | None) -> ApiRequest[FileList]:
    return ApiRequest("GET", "/api/files", FileList.model_validate, _params(limit=limit, before=before))


def delete_file(file_id: str) -> ApiRequest[None]:
    return ApiRequest("DELETE", f"/api/files/{path_part(file_id)}", _nothing)


def download(file_id: str) -> ApiRequest[bytes]:
    return ApiRequest("GET", f"/api/files/{path_part(file_id)}/content", _bytes, raw=True)


# --- schedules


def create_schedule(
    text: str,
    session_id: str | None,
    agent: str | None,
    when: Mapping[str, object],
    missed: Missed,
    when_busy: WhenBusy,
    max_runs: int | None,
    schedule_id: str | None,
) -> ApiRequest[ScheduleDetail]:
    # As in `send`, the id is chosen here, so that a repeated request is still one schedule.
    body = _given(
        text=text,
        session_id=session_id,
        agent=agent,
        missed=missed,
        when_busy=when_busy,
        max_runs=max_runs,
        schedule_id=schedule_id or uuid.uuid4().hex,
        **{name: _instant_text(value) for name, value in when.items()},
    )
    return ApiRequest("POST", "/api/schedules", ScheduleDetail.model_validate, body=body)


def _instant_text(value: object) -> object:
    return value.isoformat() if isinstance(value, datetime) else value


def schedules(session_id: str | None, limit: int, before: str | None, owner: str | None) -> ApiRequest[ScheduleList]:
    params = _params(session_id=session_id, limit=limit, before=before, owner=owner)
    return ApiRequest("GET", "/api/schedules", ScheduleList.model_validate, params)


def schedule(schedule_id: str) -> ApiRequest[ScheduleDetail]:
    return ApiRequest("GET", _schedule(schedule_id), ScheduleDetail.model_validate)


def change_schedule(schedule_id: str, change: Literal["pause", "resume"]) -> ApiRequest[ScheduleDetail]:
    return ApiRequest("POST", f"{_schedule(schedule_id)}/{change}", ScheduleDetail.model_validate)


def run_schedule(schedule_id: str, client_message_id: str | None) -> ApiRequest[SentMessage]:
    body = {"client_message_id": client_message_id or str(uuid.uuid4())}
    return ApiRequest("POST", f"{_schedule(schedule_id)}/run", _accepted_message, body=body)


def delete_schedule(schedule_id: str) -> ApiRequest[None]:
    return ApiRequest("DELETE", _schedule(schedule_id), _nothing)


def _schedule(schedule_id: str) -> str:
    return f"/api/schedules/{path_part(schedule_id)}"


# --- webhooks


def create_webhook(
    url: str,
    events: Sequence[WebhookEvent] | None,
    secret: str | None,
    secret_env: str | None,
    scope: WebhookScope | None,
    allow_private: bool,
) -> ApiRequest[WebhookInfo]:
    body = _given(
        url=url,
        events=None if events is None else list(events),
        secret=secret,
        secret_env=secret_env,
        scope=scope,
        allow_private=allow_private,
    )
    return ApiRequest("POST", "/api/webhooks", WebhookInfo.model_validate, body=body, repeatable=False)


def webhooks(owner: str | None) -> ApiRequest[tuple[WebhookInfo, ...]]:
    def parse(data: object) -> tuple[WebhookInfo, ...]:
        return tuple(WebhookList.model_validate(data).webhooks)

    return ApiRequest("GET", "/api/webhooks", parse, _params(owner=owner))


def update_webhook(
    webhook_id: str,
    url: str | None,
    events: Sequence[WebhookEvent] | None,
    secret: str | None,
    rotate_secret: bool,
) -> ApiRequest[WebhookInfo]:
    body = _given(
        url=url, events=None if events is None else list(events), secret=secret, rotate_secret=rotate_secret or None
    )
    path = f"/api/webhooks/{path_part(webhook_id)}"
    # A repeat would make another secret, and the one that was shown would be lost.
    return ApiRequest("PATCH", path, WebhookInfo.model_validate, body=body, repeatable=not rotate_secret)


def delete_webhook(webhook_id: str) -> ApiRequest[None]:
    return ApiRequest("DELETE", f"/api/webhooks/{path_part(webhook_id)}", _nothing)


def test_webhook(webhook_id: str) -> ApiRequest[WebhookDelivery]:
    path = f"/api/webhooks/{path_part(webhook_id)}/test"
    return ApiRequest("POST", path, WebhookDelivery.model_validate, repeatable=False)


def webhook_deliveries(webhook_id: str, state: str | None) -> ApiRequest[tuple[WebhookDelivery, ...]]:
    def parse(data: object) -> tuple[WebhookDelivery, ...]:
        return tuple(WebhookDeliveryList.model_validate(data).deliveries)

    return ApiRequest("GET", f"/api/webhooks/{path_part(webhook_id)}/deliveries", parse, _params(state=state))


def retry_webhook_delivery(webhook_id: str, delivery_id: str) -> ApiRequest[WebhookDelivery]:
    path = f"/api/webhooks/{path_part(webhook_id)}/deliveries/{path_part(delivery_id)}/retry"
    return ApiRequest("POST", path, WebhookDelivery.model_validate, repeatable=False)


# --- messages


def send(
    recipient: str,
    text: str,
    conversation_id: str | None = None,
    sender: str | None = None,
    envelope_id: str | None = None,
    metadata: Mapping[str, object] | None = None,
    when_busy: WhenBusy = "queue",
    file_ids: Sequence[str] = (),
) -> ApiRequest[SentMessage]:
    # The id is chosen here and not by the gateway, so that a repeated request is still one message.
    address = Address.parse(recipient if recipient.startswith(("agent:", "chat:")) else f"agent:{recipient}")
    conversation = conversation_id or (address.name if address.kind == "chat" else f"c-{uuid.uuid4().hex[:12]}")
    facts = {**(metadata or {}), **({ATTACHMENTS: list(file_ids)} if file_ids else {})}
    body = _given(
        id=envelope_id or str(uuid.uuid4()),
        conversation_id=conversation,
        recipient=str(address),
        content=text,
        sender=sender,  # defaults to the caller's principal
        metadata=facts or None,
    )

    def parse(data: object) -> SentMessage:
        response = SendResponse.model_validate(data)
        return SentMessage(conversation, response.envelope_id, response.seq, response.notice)

    params = {} if when_busy == "queue" else {"when_busy": when_busy}
    return ApiRequest("POST", "/send", parse, params, body)


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


def regenerate(conversation_id: str, client_message_id: str | None) -> ApiRequest[SentMessage]:
    # As in `send`, the idempotency key is chosen here.
    body = {"client_message_id": client_message_id or str(uuid.uuid4())}
    return ApiRequest("POST", f"{_session(conversation_id)}/regenerate", _accepted_message, body=body)


def edit(
    conversation_id: str, message_id: str | None, text: str, client_message_id: str | None
) -> ApiRequest[SentMessage]:
    body = {"message_id": message_id, "text": text, "client_message_id": client_message_id or str(uuid.uuid4())}
    return ApiRequest("POST", f"{_session(conversation_id)}/edit", _accepted_message, body=body)


def _accepted_message(data: object) -> SentMessage:
    accepted = AcceptedResponse.model_validate(data)
    return SentMessage(accepted.session_id, accepted.message_id, accepted.seq, accepted.notice)


def receipt(conversation_id: str, receipt_id: str, wait_s: float) -> ApiRequest[MessageReceipt]:
    path = f"{_session(conversation_id)}/receipts/{path_part(receipt_id)}"
    return ApiRequest("GET", path, MessageReceipt.model_validate, _params(wait_s=wait_s))


def stop(conversation_id: str, agent: str | None, sender: str | None) -> ApiRequest[StopResponse]:
    body = _given(agent=agent, sender=sender)
    path = f"{_session(conversation_id)}/stop"
    return ApiRequest("POST", path, StopResponse.model_validate, _RECORDS, body)


def usage(
    by: Sequence[str], since: date | None, until: date | None, user: str | None, conversation: str | None
) -> ApiRequest[UsageReportInfo]:
    params = _params(by=",".join(by) or None, since=since, until=until, user=user, conversation=conversation)
    return ApiRequest("GET", "/api/usage", UsageReportInfo.model_validate, params)


def budgets(conversation: str | None, user: str | None) -> ApiRequest[BudgetList]:
    return ApiRequest("GET", "/api/budgets", BudgetList.model_validate, _params(conversation=conversation, user=user))


def set_budget(budget: str, name: str, limits: Mapping[str, float | None]) -> ApiRequest[BudgetInfo]:
    if not limits:
        raise InvalidInput(f"give one of {', '.join(UNITS)}, or restore the limit of the configuration by reset_budget")
    for unit, limit in limits.items():
        if limit is not None and not math.isfinite(limit):  # JSON has no such numbers
            raise InvalidInput(f"{unit} must be a number from 0 on, not {limit}")
    return _put_budget({"budget": budget, "name": name, **limits})


def reset_budget(budget: str, name: str) -> ApiRequest[BudgetInfo]:
    return _put_budget({"budget": budget, "name": name, "reset": True})


def _put_budget(body: Mapping[str, object]) -> ApiRequest[BudgetInfo]:
    return ApiRequest("PUT", "/api/budgets", BudgetInfo.model_validate, body=body)


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
            return _accepted_message(data)
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


def _bytes(data: object) -> bytes:
    if not isinstance(data, bytes):
        raise TypeError(f"expected bytes, found {type(data).__name__}")
    return data


def _nothing(_: object) -> None:
    return None
