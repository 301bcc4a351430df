"""The HTTP client of model providers: the client library of OpenAI, without its slow conversions.

The library converts requests and events by trying every type that they may have. What it finds is the same as what this
module takes without trying (`tests/unit/runner/test_model_client.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, get_args

import httpx2
from openai import AsyncOpenAI, AsyncStream
from openai.resources.chat import AsyncChat, AsyncCompletions
from openai.resources.responses import AsyncResponses
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, ValidationError

# The parts of a request that grow with the conversation and with the team
UNCONVERTED = ("input", "tools")
UNCONVERTED_CHAT = ("messages", "tools")

RETRY_AFTER = ("retry-after", "retry-after-ms")

_VARIANTS: tuple[type[BaseModel], ...] = get_args(get_args(ResponseStreamEvent)[0])
_BY_TYPE = {name: variant for variant in _VARIANTS for name in get_args(variant.model_fields["type"].annotation)}


def import_model_client() -> None:
    """Import and build what the client imports and builds at its first use.

    In the first run of a process, this would block the event loop for up to half a second, and with it every other
    request.
    """
    client = ModelClient(api_key="unused")  # pragma: allowlist secret
    for resource in (client.responses, client.chat.completions):  # imported when they are first read
        type(resource)
    Response.model_construct(output=[{"type": "message"}])  # the types of all items are built with the first one


class ModelClient(AsyncOpenAI):
    """The client of one provider, for one event loop."""

    @cached_property
    def responses(self) -> AsyncResponses:
        return _PlainResponses(self)

    @cached_property
    def chat(self) -> AsyncChat:
        return _PlainChat(self)

    def _should_retry(self, response: httpx2.Response) -> bool:
        """Leave a delay that the provider asks for to the caller: the library would wait, and hold a slot meanwhile."""
        if any(name in response.headers for name in RETRY_AFTER):
            return False
        return super()._should_retry(response)

    async def post(self, path: str, *, stream_cls: Any = None, **request: Any) -> Any:
        if path == "/responses" and stream_cls is not None:
            stream_cls = AsyncStream[_TypedEvent]
        return await super().post(path, stream_cls=stream_cls, **request)


class _PlainResponses(AsyncResponses):
    """Sends input and tools as they are.

    The library compares every item of a request with each of about thirty types, to rename fields that have another
    name in JSON than in Python. For twenty items that takes longer than all else in a turn. No field of this request
    has another name, and the Agents SDK passes plain JSON values.
    """

    async def create(self, **request: Any) -> Any:
        plain = {name: request.pop(name) for name in UNCONVERTED if name in request}
        given = request.pop("extra_body", None) or {}
        return await super().create(**request, extra_body={**plain, **given})


class _PlainChat(AsyncChat):
    @cached_property
    def completions(self) -> AsyncCompletions:
        return _PlainCompletions(self._client)


class _PlainCompletions(AsyncCompletions):
    """Sends messages and tools as they are, for the same reasons."""

    async def create(self, **request: Any) -> Any:
        # The SDK passes a mark of the library in place of an empty list.
        plain = {name: request.pop(name) for name in UNCONVERTED_CHAT if isinstance(request.get(name), list)}
        given = request.pop("extra_body", None) or {}
        return await super().create(messages=[], **request, extra_body={**plain, **given})


class _TypedEvent:
    """Builds an event of a stream by its type. The library calls `build` of a class that has it."""

    @classmethod
    def build(cls, *, response: object, data: object) -> object:
        """Return the event. The library validates it against sixty types, which takes most of the time of a token.

        Like the library, accept what the provider sends: an event that does not match its type is not validated, and
        one of an unknown type gets the first type.
        """
        if not isinstance(data, Mapping):
            return data
        variant = _BY_TYPE.get(str(data.get("type")), _VARIANTS[0])
        try:
            return variant.model_validate(data)
        except ValidationError:
            return variant.model_construct(**data)
