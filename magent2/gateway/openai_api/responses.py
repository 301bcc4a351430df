"""`/v1/responses…` and `/v1/models…`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import Response

from magent2.bus.log import Log
from magent2.bus.records import Record
from magent2.errors import TopicDeleted
from magent2.gateway.instrumentation import add_audit_ids
from magent2.gateway.openai_api.errors import invalid, response_not_found, unsupported
from magent2.gateway.openai_api.files import shown_file_part
from magent2.gateway.openai_api.ids import BadId, ResponseId
from magent2.gateway.openai_api.mapping import ResponseMapping
from magent2.gateway.openai_api.messages import (
    IDEMPOTENCY_KEY_MAX_CHARS,
    ApiMessage,
    check_model,
    find_response,
    forget_response,
    model_names,
    post_message,
)
from magent2.gateway.openai_api.requests import (
    TOOL_CALLS_INCLUDED,
    ParsedInput,
    ResponseRequest,
    parse_input,
    parse_request,
)
from magent2.gateway.openai_api.streams import ResponseStream
from magent2.gateway.openapi import OPENAI_RESPONSE, openai_problems
from magent2.gateway.routes.dependencies import (
    ACCESS_ERRORS,
    BODY_ERRORS,
    caller,
    json_body,
    json_response,
)
from magent2.gateway.services import Services, services_of
from magent2.mail.delivery import SendOptions, find_mail
from magent2.mail.headers import RUN_ENVELOPE, RUN_STATUS, RUNNING, STOP
from magent2.models.address import chat_topic
from magent2.models.envelope import MessageEnvelope
from magent2.models.json_types import JsonObject
from magent2.models.principal import Principal
from magent2.models.run_options import FILE_PARTS, read_run_options

OPENAI_API = "/v1"
INPUT_ITEMS_LISTED_MAX = 100
STARTED_AT = int(time.time())
Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=IDEMPOTENCY_KEY_MAX_CHARS)]


class ResponseOutcome:
    """Ends a wait when the response is over; see `OutcomeReader`."""

    def __init__(self, mapping: ResponseMapping) -> None:
        self.mapping = mapping

    @property
    def status(self) -> str | None:
        if not self.mapping.is_over:
            return None
        return "finished" if self.mapping.status == "completed" else self.mapping.status

    @status.setter
    def status(self, value: str | None) -> None:
        raise AttributeError("the status follows from the records")

    def take(self, record: Record) -> None:
        self.mapping.take(record)


async def wait_for_response(services: Services, mapping: ResponseMapping, max_s: float) -> bool:
    """Read the records of a response until it is over. Return whether it is."""
    return await services.replies.wait(mapping.id.session, mapping.id.seq - 1, ResponseOutcome(mapping), max_s)


router = APIRouter(prefix=OPENAI_API, tags=["openai"])


@router.post(
    "/responses",
    operation_id="create_response",
    response_class=Response,
    responses={200: OPENAI_RESPONSE, **openai_problems(*ACCESS_ERRORS, *BODY_ERRORS, 404, 409, 410, 501, 507)},
    openapi_extra=json_body(ResponseRequest),
)
async def create(request: Request, idempotency_key: Key = None) -> Response:
    """Create a response, as OpenAI's API does. `model` is an agent or a scenario."""
    services = services_of(request)
    body = await parse_request(request, services, ResponseRequest)
    body.check()
    continues = body.conversation is not None or body.previous_response_id is not None
    parsed = parse_input(body.input, continues=continues)
    principal = caller(request)
    add_audit_ids(request.scope, model=body.model, conversation=body.conversation_id)
    message = _message(body, parsed, idempotency_key)
    mapping = await post_message(services, principal, message)
    add_audit_ids(request.scope, session_id=mapping.id.session, envelope_id=mapping.id.envelope)

    async def forget() -> None:
        await forget_response(services, message, mapping.id)

    if body.stream:
        return ResponseStream(services.bus, services.streams, mapping, at_end=forget)
    if await wait_for_response(services, mapping, 0.0 if body.background else services.limits.response_wait_max_s):
        await forget()
    return json_response(mapping.response())


def _message(body: ResponseRequest, parsed: ParsedInput, key: str | None) -> ApiMessage:
    previous: ResponseId | None = None
    try:
        if body.previous_response_id is not None:
            previous = ResponseId.parse(body.previous_response_id)
        elif body.conversation is None and parsed.refers_to is not None:
            previous = ResponseId.of_item(parsed.refers_to)
    except BadId as error:
        param = "previous_response_id" if body.previous_response_id is not None else "input"
        raise invalid(str(error), param, "previous_response_not_found", 404) from None
    options = body.run_options(parsed.items)
    if body.when_busy == "steer" and options.payload():
        text = "'when_busy': 'steer' adds the message to a run in progress, which has its own options; give text only"
        raise invalid(text, "when_busy", "unsupported_value")
    return ApiMessage(
        model=body.model,
        text=parsed.text,
        options=options,
        echo=body.echo(),
        key=key,
        conversation=body.conversation_id,
        previous=previous,
        background=body.background,
        store=body.store,
        with_tool_calls=TOOL_CALLS_INCLUDED in body.include,
        outputs=parsed.outputs,
        when_busy=body.when_busy,
    )


ONE_RESPONSE = {200: OPENAI_RESPONSE, **openai_problems(*ACCESS_ERRORS, 404, 409, 410, 422, 501, 507)}


@router.get("/responses/{response_id}", operation_id="get_response", response_class=Response, responses=ONE_RESPONSE)
async def show(
    response_id: str,
    request: Request,
    stream: bool = False,
    starting_after: Annotated[int | None, Query(ge=0, description="the last `sequence_number` seen")] = None,
) -> Response:
    """Return a response, or follow it from any of its events on."""
    services = services_of(request)
    check_query(request, "stream", "starting_after")
    if starting_after is not None and not stream:
        raise invalid("'starting_after' is for streams; add stream=true", "starting_after")
    mapping = await find_response(services, caller(request), response_id)
    if stream:
        after = -1 if starting_after is None else starting_after
        return ResponseStream(services.bus, services.streams, mapping, after)
    return json_response((await _read(services, mapping)).response())


@router.post(
    "/responses/{response_id}/cancel",
    operation_id="cancel_response",
    response_class=Response,
    responses=ONE_RESPONSE,
)
async def cancel(response_id: str, request: Request) -> Response:
    """Stop the run of a response. A response that is over stays as it is.

    One that waits behind another run of its session is cancelled when its turn comes.
    """
    services = services_of(request)
    principal = caller(request)
    mapping = await find_response(services, principal, response_id)
    await _read(services, mapping)
    if not mapping.is_over:
        wait_s = services.limits.wait_max_s if await _stop(services, principal, mapping) else 0.0
        mapping = await find_response(services, principal, response_id)  # to be read from its beginning
        await wait_for_response(services, mapping, wait_s)
    return json_response(mapping.response())


@router.delete(
    "/responses/{response_id}", operation_id="delete_response", response_class=Response, responses=ONE_RESPONSE
)
async def delete(response_id: str, request: Request) -> Response:
    """Delete a response with its session, if the session has no other message."""
    services = services_of(request)
    mapping = await find_response(services, caller(request), response_id)
    await _check_only_message(services, mapping.id)
    await services.sessions.delete(mapping.id.session)
    return json_response({"id": response_id, "object": "response", "deleted": True})


@router.get(
    "/responses/{response_id}/input_items",
    operation_id="list_input_items",
    response_class=Response,
    responses=ONE_RESPONSE,
)
async def input_items(
    response_id: str,
    request: Request,
    limit: Annotated[int, Query(ge=1, le=INPUT_ITEMS_LISTED_MAX)] = 20,
    order: Annotated[str, Query(pattern="^(asc|desc)$")] = "desc",
    after: Annotated[str | None, Query()] = None,
) -> Response:
    """List the input items of a response, newest first unless `order` says otherwise."""
    services = services_of(request)
    check_query(request, "limit", "order", "after")
    mapping = await find_response(services, caller(request), response_id)
    items = await _input_items(services, mapping.id)
    return json_response(_item_page(items, limit, order, after))


def check_query(request: Request, *known: str) -> None:
    """Refuse parameters of the query that would have no effect. OpenAI's clients write lists as `include[]`."""
    for name, value in request.query_params.items():
        param = name.partition("[")[0]
        if param == "include":
            raise unsupported(param, "give 'include' when the response is created")
        if param not in known and (param, value) != ("include_obfuscation", "false"):
            raise invalid(f"unknown parameter: {param[:80]!r}", param[:80], "unknown_parameter")


async def _read(services: Services, mapping: ResponseMapping) -> ResponseMapping:
    try:
        await wait_for_response(services, mapping, 0.0)
    except TopicDeleted:
        raise response_not_found(str(mapping.id)) from None
    if not mapping.found:
        raise response_not_found(str(mapping.id))
    return mapping


async def _stop(services: Services, principal: Principal, mapping: ResponseMapping) -> bool:
    """Send a stop to the run that answers the message, or that would. Return whether it can take effect now.

    A message that waits behind another run is stopped when its turn comes.
    """
    found = await _run_of(services, mapping)
    if found is None:
        return True  # it has just ended
    agent, envelope_id = found
    session = await services.sessions.get(mapping.id.session)
    head = {} if session is None else session.head
    command = MessageEnvelope(
        conversation_id=mapping.id.session,
        sender=principal.name,
        recipient=f"agent:{agent}",
        type="control",
        content=STOP,
    )
    await services.sessions.post(command, SendOptions(principal=principal.bound, target=envelope_id))
    return head.get(RUN_STATUS) != RUNNING or head.get(RUN_ENVELOPE) == envelope_id


async def _run_of(services: Services, mapping: ResponseMapping) -> tuple[str, str] | None:
    """The agent and the message of the run that answers this one: its own, or one that it has joined as a steer."""
    if mapping.run_id is not None:
        run = (await services.histories.read(mapping.id.session)).runs.get(mapping.run_id)
        return None if run is None else (run.agent, str(run.envelope["id"]))
    log = Log(services.bus)
    session = await services.sessions.get(mapping.id.session)
    active = None if session is None else session.active_agent
    for agent in dict.fromkeys((active, *await model_names(services))):
        if agent and await find_mail(log, chat_topic(agent), mapping.id.session, mapping.id.envelope):
            return agent, mapping.id.envelope
    return None


async def _check_only_message(services: Services, response_id: ResponseId) -> None:
    log = Log(services.bus)
    (info,) = await log.describe(chat_topic(response_id.session))
    page = await log.read(chat_topic(response_id.session), info.floor, 100)
    others = [
        record
        for record in page.records
        if record.id != response_id.envelope and not str(record.payload.get("sender", "")).startswith("agent:")
    ]
    if others or page.last > (page.records[-1].seq if page.records else page.last):
        text = (
            "the session of this response has other messages, which would be deleted too;"
            f" delete the session {response_id.session!r} instead (DELETE /api/sdk/session/…)"
        )
        raise invalid(text, "response_id", "session_has_other_responses", 409)


async def _input_items(services: Services, response_id: ResponseId) -> list[JsonObject]:
    record = await Log(services.bus).find(chat_topic(response_id.session), response_id.envelope)
    if record is None or record.erased:
        raise response_not_found(str(response_id))
    options = read_run_options(record.payload.get("metadata") or {})
    given = options.input or [{"role": "user", "content": record.payload.get("content") or ""}]
    return [_shown_item(response_id, place, item) for place, item in enumerate(given)]


def _shown_item(response_id: ResponseId, place: int, item: Mapping[str, object]) -> JsonObject:
    kind = item.get("type", "message")
    prefix = "msg_" if kind == "message" else "fc_"
    shown: JsonObject = {"id": response_id.item(prefix, f"in-{place}"), "type": kind, "status": "completed", **item}
    content = item.get("content")
    if isinstance(content, str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        shown["content"] = [{"type": part, "text": content, **({"annotations": []} if part == "output_text" else {})}]
    elif isinstance(content, list):
        shown["content"] = [shown_file_part(part) if part.get("type") in FILE_PARTS else part for part in content]
    return shown


def _item_page(items: list[JsonObject], limit: int, order: str, after: str | None) -> JsonObject:
    ordered = items if order == "asc" else items[::-1]
    if after is not None:
        places = [place for place, item in enumerate(ordered) if item["id"] == after]
        if not places:
            raise invalid("'after' is not the id of an input item of this response", "after")
        ordered = ordered[places[0] + 1 :]
    shown = ordered[:limit]
    return {
        "object": "list",
        "data": shown,
        "first_id": shown[0]["id"] if shown else None,
        "last_id": shown[-1]["id"] if shown else None,
        "has_more": len(ordered) > limit,
    }


@router.get(
    "/models",
    operation_id="list_models",
    response_class=Response,
    responses={200: OPENAI_RESPONSE, **openai_problems(*ACCESS_ERRORS)},
)
async def models(request: Request) -> Response:
    """List the models: the agents that answer, and the scenarios."""
    services = services_of(request)
    return json_response({"object": "list", "data": [_model(name) for name in await model_names(services)]})


@router.get(
    "/models/{model:path}",
    operation_id="get_model",
    response_class=Response,
    responses={200: OPENAI_RESPONSE, **openai_problems(*ACCESS_ERRORS, 404, 422)},
)
async def model(request: Request, model: str) -> Response:
    """Return a model."""
    services = services_of(request)
    await check_model(services, model)
    return json_response(_model(model))


def _model(name: str) -> JsonObject:
    return {"id": name, "object": "model", "created": STARTED_AT, "owned_by": "magent2"}
