"""Models on servers with an API of OpenAI: the Responses API, or chat completions.

Most servers have only chat completions. Which API a server has is found out by the first call: an address without the
Responses API answers with a status of `NO_SUCH_API`, and chat completions are asked instead. What has worked is
remembered for the process. OpenAI's own address always has the Responses API.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

from agents import (
    Model,
    ModelResponse,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
)
from agents.items import TResponseStreamEvent
from agents.models import get_default_model
from openai import APIStatusError

from magent2.roster.spec import Api
from magent2.runner.context import ModelRequest
from magent2.runner.model_client import ModelClient
from magent2.runner.providers.chat_ends import watched, with_ends
from magent2.runner.wrapped_model import WrappedModel, closing_events

NO_SUCH_API = frozenset({404, 405, 501})


@dataclass(slots=True)
class ServerApi:
    """The API of one server; None until it is known."""

    api: Api | None = None


def openai_model(name: str | None, client: ModelClient, server: ServerApi) -> Model:
    """The model of that name on the server of a client. None is the SDK's default."""
    chosen = name or get_default_model()
    responses = OpenAIResponsesModel(chosen, client, model_is_explicit=name is not None)
    if server.api == "responses":
        return responses
    chat = ChatModel(chosen, client)
    return chat if server.api == "chat" else _UndecidedModel(responses, chat, server)


class ChatModel(WrappedModel):
    """A model with the chat completions API, which is asked for its token counts.

    Unlike OpenAI's server, the others count only on request. `include_usage = false` turns it off.
    """

    def __init__(self, name: str, client: ModelClient) -> None:
        self._inner = _ChatCompletions(name, client)

    async def get_response(self, *request: Any, **options: Any) -> ModelResponse:
        return await self._inner.get_response(*request, **options)

    def stream_response(
        self,
        system_instructions: str | None,
        input: ModelRequest,  # noqa: A002  the SDK's name for it
        model_settings: ModelSettings,
        *rest: Any,
        **options: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        if model_settings.include_usage is None:
            model_settings = replace(model_settings, include_usage=True)
        events = self._inner.stream_response(system_instructions, input, model_settings, *rest, **options)
        return with_ends(events)


class _ChatCompletions(OpenAIChatCompletionsModel):
    """The SDK's model, which tells why a completion is incomplete."""

    async def _fetch_response(self, *request: Any, **options: Any) -> Any:
        return watched(await super()._fetch_response(*request, **options))


class _UndecidedModel(WrappedModel):
    """A model on a server whose API is not known: asks for a response, and if there is no such API, for a completion.

    A server may also answer 404 because it lacks the model. So an API counts as known when it has answered.
    """

    def __init__(self, responses: Model, chat: Model, server: ServerApi) -> None:
        self._inner = responses
        self._chat = chat
        self._server = server

    async def get_response(self, *request: Any, **options: Any) -> ModelResponse:
        if self._server.api != "chat":
            try:
                response = await self._inner.get_response(*request, **options)
            except APIStatusError as error:
                self._check_api(error)
            else:
                self._server.api = "responses"
                return response
        response = await self._chat.get_response(*request, **options)
        self._server.api = "chat"
        return response

    async def stream_response(self, *request: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        if self._server.api != "chat":
            try:
                async with closing_events(self._inner.stream_response(*request, **options)) as events:
                    async for event in events:
                        self._server.api = "responses"
                        yield event
                return
            except APIStatusError as error:
                self._check_api(error)
        async with closing_events(self._chat.stream_response(*request, **options)) as events:
            async for event in events:
                self._server.api = "chat"
                yield event

    def _check_api(self, error: APIStatusError) -> None:
        """Raise the error unless it may say that the server lacks the Responses API."""
        if self._server.api is not None or error.status_code not in NO_SUCH_API:
            raise error
