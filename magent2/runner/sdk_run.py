"""One streamed run of the Agents SDK: its configuration, its events, its result and its errors.

Attributes of a result are read with `getattr`, because another release of the SDK may lack some of them.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import lru_cache
from typing import Protocol, TypeVar

from agents import (
    AgentsException,
    InputGuardrailTripwireTriggered,
    MaxTurnsExceeded,
    ModelBehaviorError,
    ModelProvider,
    ModelRefusalError,
    OutputGuardrailTripwireTriggered,
    RunConfig,
    ToolErrorFormatterArgs,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)
from agents.exceptions import ModelTimeoutError, ToolTimeoutError
from openai import APIConnectionError, APIError, APIStatusError, OpenAIError

from magent2.errors import (
    ContextTooLong,
    InvalidInput,
    Magent2Error,
    ModelError,
    ModelRefused,
    ModelUnavailable,
)
from magent2.failures import Failure, cause_of, mask_secrets
from magent2.runner.wrapped_model import closing_events
from magent2.tools.interface import tool_failure

CANCEL_MAX_S = 5.0  # how long the SDK may take to end a run that was cancelled

EventT_co = TypeVar("EventT_co", covariant=True)


class StreamedRun(Protocol[EventT_co]):
    """The part of the SDK's `RunResultStreaming` that every release has."""

    def stream_events(self) -> AsyncIterator[EventT_co]: ...


# --- Before the run: configuration.


def run_config(note_failure: Callable[[str, str], None], provider: ModelProvider) -> RunConfig:
    """The configuration of every run. `note_failure` is called with the id of each call that failed and the reason.

    The SDK's own tracing is off: it would send conversations to OpenAI, whichever server the model is on.
    A call of an unknown tool does not end the run. The model gets an error as its result and can try again.
    """

    def format_error(failure: ToolErrorFormatterArgs) -> str | None:
        if failure.error is None:
            note_failure(failure.call_id, failure.default_message)
            return None
        found = sdk_tool_failure(failure.tool_name, failure.error)
        note_failure(failure.call_id, found.named)
        return found.text

    return RunConfig(
        model_provider=provider,
        tracing_disabled=True,
        tool_error_formatter=format_error,
        tool_not_found_behavior="return_error_to_model",
    )


def sdk_tool_failure(tool: str, error: Exception) -> Failure:
    """Report the failure of a tool that the SDK has run (`tool_failure`).

    The SDK wraps errors of MCP servers. Its own errors about the arguments of a model and about time limits are shown.
    """
    if isinstance(error, AgentsException) and isinstance(error.__cause__, Magent2Error):
        return tool_failure(tool, error.__cause__)
    if isinstance(error, ModelBehaviorError | ToolTimeoutError):
        return Failure(mask_secrets(str(error)), cause_of(error), None, type(error).__name__)
    return tool_failure(tool, error)


def accepted_options(function: Callable[..., object], options: Mapping[str, object]) -> dict[str, object]:
    """The options that a function of the SDK takes. Older releases take fewer."""
    names = _parameter_names(function)
    return {name: value for name, value in options.items() if names is None or name in names}


@lru_cache(maxsize=8)  # few functions start a run, and each starts many
def _parameter_names(function: Callable[..., object]) -> frozenset[str] | None:
    """The names of a function's parameters. `None`: it takes any keyword."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return frozenset(parameters)


# --- While it runs, and its result.


@asynccontextmanager
async def follow_events(result: StreamedRun[EventT_co]) -> AsyncIterator[AsyncIterator[EventT_co]]:
    """Yield the events of a run. If the reader leaves early, cancel the run, so that no model calls are wasted.

    Without the cancellation, closing the events would wait for the whole run.
    """
    async with closing_events(result.stream_events()) as events:
        try:
            yield events
        except BaseException:
            cancel = getattr(result, "cancel", None)
            if cancel is not None:
                cancel()
            await _wait_for_end(result)
            raise


async def _wait_for_end(result: object) -> None:
    """Wait for a cancelled run, which closes its connections and cancels its tools."""
    task = getattr(result, "run_loop_task", None)
    if not isinstance(task, asyncio.Task):
        return
    if not task.done():
        await asyncio.wait({task}, timeout=CANCEL_MAX_S)
    if task.done() and not task.cancelled():
        task.exception()  # mark an error as retrieved: else the loop logs it, and the reader has left anyway


def check_finished(result: object) -> None:
    """Raise what the stream did not: an error after its last event, or calls that wait for approval."""
    waiting = interruptions(result)
    if waiting:
        raise approval_unavailable(waiting)


def interruptions(result: object) -> list[object]:
    """The calls that wait for approval. Raises an error that occurred after the last event."""
    error = getattr(result, "run_loop_exception", None)
    if isinstance(error, BaseException):
        raise error
    return list(getattr(result, "interruptions", None) or ())


def approval_unavailable(waiting: Sequence[object]) -> InvalidInput:
    names = ", ".join(str(getattr(item, "name", None) or "a tool") for item in waiting)
    return InvalidInput(f"{names} needs approval, which cannot be given here; use `magent2 worker`")


async def final_output(result: object) -> object:
    """The final output of a run. `None` if this release of the SDK does not provide it."""
    get_output = getattr(result, "get_final_output", None)
    if not callable(get_output):
        return getattr(result, "final_output", None)
    output = get_output()
    return await output if inspect.isawaitable(output) else output


def usage_of_run(result: object) -> object:
    return getattr(getattr(result, "context_wrapper", None), "usage", None)


# --- Errors of the SDK and of models, as errors of this package that tell the caller what to do next.

TRANSIENT_STATUS = frozenset({408, 409, 425, 429})
OUT_OF_CREDIT = "insufficient_quota"  # a 429 that does not go away with time
TOO_LONG_CODE = "context_length_exceeded"
TOO_LONG_WORDS = ("maximum context length", "context window", "context_length_exceeded", "context length exceeded")

TOO_LONG_ADVICE = "start a new conversation, or use a model with a larger context"

REFUSALS = (
    ModelRefusalError,
    InputGuardrailTripwireTriggered,
    OutputGuardrailTripwireTriggered,
    ToolInputGuardrailTripwireTriggered,
    ToolOutputGuardrailTripwireTriggered,
)

CHECK_KEY = "check the key of the provider: OPENAI_API_KEY, or the variable that the agents file names"
CHECK_SETTINGS = "check the model and its settings"
NEXT_STEPS = {
    400: "the model does not accept the request: check the model's name, the tools and the settings",
    401: CHECK_KEY,
    403: "this key may not use this model",
    404: "check the model's name and the address of its server (OPENAI_BASE_URL or base_url)",
    429: "the account is out of credit",
}


@contextmanager
def translate_sdk_errors(awaiting_model: Callable[[], bool] = lambda: True) -> Iterator[None]:
    """Raise errors of the SDK and of models as errors of this package. Leave other errors as they are.

    `awaiting_model`: whether the model has not answered yet. An invalid answer is worth a retry only then: a recorded
    answer is read from the journal again and stays invalid.
    """
    try:
        yield
    except Exception as error:
        known = _translate(error, awaiting_model())
        if known is None:
            raise
        raise known from error


def translated(error: Exception) -> Magent2Error | None:
    """The error of this package for an error of a model call; `None` for an error of something else."""
    return error if isinstance(error, Magent2Error) else _translate(error, awaiting_model=True)


def _translate(error: Exception, awaiting_model: bool) -> Magent2Error | None:
    """The error of this package for an error of the SDK or of a model; `None` for any other error."""
    if not isinstance(error, AgentsException | OpenAIError | TimeoutError | ConnectionError):
        return None
    if isinstance(error.__cause__, Magent2Error):  # the SDK wraps what a tool raises
        return error.__cause__
    reason = _reason(error)
    if _is_too_long(error):
        return ContextTooLong(f"the conversation is too long for the model ({reason}); {TOO_LONG_ADVICE}")
    if _is_transient(error, awaiting_model):
        return ModelUnavailable(f"the model did not answer: {reason}", retry_after_s=retry_after_s(error))
    if isinstance(error, REFUSALS):
        return ModelRefused(f"the model or a guardrail refused ({reason}); rephrase the request")
    return ModelError(f"the run failed ({reason}); {_next_step(error)}")


def _reason(error: Exception) -> str:
    """What users may know of an error: its type, and the text if it is one of the SDK about the model or the run.

    A provider may quote the key or the request in its text. The log gets it as the cause of our error.
    """
    name = type(error).__name__
    if isinstance(error, (*REFUSALS, MaxTurnsExceeded, ModelBehaviorError)):
        return f"{name}: {error}"
    return f"{name}, status {error.status_code}" if isinstance(error, APIStatusError) else name


def is_provider_failure(error: Exception) -> bool:
    """Whether a model call failed because its provider cannot be reached or does not work now."""
    return isinstance(error, ModelUnavailable) or _is_transient(error, awaiting_model=False)


def retry_after_s(error: Exception) -> float | None:
    """The delay that a provider asks for in a response header, in seconds. A date is ignored: clocks may differ."""
    if isinstance(error, ModelUnavailable):
        return error.retry_after_s
    if not isinstance(error, APIStatusError):
        return None
    try:
        seconds = float(error.response.headers.get("retry-after") or "")
    except ValueError:
        return None
    return seconds if 0 < seconds < float("inf") else None


def _is_transient(error: Exception, awaiting_model: bool) -> bool:
    """Whether a retry can help: no connection, a busy or broken server, an incomplete or invalid answer."""
    if isinstance(error, APIStatusError):
        busy = error.status_code in TRANSIENT_STATUS or error.status_code >= 500
        return busy and error.code != OUT_OF_CREDIT
    if isinstance(error, ModelBehaviorError):
        return awaiting_model
    if isinstance(error, APIError):  # an error in the middle of a stream has no status
        return error.code != OUT_OF_CREDIT
    return isinstance(error, APIConnectionError | ModelTimeoutError | TimeoutError | ConnectionError)


def _is_too_long(error: Exception) -> bool:
    """Whether the request exceeds the model's context. OpenAI reports a code, other servers only a text."""
    if isinstance(error, APIError) and error.code == TOO_LONG_CODE:
        return True
    rejected = isinstance(error, APIStatusError) and error.status_code in (400, 413, 422)
    return (rejected or isinstance(error, ModelBehaviorError)) and any(
        words in str(error).lower() for words in TOO_LONG_WORDS
    )


def _next_step(error: Exception) -> str:
    if isinstance(error, APIStatusError):
        return NEXT_STEPS.get(error.status_code, CHECK_SETTINGS)
    if isinstance(error, MaxTurnsExceeded):
        return "give the agent a smaller task, or raise AGENT_MAX_TURNS"
    if isinstance(error, OpenAIError):
        return CHECK_KEY
    return "check the agent and its tools"
