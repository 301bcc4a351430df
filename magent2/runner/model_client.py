"""The HTTP client of model providers: the client library of OpenAI, without its conversion of requests."""

from __future__ import annotations

from functools import cached_property
from typing import Any

from openai import AsyncOpenAI
from openai.resources.responses import AsyncResponses
from openai.types.responses import Response

UNCONVERTED = ("input", "tools")  # the parts of a request that grow with the conversation and with the team


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


class _PlainResponses(AsyncResponses):
    """Sends input and tools as they are.

    The library compares every item of a request with each of about thirty types, to rename fields that have another
    name in JSON than in Python. For twenty items that takes longer than all else in a turn. No field of this request
    has another name (`tests/unit/runner/test_model_client.py`), and the Agents SDK passes plain JSON values.
    """

    async def create(self, **request: Any) -> Any:
        plain = {name: request.pop(name) for name in UNCONVERTED if name in request}
        given = request.pop("extra_body", None) or {}
        return await super().create(**request, extra_body={**plain, **given})
