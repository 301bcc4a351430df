"""Models of other providers through any-llm (the extra `any-llm`). The only module that names it.

Its clients make no retries of their own: a provider that asks for a delay gets it from the lane of the conversation,
which meanwhile needs no slot of the worker.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from agents import ModelResponse
from agents.extensions.models.any_llm_model import AnyLLMModel
from agents.items import TResponseStreamEvent
from any_llm import AnyLLM
from any_llm.exceptions import (
    AnyLLMError,
    AuthenticationError,
    ContentFilterError,
    ContextLengthExceededError,
    InsufficientFundsError,
    InvalidRequestError,
    MissingApiKeyError,
    ModelNotFoundError,
    RateLimitError,
    UnsupportedParameterError,
    UnsupportedProviderError,
)

from magent2.errors import ContextTooLong, Magent2Error, ModelError, ModelRefused, ModelUnavailable, SettingsError
from magent2.runner.providers.catalogue import KEYLESS, Endpoint
from magent2.runner.providers.chat_ends import watched, with_ends
from magent2.runner.sdk_run import CHECK_KEY, CHECK_SETTINGS, NEXT_STEPS, TOO_LONG_ADVICE, TRANSIENT_STATUS
from magent2.runner.wrapped_model import closing_events

# What cannot become better by itself, with the status that says the same.
PERMANENT: dict[type[AnyLLMError], int] = {
    AuthenticationError: 401,
    InsufficientFundsError: 429,
    InvalidRequestError: 400,
    MissingApiKeyError: 401,
    ModelNotFoundError: 404,
    UnsupportedParameterError: 400,
}


def check_provider(provider: str) -> None:
    """Import what any-llm needs for a provider, or raise `SettingsError` that says what to install."""
    try:
        missing = AnyLLM.get_provider_class(provider).MISSING_PACKAGES_ERROR
        if missing is not None:
            raise missing
    except UnsupportedProviderError as error:
        raise SettingsError(f"any-llm knows no provider {provider[:80]!r}; check the name of the model") from error
    except ImportError as error:
        raise SettingsError(
            f"models of {provider!r} need more packages; install them with: pip install 'any-llm-sdk[{provider}]'"
        ) from error


class ForeignModel(AnyLLMModel):
    """A model through any-llm, whose errors are those of this package."""

    def __init__(self, endpoint: Endpoint, model: str) -> None:
        check_provider(endpoint.provider)
        super().__init__(f"{endpoint.provider}/{model}", endpoint.base_url, endpoint.api_key or "")
        with _translated_errors():
            self._provider_cache[False] = self._provider_cache[True] = _create(endpoint)

    async def get_response(self, *request: Any, **options: Any) -> ModelResponse:
        with _translated_errors():
            return await super().get_response(*request, **options)

    async def stream_response(self, *request: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        with _translated_errors():
            async with closing_events(with_ends(super().stream_response(*request, **options))) as events:
                async for event in events:
                    yield event

    async def _fetch_chat_response(self, **request: Any) -> Any:
        return watched(await super()._fetch_chat_response(**request))


def _create(endpoint: Endpoint) -> AnyLLM:
    """The client of a provider. Some libraries of providers have no number of retries to set."""
    facts: dict[str, Any] = {"api_key": endpoint.api_key, "api_base": endpoint.base_url, "unified_exceptions": True}
    if endpoint.base_url and endpoint.api_key is None:
        facts["api_key"] = KEYLESS  # a proxy may need none, and the library asks for one
    try:
        provider = AnyLLM.create(endpoint.provider, max_retries=0, **facts)
    except UnsupportedParameterError:
        provider = AnyLLM.create(endpoint.provider, **facts)
    if endpoint.provider in ("gemini", "vertexai"):
        AnyLLMModel._normalize_google_tool_result_roles(provider)
    return provider


@contextmanager
def _translated_errors() -> Iterator[None]:
    try:
        yield
    except AnyLLMError as error:
        raise _translate(error) from error


def _translate(error: AnyLLMError) -> Magent2Error:
    """The error of this package. The text of the provider may quote the request or the key, so it is not passed on."""
    reason = type(error).__name__
    if error.status_code is not None:
        reason = f"{reason}, status {error.status_code}"
    if isinstance(error, ContextLengthExceededError):
        return ContextTooLong(f"the conversation is too long for the model ({reason}); {TOO_LONG_ADVICE}")
    if isinstance(error, ContentFilterError):
        return ModelRefused(f"the model or a guardrail refused ({reason}); rephrase the request")
    if isinstance(error, MissingApiKeyError):
        return ModelError(f"the run failed ({reason}); {CHECK_KEY}")
    status = next((known for kind, known in PERMANENT.items() if isinstance(error, kind)), error.status_code)
    permanent = isinstance(error, tuple(PERMANENT)) or (
        status is not None and 400 <= status < 500 and status not in TRANSIENT_STATUS
    )
    if permanent:
        return ModelError(f"the run failed ({reason}); {NEXT_STEPS.get(status or 0, CHECK_SETTINGS)}")
    delay = _seconds(error.retry_after) if isinstance(error, RateLimitError) else None
    return ModelUnavailable(f"the model did not answer: {reason}", retry_after_s=delay)


def _seconds(text: str | None) -> float | None:
    """A delay in seconds. A date is ignored: clocks may differ."""
    try:
        seconds = float(text or "")
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds > 0 else None
