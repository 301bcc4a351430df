"""Calls to the models of an agent: through the circuits of their providers, and to the next model if one fails."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from agents import Model, ModelResponse
from agents.items import TResponseStreamEvent
from openai import OpenAIError
from openai.types.responses import ResponseCompletedEvent, ResponseOutputMessage

from magent2.errors import CircuitOpen, ContextTooLong, ModelError, ModelRefused, ModelUnavailable, TransientError
from magent2.failures import cause_of
from magent2.runner.circuit import Circuit, CircuitCall, Circuits
from magent2.runner.event_mapping import TEXT_DELTA
from magent2.runner.providers.chat_ends import FILTERED, INCOMPLETE_REASONS
from magent2.runner.sdk_run import is_provider_failure, retry_after_s, translated
from magent2.runner.wrapped_model import WrappedModel, closing_events

COMPLETED: Final = "response.completed"
INCOMPLETE: Final = "response.incomplete"
SILENT_ITEMS = ("message", "reasoning")  # items whose start shows nothing yet

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A model of an agent. `name` is its name in the team, `identity` that of its provider, `system` for telemetry."""

    name: str
    identity: tuple[str, str]
    model: Model
    system: str = "other"

    @property
    def requested(self) -> str:
        """The name of the model at its provider."""
        return str(getattr(self.model, "model", None) or self.name).removeprefix(f"{self.system}/")


def guarded_model(
    candidates: Sequence[Candidate], circuits: Circuits, asked: Callable[[Candidate], None] = lambda _: None
) -> Model:
    """The models of an agent as one, each behind the circuit of its provider. `asked` is called before each call."""
    guarded = [replace(one, model=CircuitModel(one, circuits.of(one.identity), asked)) for one in candidates]
    return guarded[0].model if len(guarded) == 1 else FallbackModel(guarded)


class TimedModel(WrappedModel):
    """A model that counts as down when it sends nothing for `timeout_s`: a server may accept a request and then hang.

    Each event starts the time anew, so a long answer may take longer. Retries of a client are part of the time.
    """

    def __init__(self, inner: Model, timeout_s: float) -> None:
        self._inner = inner
        self._timeout_s = timeout_s

    async def get_response(self, *request: Any, **options: Any) -> ModelResponse:
        with self._timed_out():
            async with asyncio.timeout(self._timeout_s):
                return await self._inner.get_response(*request, **options)

    async def stream_response(self, *request: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        async with closing_events(self._inner.stream_response(*request, **options)) as events:
            stream = aiter(events)
            with self._timed_out(), closing(_WaitLimit(self._timeout_s)) as limit:
                while True:
                    with limit:
                        event = await anext(stream, None)
                    if event is None:
                        return
                    yield event

    @contextmanager
    def _timed_out(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            text = f"the model did not answer: it sent nothing for {self._timeout_s:g} s"
            raise ModelUnavailable(text) from error


class _WaitLimit:
    """Raises `TimeoutError` if one of many waits takes `timeout_s`. Each `with` is a wait, and contains one `await`.

    All waits share one timer, which looks from time to time how long the present one has taken. `asyncio.timeout` would
    take 9 µs for each token of an answer.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[Any] | None = None  # the one that waits
        self._began = 0.0
        self._cancelling = 0  # cancellations of the task before the wait
        self._expired = False
        self._timer = self._loop.call_later(timeout_s, self._look)

    def close(self) -> None:
        self._timer.cancel()

    def __enter__(self) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a wait with a time limit needs a task")
        self._task, self._cancelling = task, task.cancelling()
        self._began = self._loop.time()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        task, self._task = self._task, None
        if task is None or not self._expired:
            return
        # As `asyncio.timeout` does: a cancellation that came from elsewhere is not a timeout.
        self._expired = False
        if task.uncancel() <= self._cancelling and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error

    def _look(self) -> None:
        """Cancel the wait if it has taken too long. It is suspended now, so nothing else can be cancelled."""
        now = self._loop.time()
        ends = (now if self._task is None else self._began) + self._timeout_s
        if self._task is not None and ends <= now:
            if not self._expired:
                self._expired = True
                self._task.cancel()
            ends = now + self._timeout_s
        self._timer = self._loop.call_at(ends, self._look)


class CircuitModel(WrappedModel):
    """Calls a model through the circuit of its provider. While the circuit is open, `asked` is not called either."""

    def __init__(self, candidate: Candidate, circuit: Circuit, asked: Callable[[Candidate], None]) -> None:
        self._inner = candidate.model
        self._candidate = candidate
        self._circuit = circuit
        self._asked = asked

    async def get_response(self, *request: Any, **options: Any) -> ModelResponse:
        with _through(self._circuit) as call:
            self._asked(self._candidate)
            response = await self._inner.get_response(*request, **options)
            call.succeed()
        return response

    async def stream_response(self, *request: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        with _through(self._circuit) as call:
            self._asked(self._candidate)
            async with closing_events(self._inner.stream_response(*request, **options)) as events:
                async for received in events:
                    if received.type == TEXT_DELTA:  # most events are pieces of text
                        yield received
                        continue
                    if received.type == "response.output_item.done" and not _is_whole(received.item):
                        continue
                    event = completed_if_incomplete(received)
                    if event.type == COMPLETED:
                        call.succeed()
                    yield event
                    if event is not received:
                        return  # the model of the SDK would raise an error now


def completed_if_incomplete(event: TResponseStreamEvent) -> TResponseStreamEvent:
    """The event; for an answer that was cut off at its limit of tokens or by a filter, the one that completes it.

    The SDK takes such an answer for a fault of the model, and every further attempt would end in the same way. Its
    response still says that it is incomplete. A call that was cut off is left out: its arguments are not whole.
    Raises `ModelRefused` if the filter has left nothing, as the SDK does for a completion.
    """
    if event.type not in (INCOMPLETE, COMPLETED):
        return event
    response = event.response
    reason = getattr(response.incomplete_details, "reason", None)
    if reason not in INCOMPLETE_REASONS:
        return event
    response.output = [item for item in response.output if _is_whole(item)]
    if event.type == COMPLETED:
        return event
    if reason == FILTERED and all(item.type == "reasoning" for item in response.output):
        raise ModelRefused("the model or a guardrail refused (its filter withheld the answer); rephrase the request")
    return ResponseCompletedEvent(type=COMPLETED, response=response, sequence_number=event.sequence_number)


def _is_whole(item: object) -> bool:
    """Whether an item can be used. A text can, also where it was cut off."""
    return getattr(item, "type", None) == "message" or getattr(item, "status", None) != "incomplete"


@contextmanager
def _through(circuit: Circuit) -> Iterator[CircuitCall]:
    """Make a model call through a circuit. The block says when the provider has answered; an error counts by its kind.

    Raises `CircuitOpen` if no call is made now.
    """
    call = circuit.begin()
    try:
        yield call
    except Exception as error:
        if is_provider_failure(error):
            call.fail(retry_after_s(error))
        elif isinstance(error, OpenAIError | ModelError):  # the provider has answered, and refused the request
            call.succeed()
        raise
    finally:
        call.abandon()


class FallbackModel(WrappedModel):
    """Asks the models of an agent in their order: the next one if one is down, refuses or is too small for the request.

    An answer that has become visible cannot be taken back: if a model breaks off after its first text or call, the
    error is raised, and the run is tried again. The response names the model that has given it.
    """

    def __init__(self, candidates: Sequence[Candidate]) -> None:
        self._candidates = tuple(candidates)
        self._inner = candidates[0].model

    async def get_response(self, *request: Any, **options: Any) -> ModelResponse:
        errors: list[Exception] = []
        for candidate in self._candidates:
            is_last = candidate is self._candidates[-1]
            try:
                response = await candidate.model.get_response(*request, **options)
            except Exception as error:  # noqa: BLE001  `_note` raises what is not an error of a model call
                _note(errors, error, candidate)
                continue
            if is_last or not is_refusal(response.output):
                return response
            log.warning("a model refused; the next one is asked", extra={"model": candidate.name})
        raise worth_raising(errors)

    async def stream_response(self, *request: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        errors: list[Exception] = []
        for candidate in self._candidates:
            answer = _StreamedAnswer(candidate, is_last=candidate is self._candidates[-1])
            try:
                async with closing_events(candidate.model.stream_response(*request, **options)) as events:
                    async for event in events:
                        for visible in answer.take(event):
                            yield visible
            except Exception as error:
                if answer.visible:
                    raise
                _note(errors, error, candidate)
                continue
            if (answer.complete and not answer.refused) or answer.visible:
                return
            log.warning("a model refused; the next one is asked", extra={"model": candidate.name})
        raise worth_raising(errors)


class _StreamedAnswer:
    """The streamed answer of one model. Its events are held back until something of it becomes visible."""

    def __init__(self, candidate: Candidate, *, is_last: bool) -> None:
        self._candidate = candidate
        self._held: list[TResponseStreamEvent] = []
        self._is_last = is_last
        self.visible = False
        self.complete = is_last  # the SDK reports an answer of the last model that has no end
        self.refused = False

    def take(self, event: TResponseStreamEvent) -> Sequence[TResponseStreamEvent]:
        """Return the events that may be passed on now."""
        if event.type == COMPLETED:
            self.complete = True
            self.refused = not self.visible and not self._is_last and is_refusal(event.response.output or self._items())
            event.response.model = self._candidate.name
        if not self.visible:
            self._held.append(event)
            if self.refused or not self._shows(event):
                return ()
            self.visible = True
            held, self._held = self._held, []
            return held
        return (event,)

    def _shows(self, event: TResponseStreamEvent) -> bool:
        """Whether the event shows text or a call to someone, or ends the answer."""
        if event.type in (TEXT_DELTA, COMPLETED):
            return True
        item = getattr(event, "item", None)
        return item is not None and item.type not in SILENT_ITEMS

    def _items(self) -> list[Any]:
        return [event.item for event in self._held if event.type == "response.output_item.done"]


def is_refusal(output: Sequence[object]) -> bool:
    """Whether the output of a response is nothing but a refusal."""
    messages = [item for item in output if isinstance(item, ResponseOutputMessage)]
    parts = [part for item in messages for part in item.content]
    others = [item for item in output if getattr(item, "type", None) not in SILENT_ITEMS]
    return not others and bool(parts) and all(part.type == "refusal" for part in parts)


def _note(errors: list[Exception], error: Exception, candidate: Candidate) -> None:
    """Keep the error of a model call, after which the next model is asked. Raise any other error."""
    if translated(error) is None:
        raise error
    errors.append(error)
    log.warning("a model did not answer", extra={"model": candidate.name, "error": cause_of(error)})


def worth_raising(errors: Sequence[Exception]) -> Exception:
    """Of the errors of all models of an agent, the one after which the most can be done.

    A shorter request may be accepted at once; a model that is down may answer later; else the first model's refusal.
    """

    def rank(error: Exception) -> tuple[int, float]:
        known = translated(error)
        if isinstance(known, ContextTooLong):
            return 0, 0.0
        if isinstance(known, CircuitOpen):
            return 2, known.retry_in_s
        return (1, retry_after_s(error) or 0.0) if isinstance(known, TransientError) else (3, 0.0)

    return min(errors, key=rank)
