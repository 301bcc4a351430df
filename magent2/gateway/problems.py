"""Errors as problem documents (RFC 9457), each with a stable code."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from magent2 import errors
from magent2.bus.v1_adapter import EngineRequired
from magent2.failures import Failure, log_failure, text_for_users
from magent2.gateway.limits import RETRY_AFTER_S
from magent2.gateway.proxy import route_path
from magent2.gateway.streaming.sse import BadCursor, UnknownKind

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
FAULTS_MAX = 20  # faults of one body that are reported
RETRY_HEADERS = {"retry-after": str(RETRY_AFTER_S)}
PROBLEM_CODE = "magent2.problem"  # scope key: the code of the problem that answered the request


# The type of an error in OpenAI's shape, where the status alone does not say it
_OPENAI_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def openai_error_type(status: int) -> str:
    """The type of an error in OpenAI's shape."""
    return _OPENAI_TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")


def is_openai_path(path: str) -> bool:
    return path == "/v1" or path.startswith("/v1/")


class ProblemResponse(Response):
    """A problem document. It notes its code in the scope, for metrics and spans."""

    code = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[PROBLEM_CODE] = self.code
        await super().__call__(scope, receive, send)


class Problem(errors.Magent2Error):
    """An error with the status, code and text that the client gets. `fields` are added to the document."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        headers: Mapping[str, str] | None = None,
        *,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.headers = dict(headers or {})
        self.fields = dict(fields or {})
        self.failure_id: str | None = None  # what the log names the failure, if its cause is hidden from the client

    @classmethod
    def failed(cls, status: int, code: str, what: str, error: BaseException) -> Problem:
        """The problem of a failure that a client can only report: its text has a failure id, the log has the cause."""
        failure = Failure.hidden(error, what)
        headers = RETRY_HEADERS if status in (503, 507) else None
        problem = cls(status, code, failure.text, headers)
        problem.failure_id, problem.__cause__ = failure.id, error
        return problem

    @classmethod
    def draining(cls) -> Problem:
        return cls(503, "draining", "the gateway is shutting down; retry against another instance", RETRY_HEADERS)

    @classmethod
    def unauthorized(cls) -> Problem:
        detail = (
            "send the gateway's token or an API key as 'Authorization: Bearer TOKEN';"
            " 'magent2 token show' prints the token, 'magent2 keys create' creates a key"
        )
        return cls(401, "unauthorized", detail, {"www-authenticate": "Bearer"})

    @classmethod
    def admins_only(cls) -> Problem:
        return cls(403, "admin_only", "this route needs the gateway's token or a key with the scope 'admin'")

    @classmethod
    def foreign_host(cls) -> Problem:
        detail = "unknown Host header; allow it with --allowed-host"
        return cls(421, "foreign_host", detail)

    @classmethod
    def too_many_streams(cls, limit: int) -> Problem:
        return cls(
            503, "too_many_streams", f"the limit of {limit} open streams is reached; try again later", RETRY_HEADERS
        )

    @classmethod
    def too_many_of_yours(cls, limit: int) -> Problem:
        detail = f"your limit of {limit} open streams is reached; close one first"
        return cls(429, "too_many_streams", detail, RETRY_HEADERS)

    @classmethod
    def body_too_slow(cls, limit_s: float) -> Problem:
        return cls(
            408,
            "body_too_slow",
            f"the body did not arrive within {limit_s:g} s; send it again",
            {"connection": "close"},
        )

    def document(self, root: str = "") -> dict[str, object]:
        """Return the RFC 9457 document. `root` is the root path, which `type` begins with."""
        return {
            "type": f"{root}/problems/{self.code}",
            "title": HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            **self.fields,
        }

    def openai_error(self) -> dict[str, object]:
        """Return the error in the shape of OpenAI's API."""
        faults = self.fields.get("errors")
        param = self.fields.get("param")
        if isinstance(faults, list) and faults:
            param = str(faults[0]["where"]).removeprefix("query.").removeprefix("header.")
        error = {"message": self.detail, "type": openai_error_type(self.status), "param": param, "code": self.code}
        return {"error": error}

    def answer(self, scope: Scope) -> Response:
        """Return the response: a problem document, or under `/v1` an error in OpenAI's shape."""
        if not is_openai_path(route_path(scope)):
            return self.response(str(scope.get("root_path", "")))
        # OpenAI's clients repeat a 409 by themselves, which would be refused again.
        headers = {**self.headers, "x-should-retry": "false"} if self.status == 409 else self.headers
        answer = ProblemResponse(orjson.dumps(self.openai_error()), self.status, headers, "application/json")
        answer.code = self.code
        return answer

    def response(self, root: str = "") -> Response:
        answer = ProblemResponse(orjson.dumps(self.document(root)), self.status, self.headers, MEDIA_TYPE)
        answer.code = self.code
        return answer


# Status and code by error. The first class that matches is used, so subclasses come before their bases.
_BY_ERROR: tuple[tuple[type[errors.Magent2Error], int, str], ...] = (
    (BadCursor, 422, "bad_cursor"),
    (UnknownKind, 422, "unknown_kind"),
    (errors.PayloadTooLarge, 413, "too_large"),
    (errors.AddressError, 422, "bad_address"),
    (errors.IdError, 422, "bad_id"),
    (errors.UnknownScenario, 422, "unknown_scenario"),
    (errors.UnknownAgent, 422, "unknown_agent"),
    (errors.ArgumentsError, 422, "bad_arguments"),
    (errors.TextTooLong, 422, "too_long"),
    (errors.UnsupportedFile, 415, "unsupported_file"),
    (errors.FileTooLarge, 413, "file_too_large"),
    (errors.FilesFull, 413, "files_full"),
    (errors.WebhooksFull, 409, "webhooks_full"),
    (errors.InvalidInput, 422, "invalid"),
    (errors.IdConflict, 409, "id_conflict"),
    (errors.NameTaken, 409, "name_taken"),
    (errors.NotYours, 404, "unknown_conversation"),
    (errors.NoActiveRun, 409, "no_active_run"),
    (errors.ConversationBusy, 409, "busy"),
    (errors.NotSupersedable, 409, "not_supersedable"),
    (errors.QueueFull, 429, "queue_full"),
    (errors.UnknownFile, 404, "unknown_file"),
    (errors.UnknownSchedule, 404, "unknown_schedule"),
    (errors.ScheduleEnded, 409, "schedule_ended"),
    (errors.UnknownEntity, 404, "unknown_entity"),
    (errors.UnknownCall, 404, "unknown_call"),
    (errors.AlreadyDecided, 409, "already_decided"),
    (errors.UnknownCursor, 410, "cursor_gone"),
    (errors.Refused, 409, "refused"),
    (errors.TopicDeleted, 410, "conversation_deleted"),
    (errors.TransientError, 503, "bus_unavailable"),
    (EngineRequired, 501, "needs_engine"),
    (errors.StorageFull, 507, "storage_full"),
    (errors.StorageError, 503, "storage_unusable"),
)


# What a client gets in place of an error whose text names paths and servers
_HIDDEN = {
    "bus_unavailable": "the bus does not answer; try again later",
    "storage_full": "the storage is full; free some space",
    "storage_unusable": "the storage cannot be used",
}


def problem_of(error: errors.Magent2Error) -> Problem:
    """Convert an error to the problem that the client gets."""
    if isinstance(error, Problem):
        return error
    for kind, status, code in _BY_ERROR:
        if isinstance(error, kind):
            text = text_for_users(error)
            if text is None:
                return Problem.failed(status, code, _HIDDEN.get(code, "the request failed"), error)
            return Problem(status, code, text, RETRY_HEADERS if status in (429, 503, 507) else None)
    return internal_error(error)


def logged_problem(error: errors.Magent2Error) -> Problem:
    """Convert an error, and log it if the client did not cause it."""
    problem = problem_of(error)
    if problem.status >= 500:
        facts = {"code": problem.code, "failure_id": problem.failure_id}
        log_failure(log, logging.WARNING, "request failed", error, facts, with_traceback=False)
    return problem


def bad_body(error: ValidationError) -> Problem:
    """Return the problem of a body that is not JSON or does not match its schema."""
    faults = error.errors(include_url=False, include_context=False, include_input=False)
    if faults[0]["type"] == "json_invalid":
        return Problem(400, "bad_json", f"the body is not JSON: {faults[0]['msg']}")
    return _invalid("bad_envelope", "the envelope", faults)


def _invalid(code: str, subject: str, faults: Sequence[Mapping[str, Any]]) -> Problem:
    shown = [{"where": ".".join(map(str, fault["loc"])), "what": fault["msg"]} for fault in faults[:FAULTS_MAX]]
    detail = f"{subject} cannot be used: {shown[0]['where']}: {shown[0]['what']}"
    return Problem(422, code, detail, fields={"errors": shown})


def _allowed_methods(app: FastAPI, scope: Scope) -> str:
    """Return the methods of all routes with the path of a request. Starlette names those of the first one only."""
    found = (route for route in app.routes if route.matches({**scope, "method": ""})[0] is not Match.NONE)
    return ", ".join(sorted({method for route in found for method in getattr(route, "methods", None) or ()}))


async def answer_unexpected_error(request: Request, error: Exception) -> Response:
    return logged_problem(internal_error(error)).answer(request.scope)  # the server logs the traceback


def install(app: FastAPI, note: Callable[[errors.Magent2Error], None]) -> None:
    """Make the application answer every error with a problem document. `note` is called with each error of ours."""

    async def on_own_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, errors.Magent2Error):
            return await answer_unexpected_error(request, error)
        note(error)
        return logged_problem(error).answer(request.scope)

    async def on_bad_parameters(request: Request, error: Exception) -> Response:
        faults = error.errors() if isinstance(error, RequestValidationError) else []
        return _invalid("bad_parameter", "the request", list(faults)).answer(request.scope)

    async def on_http_error(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            return await answer_unexpected_error(request, error)
        problem = _of_http(error)
        if problem.status == 405:
            problem.headers["allow"] = _allowed_methods(app, request.scope)
        return problem.answer(request.scope)

    app.add_exception_handler(errors.Magent2Error, on_own_error)
    app.add_exception_handler(RequestValidationError, on_bad_parameters)
    app.add_exception_handler(HTTPException, on_http_error)
    app.add_exception_handler(Exception, answer_unexpected_error)


def internal_error(error: BaseException) -> Problem:
    return Problem.failed(500, "internal", "the gateway failed", error)


_HTTP_PROBLEMS = {
    404: ("not_found", "there is no such route; GET /openapi.json lists all routes; write a slash in an id as %2F"),
    405: ("method_not_allowed", "this path has other methods; the Allow header lists them"),
}


def _of_http(error: HTTPException) -> Problem:
    code, detail = _HTTP_PROBLEMS.get(error.status_code, ("http_error", str(error.detail)))
    return Problem(error.status_code, code, detail)
