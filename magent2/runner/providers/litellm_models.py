"""Models through LiteLLM (the extra `litellm`). The only module that names it.

Its errors are subclasses of those of OpenAI's client, so `sdk_run` translates them. It makes no retries of its own.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

# Without it, the import of LiteLLM downloads a price list.
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")

from agents import ModelResponse, ModelSettings
from agents.extensions.models.litellm_model import LitellmModel
from agents.items import TResponseStreamEvent

from magent2.runner.context import ModelRequest
from magent2.runner.providers.catalogue import KEYLESS, Endpoint
from magent2.runner.providers.chat_ends import watched, with_ends

NO_RETRIES = {"num_retries": 0, "max_retries": 0}  # LiteLLM's own, and those of the client that it uses


class LiteModel(LitellmModel):
    """A model through LiteLLM."""

    async def get_response(
        self,
        system_instructions: str | None,
        input: ModelRequest,  # noqa: A002  the SDK's name for it
        model_settings: ModelSettings,
        *rest: Any,
        **options: Any,
    ) -> ModelResponse:
        settings = _without_retries(model_settings)
        return await super().get_response(system_instructions, input, settings, *rest, **options)

    def stream_response(
        self,
        system_instructions: str | None,
        input: ModelRequest,  # noqa: A002  the SDK's name for it
        model_settings: ModelSettings,
        *rest: Any,
        **options: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        settings = _without_retries(model_settings)
        return with_ends(super().stream_response(system_instructions, input, settings, *rest, **options))

    async def _fetch_response(self, *request: Any, **options: Any) -> Any:
        return watched(await super()._fetch_response(*request, **options))


def _without_retries(settings: ModelSettings) -> ModelSettings:
    return replace(settings, extra_args={**(settings.extra_args or {}), **NO_RETRIES})


def litellm_model(endpoint: Endpoint, model: str) -> LitellmModel:
    key = endpoint.api_key or (KEYLESS if endpoint.base_url else None)  # as for models through any-llm
    return LiteModel(f"{endpoint.provider}/{model}", base_url=endpoint.base_url, api_key=key)
