"""What the routes of `/api` share: body parsing, the caller's session, responses and documented errors."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Literal, TypeVar

import orjson
from fastapi import Header, Path, Query, Request
from pydantic import BaseModel, ValidationError
from starlette.responses import Response

import magent2.gateway.paths  # noqa: F401  registers the convertors in the paths of routes
from magent2.bus.log import Log
from magent2.bus.operations import OLDEST
from magent2.errors import UnknownAgent
from magent2.gateway.access.auth import principal_of
from magent2.gateway.limits.http import check_json, check_json_values, read_body
from magent2.gateway.problems import Problem, bad_body
from magent2.gateway.services import Services
from magent2.gateway.streaming.sse import CURSOR_PATTERN, parse_cursor
from magent2.mail.addressing import name_taken_error
from magent2.models.address import NAME_MAX_CHARS, NAME_PATTERN, check_name, stream_topic
from magent2.models.json_types import JsonObject
from magent2.models.principal import Principal
from magent2.sessions.store import Session

B = TypeVar("B", bound=BaseModel)

API = "/api"  # prefix of all routes except those of DESIGN 10
# Patterns are for documents only: the errors of `check_name` and `parse_cursor` say more than that of a pattern.
NAME_SCHEMA: JsonObject = {"pattern": NAME_PATTERN}
CURSOR_SCHEMA: JsonObject = {"pattern": CURSOR_PATTERN}
SessionId = Annotated[str, Path(min_length=1, max_length=NAME_MAX_CHARS, json_schema_extra=NAME_SCHEMA)]
Since = Annotated[str | None, Query(max_length=64, description="after this seq", json_schema_extra=CURSOR_SCHEMA)]
LastEventId = Annotated[str | None, Header(json_schema_extra=CURSOR_SCHEMA)]
ResponseFormat = Annotated[
    Literal["api", "record"],
    Query(alias="format", description="`record`: as it is stored, with the field names of the log"),
]

# Statuses of errors, for the OpenAPI document.
ACCESS_ERRORS = (401, 403, 429, 503)  # of every route
SESSION_ERRORS = (404, 410)  # of a session that does not exist or is not the caller's
BODY_ERRORS = (400, 408, 413, 415, 422)


def caller(request: Request) -> Principal:
    return principal_of(request.scope)


async def admins_only(request: Request) -> None:  # asynchronous: FastAPI would call it on a thread
    if not caller(request).admin:
        raise Problem.admins_only()


async def parse_body(request: Request, services: Services, shape: type[B], *, may_be_empty: bool = False) -> B:
    """Parse the body of a request. With `may_be_empty`, an empty body is a model with default values."""
    if not may_be_empty:
        check_json(request.scope)
    body = await read_body(request.scope, request.receive, services.limits)
    if may_be_empty:
        if not body:
            return shape()
        check_json(request.scope)
    try:
        parsed = shape.model_validate_json(body)
    except ValidationError as error:
        check_json_values(body)
        raise bad_body(error) from None
    check_json_values(body)
    return parsed


def json_body(shape: type[BaseModel], *, required: bool = True) -> JsonObject:
    """Return the request body for the OpenAPI document."""
    return {"requestBody": {"required": required, "content": {"application/json": {"schema": _schema(shape)}}}}


@lru_cache
def _schema(shape: type[BaseModel]) -> JsonObject:
    return shape.model_json_schema(ref_template="#/components/schemas/{model}")


def json_response(body: Mapping[str, object], status: int = 200) -> Response:
    """Encode a response that is not a model: its events are encoded as they are, without validation."""
    return Response(orjson.dumps(body), status, media_type="application/json")


async def get_session(services: Services, session_id: str, principal: Principal) -> Session:
    """Return the session. A session of another owner is reported as unknown."""
    session = await services.sessions.get(check_name(session_id, "session id"))
    if session is None or not principal.owns(session.owner):
        raise unknown_session(session_id)
    return session


def unknown_session(session_id: str) -> Problem:
    return Problem(404, "unknown_session", f"there is no session {session_id[:80]!r}; create it first")


async def check_new_id(services: Services, conversation: str) -> None:
    """Raise `NameTaken` for a new conversation that is called like an agent of the agents file.

    A worker registers its agents on the log, and the delivery checks that. An agent that was never started has no
    registration: without this check a conversation could take its name for ever.
    """
    if conversation not in services.catalogue.names.reserved:
        return
    (stream,) = await Log(services.bus).describe(stream_topic(conversation))
    if not stream.last and not stream.head:
        raise name_taken_error(conversation)


def is_known_agent(services: Services, name: str) -> bool:
    """Return whether the roster has an agent or a worker serves it. If not, it may still be registered on the log.

    Raises a problem for an agent that only routes.
    """
    check_answers(services, name)
    return name in services.catalogue.names.agents or name in services.presence


def unknown_agent(services: Services, name: str) -> UnknownAgent:
    names = services.catalogue.names
    known = ", ".join(sorted(names.agents - names.routing)) or "none"
    return UnknownAgent(f"there is no agent {name[:80]!r}; known agents: {known}")


def check_answers(services: Services, name: str) -> None:
    """Raise a problem for an agent that only chooses which other agent answers."""
    names = services.catalogue.names
    if name in names.routing:
        others = ", ".join(sorted(names.agents - names.routing))
        detail = f"agent {name!r} only chooses which agent answers; name one that answers: {others}"
        raise Problem(422, "routing_agent", detail)


def scenario_id_of(session: Session) -> str | None:
    found = session.head.get("scenario_id")
    return found if isinstance(found, str) else None


def parse_since(since: str | None) -> int:
    return OLDEST if since is None else parse_cursor(since)


def check_text(text: str, services: Services, *, may_be_blank: bool = False) -> str:
    if not text.strip() and not may_be_blank:
        raise Problem(422, "blank", "a message needs some text in 'user_input'")
    if len(text) > services.limits.text_max_chars:
        limit = services.limits.text_max_chars
        raise Problem(422, "too_long", f"a text has at most {limit} characters, not {len(text)}")
    return text
