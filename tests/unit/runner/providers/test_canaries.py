"""Private parts of libraries that the providers rely on. A release that changes them fails here."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from contextlib import suppress

import httpx2
import pytest
from agents import OpenAIChatCompletionsModel
from agents.extensions.models.any_llm_model import AnyLLMModel
from agents.models.chatcmpl_stream_handler import ChatCmplStreamHandler
from any_llm import AnyLLM
from any_llm.constants import LLMProvider
from openai import AsyncOpenAI

from magent2.errors import SettingsError
from magent2.runner.model_client import ModelClient
from magent2.runner.providers.any_llm_models import ForeignModel, check_provider
from magent2.runner.providers.catalogue import ANY_LLM, ANY_LLM_KEYS, Endpoint


def test_any_llm_knows_the_providers_and_their_variables() -> None:
    known = {provider.value for provider in LLMProvider}
    variables: dict[str, str] = {}
    for name in ANY_LLM_KEYS:
        with suppress(ImportError):  # the packages of some providers are not installed here
            variables[name] = str(AnyLLM.get_provider_class(name).ENV_API_KEY_NAME)

    assert set(ANY_LLM_KEYS) <= known
    assert {"anthropic", "ollama", "openrouter"} <= set(variables)
    assert {name: key for name, key in variables.items() if ANY_LLM_KEYS[name] not in key} == {}


def test_missing_packages_of_a_provider_are_named() -> None:
    with pytest.raises(SettingsError, match=r"pip install 'any-llm-sdk\[gemini\]'"):
        check_provider("gemini")
    with pytest.raises(SettingsError, match="any-llm knows no provider 'nobody'"):
        check_provider("nobody")


def test_a_model_of_any_llm_uses_the_client_that_it_was_given() -> None:
    model = ForeignModel(Endpoint("anthropic", ANY_LLM, "http://127.0.0.1:1", "any"), "claude")

    assert model._get_provider() is model._provider_cache[False]
    assert model._get_provider().client.max_retries == 0
    assert inspect.isfunction(AnyLLMModel._normalize_google_tool_result_roles)


@pytest.mark.parametrize(
    "fetch", [AnyLLMModel._fetch_chat_response, OpenAIChatCompletionsModel._fetch_response], ids=["any-llm", "openai"]
)
def test_models_of_chat_completions_fetch_a_response_and_its_chunks(fetch: Callable[..., object]) -> None:
    """`chat_ends` stands between the chunks and the SDK, which fills in the response of its first event."""
    assert "stream" in inspect.signature(fetch).parameters
    assert "response.model_copy()" in inspect.getsource(ChatCmplStreamHandler.handle_stream)


def test_the_client_of_openai_asks_whether_to_retry() -> None:
    client, ours = AsyncOpenAI(api_key="any"), ModelClient(api_key="any")  # pragma: allowlist secret
    busy = httpx2.Response(429)
    delayed = httpx2.Response(429, headers={"Retry-After": "3"})

    assert (client._should_retry(busy), ours._should_retry(busy)) == (True, True)
    assert (client._should_retry(delayed), ours._should_retry(delayed)) == (True, False)
