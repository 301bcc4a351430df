"""Failures of the SDK and of models, as errors of ours that say what the caller can do next."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agents import (
    AgentsException,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelRefusalError,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)
from agents.exceptions import ModelTimeoutError
from openai import APIConnectionError, APIError, APIStatusError, OpenAIError

from magent2.errors import ContextTooLong, Magent2Error, ModelError, ModelRefused, ModelUnavailable

TRANSIENT_STATUS = frozenset({408, 409, 425, 429})
OUT_OF_CREDIT = "insufficient_quota"  # a 429 that waiting does not fix
TOO_LONG_CODE = "context_length_exceeded"
TOO_LONG_WORDS = ("maximum context length", "context window", "context_length_exceeded", "context length exceeded")

REFUSALS = (
    ModelRefusalError,
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)

NEXT_STEPS = {
    400: "the request does not suit this model: look at the model's name, the tools and the settings",
    401: "look at OPENAI_API_KEY",
    403: "this key may not use this model",
    404: "look at the model's name and OPENAI_BASE_URL",
    429: "the account is out of credit",
}


@contextmanager
def translate_sdk_errors(asking: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Raise failures of the SDK and of models as ours; leave others as they are.

    `asking`: whether a model's answer was still to come. After it, an answer that makes no sense will make none when it
    is read from the journal either.
    """
    try:
        yield
    except Exception as error:
        ours = to_own_error(error, asking())
        if ours is None:
            raise
        raise ours from error


def to_own_error(error: Exception, asking: bool = True) -> Magent2Error | None:
    """The failure as one of ours; nothing for what is neither the SDK's nor the model's."""
    told = f"{type(error).__name__}: {error}"
    if not isinstance(error, AgentsException | OpenAIError | TimeoutError | ConnectionError):
        return None
    if isinstance(error.__cause__, Magent2Error):  # the SDK wraps what a tool raises
        return error.__cause__
    if is_too_long(error):
        return ContextTooLong(
            f"the conversation is too long for the model ({told}); begin another, or take a larger one"
        )
    if is_transient(error, asking):
        return ModelUnavailable(f"the model did not answer: {told}")
    if isinstance(error, REFUSALS):
        return ModelRefused(f"the model or a guardrail refused ({told}); ask differently")
    return ModelError(f"the run cannot go on ({told}); {_next_step(error)}")


def is_transient(error: Exception, asking: bool = True) -> bool:
    """No connection, a busy or broken server, an answer that stopped halfway or made no sense."""
    if isinstance(error, APIStatusError):
        busy = error.status_code in TRANSIENT_STATUS or error.status_code >= 500
        return busy and error.code != OUT_OF_CREDIT
    if isinstance(error, ModelBehaviorError):
        return asking
    if isinstance(error, APIError):  # an error in the middle of a stream has no status
        return error.code != OUT_OF_CREDIT
    return isinstance(error, APIConnectionError | ModelTimeoutError | TimeoutError | ConnectionError)


def is_too_long(error: Exception) -> bool:
    """Servers say it in many ways; the code is OpenAI's, the words are what others write."""
    if isinstance(error, APIError) and error.code == TOO_LONG_CODE:
        return True
    refused = isinstance(error, APIStatusError) and error.status_code in (400, 413, 422)
    return (refused or isinstance(error, ModelBehaviorError)) and any(
        words in str(error).lower() for words in TOO_LONG_WORDS
    )


def _next_step(error: Exception) -> str:
    if isinstance(error, APIStatusError):
        return NEXT_STEPS.get(error.status_code, "look at the model and its settings")
    if isinstance(error, MaxTurnsExceeded):
        return "give the agent a smaller task, or raise AGENT_MAX_TURNS"
    if isinstance(error, OpenAIError):
        return NEXT_STEPS[401]
    return "look at the agent and its tools"
