"""Requests of `/v1` as messages of sessions: which session and agent they go to, and how a response is found again."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from magent2.bus.log import Log
from magent2.bus.operations import Condition, LastSeqIs, SetHead
from magent2.bus.records import Page, Record
from magent2.errors import (
    AddressError,
    ConditionFailed,
    IdConflict,
    InvalidInput,
    NameTaken,
    PayloadTooLarge,
    TopicDeleted,
    UnknownAgent,
)
from magent2.gateway.openai_api.client_tools import answer_calls, check_not_waiting, last_answered_turn
from magent2.gateway.openai_api.errors import (
    invalid,
    model_not_found,
    previous_not_found,
    response_not_found,
    too_long,
)
from magent2.gateway.openai_api.files import store_files
from magent2.gateway.openai_api.ids import BadId, ResponseId, new_session_id
from magent2.gateway.openai_api.mapping import ResponseFacts, ResponseMapping
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import check_new_id
from magent2.gateway.routes.messages import envelope_id_for
from magent2.gateway.services import Services
from magent2.mail.conversation_state import has_mail
from magent2.mail.delivery import DeliveryResult, SendOptions
from magent2.mail.headers import PAUSED
from magent2.mail.registration import is_registered
from magent2.models.address import INTERNAL_AGENTS, chat_topic, check_conversation_id, is_name, stream_topic
from magent2.models.api.messages import WhenBusy
from magent2.models.envelope import MessageEnvelope
from magent2.models.files import ATTACHMENTS, FileAttachment
from magent2.models.json_types import JsonMapping, JsonObject
from magent2.models.principal import Principal
from magent2.models.run_options import RUN_OPTIONS, OutputSchema, RunOptions, read_run_options
from magent2.sessions.busy import busy_error
from magent2.sessions.files import delete_files_in
from magent2.sessions.settings import SessionChange
from magent2.sessions.store import CLIENT_MESSAGE_ID, HIDDEN, Session, forget_mail

REQUEST = "openai_request"  # metadata field of mail: what the response repeats of its request
IDEMPOTENCY_KEY_MAX_CHARS = 256
LATER_MESSAGES_READ = 100  # records that are read to find out whether a response is the last of its session


@dataclass(frozen=True, slots=True)
class ApiMessage:
    """A request, as a message to a session. `key` is its `Idempotency-Key`."""

    model: str | None
    text: str
    options: RunOptions
    echo: JsonObject  # parameters that the response repeats and the run does not need
    key: str | None = None
    conversation: str | None = None
    previous: ResponseId | None = None
    background: bool = False
    store: bool = True
    with_tool_calls: bool = False
    outputs: Mapping[str, object] = field(default_factory=dict)  # of the client's tools
    when_busy: WhenBusy = "queue"
    input_param: str = "input"  # what the request calls its input, for errors


async def post_message(services: Services, principal: Principal, message: ApiMessage) -> ResponseMapping:
    """Deliver a message, once per key, or outputs to a run that waits. Return the response, without any record yet."""
    session_id = _session_id(message, principal)
    if message.outputs:
        return await _answer_calls(services, principal, session_id, message)
    recipient = await _recipient(services, message.model, session_id)
    envelope = _envelope(message, session_id, principal, recipient)
    log = Log(services.bus)
    session = await _find_session(services, session_id, principal, message)
    known = None if session is None or message.key is None else await log.find(chat_topic(session_id), envelope.id)
    options = SendOptions(principal=principal.bound)
    if known is None:
        options = options._replace(only_if=await _check_state(services, session, message, envelope.id))
    # A new session without a key or a name has an id that no other request can have. Only that can be taken back.
    is_own = session is None and message.conversation is None and message.key is None
    # Before the session is created: a request with a file that is refused changes nothing.
    envelope = await _with_files(services, principal, message, envelope, is_own=is_own)
    if known is None:
        await _configure(services, principal, session_id, session, message, recipient)
    if not message.store:
        hidden = SetHead(stream_topic(session_id), {HIDDEN: True})
        options = options._replace(with_heads=(hidden,), with_records=(forget_mail(session_id, envelope.id),))
    services.presence.refresh()
    delivered = await _deliver(services, message, envelope, options, is_own=is_own)
    (services.metrics.repeated if delivered.appended.repeat else services.metrics.accepted).inc()
    stored = envelope
    if delivered.appended.repeat:
        stored = await _stored_envelope(log, session_id, envelope.id) or envelope
    return response_of(ResponseId(session_id, envelope.id, delivered.appended.seqs[-1]), stored)


async def _deliver(
    services: Services, message: ApiMessage, envelope: MessageEnvelope, options: SendOptions, *, is_own: bool
) -> DeliveryResult:
    """Deliver the message. Raises a problem that names what was wrong with the request."""
    try:
        return await services.sessions.post(
            envelope, options, when_busy=message.when_busy, history_reader=services.histories.read_with
        )
    except IdConflict:
        text = "this Idempotency-Key was used with another body; take another key"
        raise invalid(text, None, "idempotency_key_reused", 409) from None
    except PayloadTooLarge:
        if is_own:
            await services.sessions.delete(envelope.conversation_id, scrub=False)
        raise too_long(message.input_param) from None
    except ConditionFailed:
        if message.previous is None:
            raise
        raise _not_last(message.previous) from None


async def forget_response(services: Services, message: ApiMessage, response_id: ResponseId) -> None:
    """Delete the session of a response that is over and not to be stored.

    If the request had a key, the sweeper does it a minute later (`forget_mail`): other requests with the same key may
    be waiting for the same answer, and a client that has lost it asks again.
    """
    if not message.store and message.key is None:
        await services.sessions.delete(response_id.session, scrub=False)


async def _answer_calls(
    services: Services, principal: Principal, session_id: str, message: ApiMessage
) -> ResponseMapping:
    """Continue the run that waits for these outputs. It has the options that it was started with."""
    session = await _find_session(services, session_id, principal, message)
    if session is None:
        text = "no function call waits for these outputs: name the response or the conversation that has asked for them"
        raise invalid(text, "input", "unknown_call")
    if message.text:
        text = "send the outputs of function calls alone; send the message after the response to them"
        raise invalid(text, "input", "unsupported_value")
    response_id = await answer_calls(
        services, principal, session_id, message.previous, message.outputs, message.options
    )
    envelope = await _stored_envelope(Log(services.bus), session_id, response_id.envelope)
    if envelope is None or not isinstance(envelope.metadata.get(REQUEST), dict):
        raise response_not_found(str(response_id))
    return response_of(response_id, envelope)


def _session_id(message: ApiMessage, principal: Principal) -> str:
    if message.conversation is not None:
        try:
            return check_conversation_id(message.conversation, "conversation")
        except AddressError as error:
            raise invalid(str(error), "conversation") from None
    if message.previous is not None:
        return message.previous.session
    return new_session_id(principal, message.key, uuid.uuid4().hex)


async def _find_session(
    services: Services, session_id: str, principal: Principal, message: ApiMessage
) -> Session | None:
    """The session, or `None` for a new one. A session of another owner is reported as unknown."""
    try:
        session = await services.sessions.get(session_id)
    except TopicDeleted:
        if message.previous is not None:
            raise previous_not_found(message.previous) from None
        if session_id == new_session_id(principal, message.key, ""):
            text = "the response to this Idempotency-Key was deleted, or not stored; take another key"
            raise invalid(text, None, "response_deleted", 410) from None
        raise invalid(f"the conversation {session_id[:80]!r} was deleted", "conversation", "deleted", 404) from None
    if session is not None and not principal.owns(session.owner):
        if message.previous is not None:
            raise previous_not_found(message.previous)
        text = f"there is no conversation {session_id[:80]!r}"
        raise invalid(text, "conversation", "conversation_not_found", 404)
    return session


async def _with_files(
    services: Services, principal: Principal, message: ApiMessage, envelope: MessageEnvelope, *, is_own: bool
) -> MessageEnvelope:
    """The envelope, which names the files that came inside the request. They belong to the session."""
    try:
        options, files = await store_files(services, principal, envelope.conversation_id, message.options)
    except (Problem, InvalidInput):
        if is_own:  # remove the files before the one that was refused
            await delete_files_in(Log(services.bus), envelope.conversation_id, scrub=False)
        raise
    if not files:
        return envelope
    changed = replace(message, options=options)
    named = _envelope(changed, envelope.conversation_id, principal, envelope.recipient, files)
    return named.model_copy(update={"id": envelope.id})


def _envelope(
    message: ApiMessage,
    session_id: str,
    principal: Principal,
    recipient: str,
    files: Sequence[FileAttachment] = (),
) -> MessageEnvelope:
    request = {
        "model": message.model,
        "previous_response_id": None if message.previous is None else str(message.previous),
        "background": message.background,
        "store": message.store,
        "with_tool_calls": message.with_tool_calls,
        "echo": message.echo,
    }
    options = message.options.payload()
    return MessageEnvelope(
        id=envelope_id_for(session_id, message.key),
        conversation_id=session_id,
        sender=principal.name,
        recipient=recipient,
        content=message.text,
        metadata={
            REQUEST: request,
            **({RUN_OPTIONS: options} if options else {}),
            **({ATTACHMENTS: [file.model_dump() for file in files]} if files else {}),
            **({} if message.key is None else {CLIENT_MESSAGE_ID: message.key}),
        },
    )


# --- which agent answers


async def model_names(services: Services) -> list[str]:
    """The names that `model` can have: agents that answer, of the roster or served by a worker, and scenarios."""
    await services.presence.ensure_fresh()
    names = services.catalogue.names
    return sorted({*names.agents, *services.presence.agents, *services.catalogue.roster.scenarios} - names.routing)


async def check_model(services: Services, model: str) -> None:
    """Raise a problem if no agent and no scenario has this name.

    An agent that a worker has served once remains known while no worker serves it: its messages wait.
    """
    known = await model_names(services)
    if model in known:
        return
    if is_name(model) and model not in services.catalogue.names.routing | INTERNAL_AGENTS:
        with suppress(UnknownAgent):  # a conversation has this name
            if await is_registered(Log(services.bus), model):
                return
    raise model_not_found(model, known)


async def _recipient(services: Services, model: str | None, session_id: str) -> str:
    """Who gets the message: the agent that the session makes active, or an agent that only a worker knows."""
    names = services.catalogue.names
    if model is None or model in services.catalogue.roster.scenarios or model in names.agents - names.routing:
        return f"chat:{session_id}"
    await check_model(services, model)
    return f"agent:{model}"


async def _configure(
    services: Services,
    principal: Principal,
    session_id: str,
    session: Session | None,
    message: ApiMessage,
    recipient: str,
) -> None:
    """Create the session, or make the agent active that `model` names."""
    if session is None:
        await check_new_id(services, session_id)
    if message.model is None:
        if session is None:
            raise invalid("name an agent or a scenario in 'model'", "model", "missing")
        return
    if recipient.startswith("agent:"):
        return
    change = _change(services, session, message.model)
    if session is not None and not change.takes_over and session.head.get("scenario_id") == change.scenario_id:
        return
    try:
        await services.sessions.configure(session_id, principal, change)
    except NameTaken as error:
        raise invalid(str(error), "conversation", "conversation_not_found", 404) from None


def _change(services: Services, session: Session | None, model: str) -> SessionChange:
    names, roster = services.catalogue.names, services.catalogue.roster
    active = None if session is None else session.active_agent
    own = None if session is None else session.head.get("scenario_id")
    if model in names.agents - names.routing:
        keys = [key for key in (own, roster.default, *roster.scenarios) if key is not None and key in roster.scenarios]
        scenario = next(roster.scenarios[key] for key in keys if model in roster.scenarios[key].agents)
        return SessionChange(model, scenario.id, takes_over=active != model)
    scenario = roster.scenarios[model]
    agent = active if own == model and active in scenario.agents else scenario.root
    return SessionChange(str(agent), model, takes_over=active != agent)


# --- the last response of a session


async def _check_state(
    services: Services, session: Session | None, message: ApiMessage, envelope_id: str
) -> tuple[Condition, ...]:
    """Refuse a message to a session that waits for outputs, or from a response that is not its last.

    Return the conditions that it still is.
    """
    if session is not None and session.head.get(PAUSED):
        await check_not_waiting(services, session.session_id)
    if session is not None and message.when_busy == "reject":
        # The delivery checks it too, but then `_configure` may have made another agent active.
        await _check_idle(Log(services.bus), session.session_id, envelope_id)
    return () if message.previous is None else (await _check_last(services, message.previous),)


async def _check_idle(log: Log, session_id: str, envelope_id: str) -> None:
    """Refuse a message to a busy session, unless it is a repeat of one that was accepted."""
    if await has_mail(log, session_id) and await log.find(chat_topic(session_id), envelope_id) is None:
        raise busy_error(session_id)


async def _check_last(services: Services, previous: ResponseId) -> LastSeqIs:
    """Refuse a response that is not the last of its session. Return the condition that it still is."""
    log, topic = Log(services.bus), chat_topic(previous.session)
    record = await log.find(topic, previous.envelope)
    if record is None or record.erased:
        raise previous_not_found(previous)
    if read_run_options(record.payload.get("metadata") or {}).tools:
        turn = await last_answered_turn(services, previous)
        if previous.turn != turn:
            raise _not_last(previous)
    last = record.seq
    while True:
        page: Page = await log.read(topic, last, LATER_MESSAGES_READ)
        if any(_is_message(later) for later in page.records):
            raise _not_last(previous)
        if not page.records or page.records[-1].seq >= page.last:
            return LastSeqIs(topic, page.last)
        last = page.records[-1].seq


def _is_message(record: Record) -> bool:
    """Whether a record of a conversation is a message that an agent answers, not one of an agent."""
    return not record.erased and not str(record.payload.get("sender", "")).startswith("agent:")


def _not_last(previous: ResponseId) -> Exception:
    text = (
        "previous_response_id: the session has gone on since this response; continue from its last response"
        " (a conversation cannot be forked yet)"
    )
    return invalid(text, "previous_response_id", "previous_response_not_last")


# --- finding a response again


async def find_response(services: Services, principal: Principal, text: str) -> ResponseMapping:
    """The response of an id, without any record yet. Raises a 404 problem if there is none that the caller may see."""
    try:
        response_id = ResponseId.parse(text)
        session = await services.sessions.get(response_id.session)
    except (BadId, TopicDeleted):
        raise response_not_found(text) from None
    if session is None or not principal.owns(session.owner):
        raise response_not_found(text)
    envelope = await _stored_envelope(Log(services.bus), response_id.session, response_id.envelope)
    if envelope is None or not isinstance(envelope.metadata.get(REQUEST), dict):
        raise response_not_found(text)
    return response_of(response_id, envelope)


async def _stored_envelope(log: Log, session_id: str, envelope_id: str) -> MessageEnvelope | None:
    record = await log.find(chat_topic(session_id), envelope_id)
    return None if record is None or record.erased else MessageEnvelope.model_validate(record.payload)


def response_of(response_id: ResponseId, envelope: MessageEnvelope) -> ResponseMapping:
    """The response to a stored message."""
    request: JsonMapping = envelope.metadata[REQUEST]
    options = read_run_options(envelope.metadata)
    facts: ResponseFacts = {
        "model": request["model"] or "",
        "created_at": int(envelope.created_at.timestamp()),
        "previous_response_id": request["previous_response_id"],
        "background": request["background"],
        "store": request["store"],
        "with_tool_calls": request["with_tool_calls"],
        "fields": {**request["echo"], **_shown_options(options, request["echo"])},
    }
    return ResponseMapping(response_id, facts)


def _shown_options(options: RunOptions, echo: JsonMapping) -> JsonObject:
    """The options of the run, as the response repeats them. They are stored once, for the run."""
    text: JsonObject = {"format": _shown_format(options.output_schema), **echo.get("text", {})}
    return {
        "instructions": options.instructions,
        "tools": [
            {
                "type": "function",
                "name": tool.name,
                "description": tool.description or None,
                "parameters": tool.parameters,
                "strict": tool.strict,
            }
            for tool in options.tools or ()
        ],
        "text": text,
    }


def _shown_format(schema: OutputSchema | None) -> JsonObject:
    if schema is None:
        return {"type": "text"}
    if not schema.strict and schema.json_schema == {"type": "object"}:
        return {"type": "json_object"}
    return {
        "type": "json_schema",
        "name": schema.name,
        "description": schema.description,
        "schema": schema.json_schema,
        "strict": schema.strict,
    }
