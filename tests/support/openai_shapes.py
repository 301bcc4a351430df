"""Checks bodies and events of `/v1` against the published types: those of Open Responses, and OpenAI's for the rest."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import openresponses_types as types
from openai.types import Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import ResponseFormatTextJSONSchemaConfig
from openai.types.responses.response_item_list import ResponseItemList
from openresponses_types import types as all_types
from pydantic import BaseModel, ConfigDict
from starlette.types import ASGIApp, Message, Receive, Scope, Send


def _event_models() -> dict[str, type[BaseModel]]:
    found: dict[str, type[BaseModel]] = {}
    for name in dir(all_types):
        model = getattr(all_types, name)
        if name.endswith("StreamingEvent") and isinstance(model, type) and issubclass(model, BaseModel):
            annotation: Any = model.model_fields["type"].annotation
            found[next(iter(annotation)).value] = model
    return found


EVENTS = _event_models()


def check_response(body: dict[str, Any]) -> None:
    """Raise if the body is not a response object. Items with our prefix are extensions that the types do not model.

    The published types allow no schema in `text.format`, although a response repeats that of its request. So a format
    with a schema is compared with OpenAI's own type.
    """
    shown = {**body, "output": own_items_left_out(body["output"])}
    if body["text"]["format"].get("schema") is not None:
        ResponseFormatTextJSONSchemaConfig.model_validate(body["text"]["format"])
        shown["text"] = {**body["text"], "format": {**body["text"]["format"], "schema": None}}
    types.ResponseResource.model_validate(shown)


def check_event(event: dict[str, Any]) -> None:
    """Raise if the event is not one of the protocol."""
    if "response" in event:
        check_response(event["response"])
        event = {**event, "response": {**event["response"], "output": []}}
    if not str(event.get("item", {}).get("type", "")).startswith("magent2:"):
        EVENTS[event["type"]].model_validate(event)


def own_items_left_out(output: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [item for item in output if not item["type"].startswith("magent2:")]


# --- all that a server sends


class StrictError(BaseModel):
    """The error in OpenAI's shape. All four fields are there."""

    model_config = ConfigDict(extra="forbid", strict=True)
    message: str
    type: str
    param: str | None
    code: str | None


class Deleted(BaseModel):
    """The answer to `DELETE /v1/responses/{id}`."""

    model_config = ConfigDict(extra="forbid", strict=True)
    id: str
    object: str
    deleted: bool


def check_error(body: dict[str, Any]) -> None:
    assert body.keys() == {"error"}
    StrictError.model_validate(body["error"])


def _check_models(body: dict[str, Any]) -> None:
    for model in body["data"] if body["object"] == "list" else [body]:
        Model.model_validate(model, strict=True)


# By method and path: the name of what is sent, and its check.
BODIES: tuple[tuple[str, str, Callable[[dict[str, Any]], object]], ...] = (
    (r"POST /v1/chat/completions", "completion", ChatCompletion.model_validate),
    (r"GET /v1/models.*", "models", _check_models),
    (r"GET /v1/responses/[^/]+/input_items", "input items", ResponseItemList.model_validate),
    (r"DELETE /v1/responses/[^/]+", "deleted", Deleted.model_validate),
    (r"POST /v1/responses(/[^/]+/cancel)?|GET /v1/responses/[^/]+", "response", check_response),
)


class CheckedAnswers:
    """Middleware of a server that checks whatever it sends under `/v1`, whichever client has asked.

    It looks at the bytes that the client gets, so nothing that a client leaves out or adds can hide a fault.
    """

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()  # what was checked, by its kind
        self.faults: list[str] = []

    def around(self, app: ASGIApp) -> ASGIApp:
        async def checked(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
                await app(scope, receive, send)
                return
            head: Message = {}
            content: list[bytes] = []

            async def record(message: Message) -> None:
                if message["type"] == "http.response.start":
                    head.update(message)
                content.append(message.get("body", b""))
                await send(message)

            try:
                await app(scope, receive, record)
            finally:
                if head:
                    self._check(f"{scope['method']} {scope['path']}", head, b"".join(content))

        return checked

    def assert_valid(self) -> None:
        assert not self.faults, "\n".join(self.faults)

    def _check(self, route: str, head: Message, content: bytes) -> None:
        kind = dict(head["headers"])[b"content-type"]
        try:
            if kind.startswith(b"text/event-stream"):
                for event in _events(content):
                    self._check_event(route, event)
                return
            assert kind == b"application/json", kind
            body = json.loads(content)
            if head["status"] >= 400:
                self.seen["error"] += 1
                check_error(body)
                return
            name, check = next((name, check) for pattern, name, check in BODIES if re.fullmatch(pattern, route))
            self.seen[name] += 1
            check(body)
        except Exception as error:  # noqa: BLE001  any of them is a fault that the test reports
            self.faults.append(f"{route} {head['status']}: {type(error).__name__}: {error}: {content[:2000]!r}")

    def _check_event(self, route: str, event: dict[str, Any]) -> None:
        if not route.startswith("POST /v1/chat/"):
            self.seen[event["type"]] += 1
            check_event(event)
        elif "error" in event:
            self.seen["error"] += 1
            check_error(event)
        else:
            self.seen["chunk"] += 1
            ChatCompletionChunk.model_validate(event)


def _events(content: bytes) -> Iterator[dict[str, Any]]:
    """The events of a stream. The last one is not whole if the client has left."""
    for frame in content.split(b"\n\n")[:-1]:
        fields = dict(line.split(b": ", 1) for line in frame.split(b"\n") if not line.startswith(b":"))
        if fields and fields[b"data"] != b"[DONE]":
            event = json.loads(fields[b"data"])
            assert fields.get(b"event", b"").decode() == event.get("type", ""), "the name of an event is its type"
            yield event
