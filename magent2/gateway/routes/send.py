"""`POST /send`: deliver an envelope."""

from __future__ import annotations

import logging
from typing import Annotated, get_args
from urllib.parse import parse_qs

import orjson
from fastapi import APIRouter, Query, Request
from pydantic import ValidationError
from pydantic_core import from_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from magent2.errors import Magent2Error, UnknownAgent
from magent2.failures import log_failure
from magent2.gateway.access.auth import check_sender, principal_of
from magent2.gateway.instrumentation import add_audit_ids
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.limits.http import check_json, check_json_values, read_body
from magent2.gateway.openapi import SEND_RESPONSE, envelope_body, problems
from magent2.gateway.problems import Problem, bad_body, internal_error, logged_problem
from magent2.gateway.routes.dependencies import check_new_id, is_known_agent, unknown_agent
from magent2.gateway.routes.files import check_references, with_attachments
from magent2.gateway.services import Services, WorkerPresence, services_of
from magent2.mail.delivery import DeliveryResult, SendOptions
from magent2.models.address import Address, chat_topic
from magent2.models.api.messages import WhenBusy
from magent2.models.envelope import MessageEnvelope
from magent2.models.files import ATTACHMENTS
from magent2.models.principal import Principal
from magent2.models.run_options import RUN_OPTIONS, read_run_options

log = logging.getLogger(__name__)

SEND_PATH = "/send"
JSON = "application/json"
WHEN_BUSY = "when_busy"  # query parameter


class SendEndpoint:
    """`POST /send` as plain ASGI. FastAPI's dispatch would cost more than the delivery itself."""

    path = SEND_PATH  # the route template, for metrics and spans

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = self
        try:
            answer = await deliver(self._services, scope, receive)
        except Magent2Error as error:
            self._services.writes.note(error)
            await logged_problem(error).answer(scope)(scope, receive, send)
            return
        except Exception as error:  # noqa: BLE001  the last handler: the client gets an answer, the log the cause
            problem = internal_error(error)
            facts = {"failure_id": problem.failure_id}
            log_failure(log, logging.ERROR, "message not accepted", error, facts, with_traceback=True)
            await problem.answer(scope)(scope, receive, send)
            return
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(answer))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})


# The route for the OpenAPI document. `SendEndpoint` answers the requests.
router = APIRouter(tags=["messages"])


@router.post(
    SEND_PATH,
    operation_id="send_envelope",
    response_class=Response,
    responses={200: SEND_RESPONSE, **problems(400, 401, 403, 404, 408, 409, 410, 413, 415, 422, 429, 503, 507)},
    openapi_extra={"requestBody": envelope_body()},
)
async def send(
    request: Request,
    when_busy: Annotated[
        WhenBusy,
        Query(
            description="what to do while another message of the conversation waits or is being answered: wait"
            " (`queue`), join its run (`steer`), stop its run first (`interrupt`), or refuse with 409 (`reject`)"
        ),
    ] = "queue",
) -> Response:
    """Deliver an envelope, once per id: a repeat with the same body gets the same answer."""
    services = services_of(request)
    return Response(await deliver(services, request.scope, request.receive), media_type=JSON)


async def deliver(services: Services, scope: Scope, receive: Receive) -> bytes:
    """Deliver the envelope in the body of a request. Return the body of the response."""
    check_json(scope)
    principal = principal_of(scope)
    envelope = parse_envelope(await read_body(scope, receive, services.limits), principal)
    # Before the checks, so that the audit line of a refused message says what it was about.
    add_audit_ids(scope, conversation_id=envelope.conversation_id, envelope_id=envelope.id, sender=envelope.sender)
    check_message(envelope, services.limits, principal)
    when_busy = _when_busy(scope, envelope)
    if ATTACHMENTS in envelope.metadata:
        envelope = await with_attachments(services, envelope, principal, when_busy)
    if RUN_OPTIONS in envelope.metadata:
        await check_references(services, read_run_options(envelope.metadata).input or (), principal)
    await check_new_id(services, envelope.conversation_id)
    services.presence.refresh()  # at the same time as the delivery
    recipient = Address.parse(envelope.recipient)
    try:
        delivered = await services.sessions.post(
            envelope,
            _options(services, envelope, recipient, principal),
            when_busy=when_busy,
            history_reader=services.histories.read_with,
        )
    except UnknownAgent:
        raise unknown_agent(services, recipient.name) from None
    await services.presence.refreshed()
    (services.metrics.repeated if delivered.appended.repeat else services.metrics.accepted).inc()
    return orjson.dumps(_answer(envelope, delivered, services.presence))


def _when_busy(scope: Scope, envelope: MessageEnvelope) -> WhenBusy:
    """Return the query parameter `when_busy`. Raises a problem for another value, or if it comes with a command."""
    query: bytes = scope.get("query_string", b"")
    given = parse_qs(query.decode("latin-1"), keep_blank_values=True).get(WHEN_BUSY) if query else None
    if given is None:
        return "queue"
    modes: tuple[WhenBusy, ...] = get_args(WhenBusy)
    chosen = next((mode for mode in modes if [mode] == given), None)
    if chosen is None:
        raise Problem(422, "bad_parameter", f"'{WHEN_BUSY}' must be one of {', '.join(modes)}, given once")
    if chosen != "queue" and envelope.type != "message":
        raise Problem(422, "bad_parameter", f"'{WHEN_BUSY}' is for messages; send a command without it")
    return chosen


def _options(services: Services, envelope: MessageEnvelope, recipient: Address, principal: Principal) -> SendOptions:
    """Return how to send an envelope. Raises a problem for an agent that only routes.

    Mail for an agent that is not known waits until the agent is started. It does not become the active agent.
    """
    activates: bool | None = True
    if envelope.type == "message" and recipient.kind == "agent":
        known = is_known_agent(services, recipient.name)
        # A bus of v1 has no registrations.
        activates = True if known or not services.has_keys else None
    return SendOptions(principal=principal.bound, activates=activates)


def parse_envelope(body: bytes, principal: Principal) -> MessageEnvelope:
    """Parse an envelope. A missing `sender` is the caller."""
    try:
        envelope = MessageEnvelope.model_validate_json(body)
    except ValidationError as error:
        if not _lacks_sender(error):
            raise bad_body(error) from None
        envelope = MessageEnvelope.model_validate({**from_json(body), "sender": principal.name})
    check_json_values(body)
    return envelope


def check_message(envelope: MessageEnvelope, limits: GatewayLimits, principal: Principal) -> None:
    """Check that a principal may send this message. Raises a problem if not."""
    check_sender(principal, envelope.sender)
    read_run_options(envelope.metadata)  # raises `InvalidInput`, so that no worker gets options that it cannot use
    text = envelope.content or ""
    if envelope.type == "message" and not text.strip() and not envelope.metadata.get(ATTACHMENTS):
        raise Problem(422, "blank", "a message needs some text in 'content'")
    if len(text) > limits.text_max_chars:
        raise Problem(422, "too_long", f"a text has at most {limits.text_max_chars} characters, not {len(text)}")


def _lacks_sender(error: ValidationError) -> bool:
    """Return whether the only fault is a missing sender, which defaults to the caller."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    return [(fault["type"], fault["loc"]) for fault in faults] == [("missing", ("sender",))]


def _answer(envelope: MessageEnvelope, delivered: DeliveryResult, presence: WorkerPresence) -> dict[str, object]:
    answer: dict[str, object] = {
        "status": "ok",
        "topic": chat_topic(envelope.conversation_id),
        "envelope_id": envelope.id,
        "seq": delivered.appended.seqs[-1],
    }
    notice = _notice(envelope, delivered, presence)
    return answer if notice is None else {**answer, "notice": notice}


def _notice(envelope: MessageEnvelope, delivered: DeliveryResult, presence: WorkerPresence) -> str | None:
    """Return what the sender should know: why the answer may take long or not come."""
    if delivered.agent is None:
        if envelope.sender.startswith("agent:"):
            return None
        return "no agent is active in this conversation, so no agent will answer; address one as 'agent:{Name}'"
    if presence.known and delivered.agent not in presence:
        return f"no worker serves {delivered.agent!r} now; the message waits until one does"
    return paused_notice(delivered)


def paused_notice(delivered: DeliveryResult) -> str | None:
    if delivered.needs_budget:
        return f"the budget of a run of {delivered.agent!r} is used up; the message waits until it is raised"
    if not delivered.paused:
        return None
    return f"a run of {delivered.agent!r} waits for approval; the message waits for the decision"
