"""Additions to the OpenAPI document that FastAPI generates: errors, streams and credentials."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus

from magent2.gateway.problems import openai_error_type
from magent2.models.api.base import ProblemDocument
from magent2.models.api.messages import SendResponse
from magent2.models.envelope import MessageEnvelope
from magent2.models.json_types import JsonObject

PROBLEM_TYPE = "application/problem+json"
BEARER = "bearer"

EVENT_SCHEMA: JsonObject = {
    "type": "object",
    "description": "one event of the stream; `data` is JSON",
    "properties": {name: {"type": "string"} for name in ("id", "event", "data")},
}
EVENT_DATA_EXAMPLE = '{"event":"token","conversation_id":"s-1","text":"it is ","index":2,"seq":8}'
SEND_RESPONSE: JsonObject = {"model": SendResponse, "description": "Accepted, now or by an earlier request"}
EVENT_STREAM_RESPONSE: JsonObject = {
    "description": "Server-sent events: `id` is the seq, `event` the kind, `data` the record as JSON",
    "content": {
        "text/event-stream": {
            "schema": EVENT_SCHEMA,
            "example": {"id": "8", "event": "token", "data": EVENT_DATA_EXAMPLE},
        }
    },
}

# One example of an error for each status: code and detail. docs/http.md lists all codes.
PROBLEM_EXAMPLES: dict[int, tuple[str, str]] = {
    400: ("bad_json", "the body is not JSON: EOF while parsing an object at line 1 column 1"),
    401: ("unauthorized", "send the gateway's token or an API key as 'Authorization: Bearer TOKEN'"),
    403: ("foreign_origin", "pages of other origins may not call this gateway"),
    404: ("unknown_session", "there is no session 's-1'; create it first"),
    408: ("body_too_slow", "the body did not arrive within 30 s; send it again"),
    409: ("id_conflict", "the same id was used for another body; take another id"),
    410: ("conversation_deleted", "session 's-1' was deleted"),
    413: ("too_large", "a body takes at most 1114112 bytes"),
    414: ("target_too_long", "path and query take at most 32768 bytes"),
    415: ("not_json", "send JSON, with the header 'Content-Type: application/json'"),
    421: ("foreign_host", "unknown Host header; allow it with --allowed-host"),
    422: ("bad_envelope", "the body cannot be used: session_id: Field required"),
    429: ("rate_limited", "too many requests of the kind 'send'; try again in 1 s"),
    431: ("head_too_large", "the head of a request takes at most 65536 bytes and 100 headers"),
    501: ("needs_engine", "the bus behind this gateway has only 'publish' and 'read'; use an engine"),
    502: ("run_failed", "the run failed: the model did not answer"),
    504: ("timeout", "the run took longer than 600 s; use /v1/responses"),
    503: ("bus_unavailable", "the bus does not answer; try again"),
    507: ("storage_full", "the disk is full; make room and send the same body again"),
}


COMMON_ERRORS = (400, 408, 414, 421, 431)  # of the head of any request


def envelope_body() -> JsonObject:
    """Return the request body of `POST /send`: an envelope whose `sender` may be omitted."""
    schema = MessageEnvelope.model_json_schema()
    schema["title"] = "SendRequest"
    schema["required"].remove("sender")  # defaults to the caller's principal
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def problems(*statuses: int) -> dict[int | str, JsonObject]:
    """Return the error responses of a route, with those that every route can answer."""
    return {status: _problem_response(status) for status in sorted({*statuses, *COMMON_ERRORS})}


OPENAI_ERROR_SCHEMA: JsonObject = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "code": {"type": "string"},
            },
        }
    },
}
OPENAI_RESPONSE: JsonObject = {
    "description": "As OpenAI's API answers; with `stream`, server-sent events",
    "content": {"application/json": {"schema": {"type": "object"}}, "text/event-stream": {"schema": EVENT_SCHEMA}},
}


def openai_problems(*statuses: int) -> dict[int | str, JsonObject]:
    """Return the error responses of a route of `/v1`, in OpenAI's shape."""
    return {status: _openai_response(status) for status in sorted({*statuses, *COMMON_ERRORS})}


def _openai_response(status: int) -> JsonObject:
    code, detail = PROBLEM_EXAMPLES[status]
    error = {"message": detail, "type": openai_error_type(status), "param": None, "code": code}
    content = {"schema": OPENAI_ERROR_SCHEMA, "example": {"error": error}}
    return {"description": HTTPStatus(status).phrase, "content": {"application/json": content}}


def _problem_response(status: int) -> JsonObject:
    code, detail = PROBLEM_EXAMPLES[status]
    phrase = HTTPStatus(status).phrase
    document = {"type": f"/problems/{code}", "title": phrase, "status": status, "detail": detail, "code": code}
    content = {"schema": {"$ref": "#/components/schemas/ProblemDocument"}, "example": document}
    return {"description": phrase, "content": {PROBLEM_TYPE: content}}


def complete(document: JsonObject, is_open: Callable[[str], bool]) -> None:
    """Add the schema of errors, the names of request bodies, and the credential that each route needs."""
    components = document.setdefault("components", {})
    schemas = components.setdefault("schemas", {})
    schemas[ProblemDocument.__name__] = ProblemDocument.model_json_schema()
    description = "the gateway's token (`magent2 token show`), or a key (`magent2 keys create`)"
    components["securitySchemes"] = {BEARER: {"type": "http", "scheme": "bearer", "description": description}}
    for path, operations in document["paths"].items():
        for operation in operations.values():
            operation["security"] = [] if is_open(path) else [{BEARER: []}]
            _name_body(operation, schemas)
    for schema in schemas.values():
        if "examples" in schema:
            schema["examples"] = [_with_nulls(schema, example, schemas) for example in schema["examples"]]


def _name_body(operation: JsonObject, schemas: JsonObject) -> None:
    """Move the schema of a request body to the components, under its title, so that generated clients name it."""
    for content in operation.get("requestBody", {}).get("content", {}).values():
        schema = content["schema"]
        if "title" in schema:
            content["schema"] = {"$ref": f"#/components/schemas/{schema['title']}"}
            schemas[schema["title"]] = {name: part for name, part in schema.items() if name != "$defs"}
            schemas.update(schema.get("$defs", {}))


def _with_nulls(schema: JsonObject, value: object, schemas: JsonObject) -> object:
    """Restore the nulls of an example, which FastAPI drops. Without them it does not match its own schema."""
    schema = schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
    if isinstance(value, list):
        return [_with_nulls(schema.get("items", {}), item, schemas) for item in value]
    if not isinstance(value, dict) or "properties" not in schema:
        return value
    names = {*value, *schema.get("required", ())}
    properties = schema["properties"].items()
    return {name: _with_nulls(part, value.get(name), schemas) for name, part in properties if name in names}
