"""Failures of models and tools in a journalled run, and the end of a run whose reader leaves."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import pytest
from agents import (
    Agent,
    GuardrailFunctionOutput,
    LocalShellTool,
    function_tool,
    output_guardrail,
)
from agents.testing import ModelStep, function_call

from magent2.bus.memory import MemoryBus
from magent2.errors import ContextTooLong, InvalidInput, ModelError, ModelUnavailable
from magent2.runner.config import MAX_TURNS, RunnerConfig
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.worker.lane_run import Outcome
from tests.support.journaled_runs import (
    CallbackModel,
    Items,
    answers_recorded,
    context_of,
    events_and_error,
    scripted,
    stream_answer,
    work,
)
from tests.support.model_server import ModelServer, Reply
from tests.support.worker_fixture import AGENT, dead_letters, errors, send


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


# --- failures


async def test_an_error_is_raised_after_the_events_before_it(bus: MemoryBus) -> None:
    send(bus, "go")

    events, error = await events_and_error(
        bus, OpenAIAgentsRunner(scripted(stream_answer("one two three", fail=LookupError("x"))))
    )

    assert [event["text"] for event in events] == ["one ", "two "]
    assert isinstance(error, LookupError)


REPLIES: dict[str, tuple[Reply, type[Exception], str]] = {
    "cut off": (Reply("one two three", break_after=1), ModelUnavailable, "did not answer"),
    "ends early": (Reply("one two three", end_after=1), ModelUnavailable, "did not answer"),
    "reports a failure": (Reply("one two three", fail_after=1), ModelUnavailable, "did not answer"),
    "too many requests": (Reply(status=429), ModelUnavailable, "did not answer"),
    "server error": (Reply(status=503), ModelUnavailable, "did not answer"),
    "bad request": (Reply("no such model", status=400), ModelError, "check the model's name"),
    "no key": (Reply("who are you", status=401), ModelError, "OPENAI_API_KEY"),
    "not found": (Reply("nothing here", status=404), ModelError, "OPENAI_BASE_URL"),
    "too long": (Reply("maximum context length is 8", status=400), ContextTooLong, "start a new conversation"),
}


@pytest.mark.parametrize(("reply", "kind", "words"), REPLIES.values(), ids=REPLIES.keys())
async def test_failures_of_a_model_server_become_own_errors(
    bus: MemoryBus, reply: Reply, kind: type[Exception], words: str
) -> None:
    send(bus, "go")
    with ModelServer([reply]) as server:
        runner = OpenAIAgentsRunner(
            config=RunnerConfig(agent_name=AGENT, model="scripted", api_key="any", base_url=server.url)
        )
        _, error = await events_and_error(bus, runner)
        await runner._provider.aclose()

    assert type(error) is kind
    assert words in str(error)
    assert not reply.text or reply.text not in str(error)


@output_guardrail
def forbid(context: Any, agent: Any, output: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=True)


async def test_a_guardrail_is_a_refusal_and_the_response_is_not_recorded(bus: MemoryBus) -> None:
    send(bus, "go")

    assert await work(bus, scripted(stream_answer("hello"), output_guardrails=[forbid])) is Outcome.BURIED

    assert dead_letters(bus)[0]["reason"].startswith("ModelRefused")
    assert answers_recorded(bus) == []


async def test_too_many_turns_are_a_clear_error(bus: MemoryBus) -> None:
    send(bus, "go")
    calls = iter(range(100))

    @function_tool
    def look() -> str:
        """Look."""
        return "seen"

    def say(items: Sequence[Mapping[str, Any]]) -> Items:
        return [function_call("look", {}, call_id=f"c{next(calls)}")]

    assert await work(bus, Agent(name=AGENT, model=CallbackModel(say), tools=[look])) is Outcome.BURIED

    assert "AGENT_MAX_TURNS" in dead_letters(bus)[0]["reason"]
    assert answers_recorded(bus) == list(range(MAX_TURNS))


async def test_a_recorded_response_that_is_invalid_is_not_retried(bus: MemoryBus) -> None:
    """A retry would replay the same response."""
    send(bus, "go")

    @function_tool(is_enabled=lambda context, agent: len(answers_recorded(bus)) == 0)
    def look() -> str:
        """Look."""
        return "seen"

    outcome = await work(bus, scripted([function_call("look", {}, call_id="c1")], tools=[look]))

    assert outcome is Outcome.BURIED
    assert "disabled" in dead_letters(bus)[0]["reason"]


async def test_a_failing_model_is_retried_by_the_worker(bus: MemoryBus) -> None:
    send(bus, "go")

    assert await work(bus, scripted(ModelStep.raise_error(ConnectionError("lost")))) is Outcome.RETRIED

    assert errors(bus)[0]["retry_in_s"] > 0


async def test_a_tool_that_could_act_twice_is_refused_before_the_model_is_called(bus: MemoryBus) -> None:
    send(bus, "go")
    shell = LocalShellTool(executor=lambda request: "ran")

    assert await work(bus, scripted(stream_answer("hello"), tools=[shell])) is Outcome.BURIED

    assert "LocalShellTool" in dead_letters(bus)[0]["reason"]


async def test_an_object_that_is_not_an_agent_is_refused(bus: MemoryBus) -> None:
    send(bus, "go")

    _, error = await events_and_error(bus, OpenAIAgentsRunner(object()))

    assert isinstance(error, InvalidInput)


# --- closing


async def test_closing_ends_the_run_and_leaves_no_task(bus: MemoryBus) -> None:
    send(bus, "go")
    before = asyncio.all_tasks()
    context = context_of(bus)
    runner = OpenAIAgentsRunner(scripted(stream_answer("one two three four", pause=asyncio.Event())))

    async with aclosing(runner.astream_run(context.envelope, context)) as events:
        first = await anext(events)

    assert first["text"] == "one "  # type: ignore[index]
    assert asyncio.all_tasks() == before


async def test_closing_disconnects_from_the_model(bus: MemoryBus) -> None:
    send(bus, "go")
    gate = threading.Event()
    with ModelServer([Reply("word " * 500, gate=gate)]) as server:
        runner = OpenAIAgentsRunner(
            config=RunnerConfig(agent_name=AGENT, model="scripted", api_key="any", base_url=server.url)
        )
        context = context_of(bus)
        async with aclosing(runner.astream_run(context.envelope, context)) as events:
            await anext(events)
        gate.set()

        assert await asyncio.to_thread(server.hung_up.wait, 10)
        await runner._provider.aclose()


async def test_closing_stops_a_tool(bus: MemoryBus) -> None:
    send(bus, "go")
    started, stopped = asyncio.Event(), asyncio.Event()

    @function_tool
    async def wait() -> str:
        """Wait forever."""
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "never"

    context = context_of(bus)
    runner = OpenAIAgentsRunner(scripted([function_call("wait", {}, call_id="c1")], tools=[wait]))
    async with aclosing(runner.astream_run(context.envelope, context)) as events:
        await anext(events)
        await started.wait()

    assert stopped.is_set()
