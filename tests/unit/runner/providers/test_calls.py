"""The order in which the models of an agent are asked, and the error that counts if none answers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from agents import Model, ModelResponse
from agents.items import TResponseStreamEvent
from agents.testing import assistant_message, function_call
from openai.types.responses import ResponseOutputMessage, ResponseOutputRefusal

from magent2.errors import CircuitOpen, ContextTooLong, ModelError, ModelRefused, ModelUnavailable
from magent2.runner.circuit import CIRCUIT_FAILURES, Circuits
from magent2.runner.demo.model import build_response, stream_events
from magent2.runner.demo.script import ScriptedText
from magent2.runner.providers.calls import (
    Candidate,
    FallbackModel,
    TimedModel,
    guarded_model,
    is_refusal,
    worth_raising,
)
from tests.simulation.virtual_loop import VirtualLoop, run_on_virtual_loop

REFUSAL = ResponseOutputMessage(
    id="m",
    content=[ResponseOutputRefusal(refusal="no", type="refusal")],
    role="assistant",
    status="completed",
    type="message",
)
EMPTY = build_response(ScriptedText(""), [{}])


class Scripted(Model):
    """A model that answers with these items, or raises this error after `after` events."""

    def __init__(self, *items: Any, error: Exception | None = None, after: int = 0) -> None:
        self._items = items
        self._error = error
        self._after = after
        self.asked = 0

    async def get_response(self, *request: Any, **options: Any) -> ModelResponse:
        raise AssertionError("answers are streamed")

    async def stream_response(self, *request: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        self.asked += 1
        events = list(stream_events(EMPTY.model_copy(update={"output": list(self._items)})))
        for place, event in enumerate(events):
            if self._error is not None and place == self._after:
                raise self._error
            yield event


def candidate(name: str, model: Model) -> Candidate:
    return Candidate(name, (name, ""), model)


async def ask(model: Model) -> list[Any]:
    return [event async for event in model.stream_response()]  # type: ignore[call-arg]


DOWN = ModelUnavailable("down")


@pytest.mark.parametrize("error", [DOWN, ModelError("400"), ContextTooLong("long"), CircuitOpen("one", 3.0)])
async def test_the_next_model_is_asked_after_any_error_of_a_call(error: Exception) -> None:
    second = Scripted(assistant_message("hi there"))
    model = FallbackModel([candidate("one", Scripted(error=error)), candidate("two", second)])

    events = await ask(model)

    assert events[-1].response.model == "two"
    assert [event.delta for event in events if event.type == "response.output_text.delta"]


async def test_a_bug_is_not_an_error_of_a_call() -> None:
    second = Scripted(assistant_message("hi"))
    model = FallbackModel([candidate("one", Scripted(error=KeyError("bug"))), candidate("two", second)])

    with pytest.raises(KeyError):
        await ask(model)
    assert second.asked == 0


async def test_a_model_that_refuses_is_heard_only_if_it_is_the_last() -> None:
    refusing, other = Scripted(REFUSAL), Scripted(function_call("look", {}, call_id="c"))

    answered = await ask(FallbackModel([candidate("one", refusing), candidate("two", other)]))
    refused = await ask(FallbackModel([candidate("one", Scripted(error=DOWN)), candidate("two", refusing)]))

    assert answered[-1].response.output[0].type == "function_call"
    assert is_refusal(refused[-1].response.output)
    assert (answered[-1].response.model, refused[-1].response.model) == ("two", "two")


async def test_visible_text_is_not_taken_back() -> None:
    breaking = Scripted(assistant_message("one two three"), error=DOWN, after=4)
    second = Scripted(assistant_message("four"))

    with pytest.raises(ModelUnavailable):
        await ask(FallbackModel([candidate("one", breaking), candidate("two", second)]))
    assert second.asked == 0


async def test_a_model_whose_circuit_is_open_is_not_asked() -> None:
    first, second = Scripted(error=DOWN), Scripted(assistant_message("hi"))
    noted: list[str] = []
    models = [candidate("one", first), candidate("two", second)]
    model = guarded_model(models, Circuits(), lambda asked: noted.append(asked.name))

    for _ in range(CIRCUIT_FAILURES + 3):
        await ask(model)

    assert (first.asked, second.asked) == (CIRCUIT_FAILURES, CIRCUIT_FAILURES + 3)
    assert (noted.count("one"), noted.count("two")) == (first.asked, second.asked)


@pytest.mark.parametrize(
    ("errors", "chosen"),
    [
        ([ModelError("401"), DOWN], 1),
        ([DOWN, ModelError("401")], 0),
        ([DOWN, ContextTooLong("long")], 1),
        ([CircuitOpen("one", 9.0), CircuitOpen("two", 3.0)], 1),
        ([CircuitOpen("one", 9.0), DOWN], 1),
        ([ModelError("400"), ModelRefused("no")], 0),
        ([ModelUnavailable("a", retry_after_s=30.0), ModelUnavailable("b", retry_after_s=2.0)], 1),
    ],
)
def test_the_error_that_leaves_the_most_hope_counts(errors: list[Exception], chosen: int) -> None:
    assert worth_raising(errors) is errors[chosen]


@pytest.mark.parametrize(
    ("output", "refused"),
    [
        (lambda: [REFUSAL], True),
        (lambda: [assistant_message("hi")], False),
        (lambda: [REFUSAL, function_call("look", {}, call_id="c")], False),
        (list, False),
    ],
)
def test_a_refusal_is_nothing_else(output: Callable[[], list[Any]], refused: bool) -> None:
    assert is_refusal(output()) is refused


# --- a model that sends nothing


class Slow(Model):
    """A model that needs so many seconds for each event."""

    def __init__(self, *pauses_s: float) -> None:
        self._pauses_s = pauses_s

    async def get_response(self, *request: Any, **options: Any) -> ModelResponse:
        raise AssertionError("answers are streamed")

    async def stream_response(self, *request: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        for pause_s, event in zip(self._pauses_s, stream_events(EMPTY), strict=False):
            await asyncio.sleep(pause_s)
            yield event


async def count_events(model: Model, pause_s: float = 0.0) -> int:
    """Read all events, and pause after each of them."""
    count = 0
    async for _ in model.stream_response():  # type: ignore[call-arg]
        count += 1
        await asyncio.sleep(pause_s)
    return count


def test_a_long_answer_may_take_longer_than_the_limit_of_one_wait() -> None:
    assert run_on_virtual_loop(VirtualLoop(1), count_events(TimedModel(Slow(9.0, 9.0, 9.0), 10.0))) == 3


def test_a_slow_reader_does_not_count_as_a_model_that_is_down() -> None:
    assert run_on_virtual_loop(VirtualLoop(1), count_events(TimedModel(Slow(1.0, 9.0, 9.0), 10.0), pause_s=25.0)) == 3


@pytest.mark.parametrize("pauses_s", [(11.0,), (3.0, 11.0), (9.0, 9.0, 10.5)])
def test_a_model_that_sends_nothing_for_too_long_is_down(pauses_s: tuple[float, ...]) -> None:
    with pytest.raises(ModelUnavailable, match="it sent nothing for 10 s"):
        run_on_virtual_loop(VirtualLoop(1), count_events(TimedModel(Slow(*pauses_s), 10.0)))


def test_a_cancelled_call_is_not_reported_as_a_model_that_is_down() -> None:
    async def cancelled() -> None:
        async with asyncio.timeout(5.0):
            await count_events(TimedModel(Slow(20.0), 10.0))

    with pytest.raises(TimeoutError):
        run_on_virtual_loop(VirtualLoop(1), cancelled())


def test_a_model_that_ends_its_wait_by_itself_after_the_limit_is_heard() -> None:
    class Stubborn(Slow):
        async def stream_response(self, *request: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
            try:
                await asyncio.sleep(100.0)
            except asyncio.CancelledError:
                await asyncio.sleep(100.0)
            yield next(iter(stream_events(EMPTY)))

    async def heard() -> tuple[int, int]:
        count = await count_events(TimedModel(Stubborn(), 10.0))
        task = asyncio.current_task()
        assert task is not None
        return count, task.cancelling()

    assert run_on_virtual_loop(VirtualLoop(1), heard()) == (1, 0)
