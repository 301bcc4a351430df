"""Finds the models of agents, and keeps their clients, one set per event loop."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2
from agents import Model, ModelProvider, ModelResponse
from agents.items import TResponseStreamEvent

from magent2.errors import SettingsError
from magent2.roster.spec import MODEL_TIMEOUT_S, Api, Provider
from magent2.runner.config import RunnerConfig
from magent2.runner.model_client import ModelClient
from magent2.runner.providers.calls import Candidate, FallbackModel, TimedModel
from magent2.runner.providers.catalogue import (
    ANY_LLM,
    KEYLESS,
    LITELLM,
    OPENAI,
    Endpoint,
    ModelCatalogue,
    ModelTarget,
    OwnServer,
)
from magent2.runner.providers.openai_models import ServerApi, openai_model
from magent2.runner.wrapped_model import closing_events

MODEL_CONNECT_MAX_S = 5.0  # to open a connection, as OpenAI's client has it


@dataclass(slots=True)
class _LoopClients:
    """The clients of one event loop."""

    clients: dict[Endpoint, ModelClient] = field(default_factory=dict)
    foreign: dict[tuple[Endpoint, str], Model] = field(default_factory=dict)

    async def aclose(self) -> None:
        for client in self.clients.values():
            await client.close()
        for model in self.foreign.values():
            await model.close()


class LoopProvider(ModelProvider):
    """Finds models by name. Keeps one set of HTTP clients per event loop.

    The SDK shares one client in the whole process. Its pooled connections belong to the loop that opened them, so the
    next run on another loop would fail with "Event loop is closed".
    """

    def __init__(
        self,
        api_key: str | None = None,
        base_url: str | None = None,
        api: Api | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """The arguments are those of `ModelCatalogue`."""
        self.catalogue = ModelCatalogue(api_key, base_url, api, variables)
        self._apis: dict[Endpoint, ServerApi] = {}
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClients] = weakref.WeakKeyDictionary()

    def follow(self, providers: Mapping[str, Provider]) -> None:
        """Use the providers of a roster from now on."""
        self.catalogue.providers = providers

    def get_model(self, model_name: str | None) -> Model:
        target = self.catalogue.find(model_name)
        return TimedModel(self._model_of(target), target.endpoint.timeout_s)

    def candidates(self, names: Sequence[str], own: OwnServer | None = None) -> list[Candidate]:
        """The models of an agent in their order. Without a name it is the default model.

        A model that cannot be used here is left out if another one can.
        """
        targets = self.catalogue.find_all(names, own)
        usable = [target for target in targets if target.fault() is None] or targets[:1]
        return [
            Candidate(
                target.name or "default",
                target.endpoint.identity,
                TimedModel(self._model_of(target), target.endpoint.timeout_s),
                target.endpoint.provider,
            )
            for target in usable
        ]

    def _model_of(self, target: ModelTarget) -> Model:
        endpoint = target.endpoint
        if target.problem is not None:
            raise SettingsError(str(target.fault()))
        clients = self._by_loop.setdefault(asyncio.get_running_loop(), _LoopClients())
        if endpoint.protocol == OPENAI:
            if endpoint not in clients.clients:
                key = endpoint.api_key if endpoint.is_openai else endpoint.api_key or KEYLESS
                timeout = httpx2.Timeout(endpoint.timeout_s, connect=MODEL_CONNECT_MAX_S)
                clients.clients[endpoint] = ModelClient(api_key=key, base_url=endpoint.base_url, timeout=timeout)
            api: Api | None = endpoint.api or ("responses" if endpoint.is_openai else None)
            server = self._apis.setdefault(endpoint, ServerApi(api))
            return openai_model(target.model, clients.clients[endpoint], server)
        if (fault := target.fault()) is not None:
            raise SettingsError(fault)
        key_of_model = endpoint, target.model or ""
        if key_of_model not in clients.foreign:
            clients.foreign[key_of_model] = _foreign_model(endpoint, target.model or "")
        return clients.foreign[key_of_model]

    async def aclose(self) -> None:
        """Close the connections of this loop."""
        clients = self._by_loop.pop(asyncio.get_running_loop(), None)
        if clients is not None:
            await clients.aclose()


def provider_of(config: RunnerConfig) -> LoopProvider:
    return LoopProvider(config.api_key, config.base_url, config.api, config.variables)


def _foreign_model(endpoint: Endpoint, model: str) -> Model:
    # Both libraries take seconds to import, and few teams need them.
    if endpoint.protocol == LITELLM:
        from magent2.runner.providers.litellm_models import litellm_model

        return litellm_model(endpoint, model)
    from magent2.runner.providers.any_llm_models import ForeignModel

    return ForeignModel(endpoint, model)


def import_foreign(targets: Sequence[ModelTarget]) -> None:
    """Import the libraries that these models need. Raises `SettingsError` if a package is missing."""
    for target in targets:
        if target.endpoint.protocol == ANY_LLM:
            from magent2.runner.providers.any_llm_models import check_provider

            check_provider(target.endpoint.provider)
        elif target.endpoint.protocol == LITELLM:
            from magent2.runner.providers import litellm_models  # noqa: F401  imported for its time


class AgentModels(Model):
    """The models of an agent, found for the loop on which it runs. A plain name needs no such object."""

    def __init__(self, provider: LoopProvider, names: Sequence[str], own: OwnServer) -> None:
        self._provider = provider
        self._names = tuple(names)
        self._own = own

    def candidates(self) -> list[Candidate]:
        return self._provider.candidates(self._names, self._own)

    async def get_response(self, *request: Any, **options: Any) -> ModelResponse:
        return await FallbackModel(self.candidates()).get_response(*request, **options)

    async def stream_response(self, *request: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        async with closing_events(FallbackModel(self.candidates()).stream_response(*request, **options)) as events:
            async for event in events:
                yield event


def candidates_of(provider: ModelProvider, model: Model | str | None) -> list[Candidate]:
    """The models of an agent of the SDK. A model that is given as an object stands for its own provider."""
    if isinstance(model, AgentModels):
        return model.candidates()
    if isinstance(model, Model):
        name, kind = str(getattr(model, "model", "")), type(model)
        system = OPENAI if kind.__module__.startswith("agents.models.openai") else "other"
        timed = TimedModel(model, MODEL_TIMEOUT_S)
        return [Candidate(name or kind.__name__, (kind.__name__, name), timed, system)]
    if isinstance(provider, LoopProvider):
        return provider.candidates(() if model is None else (model,))
    found = TimedModel(provider.get_model(model), MODEL_TIMEOUT_S)
    return [Candidate(model or "default", (type(provider).__name__, ""), found)]
