"""Tool calls of a journalled run: their records and events."""

from __future__ import annotations

import asyncio
import threading
from contextvars import copy_context
from typing import Any

import pytest
from agents import (
    FunctionTool,
    RunContextWrapper,
    ToolGuardrailFunctionOutput,
    ToolOutputImage,
    ToolOutputText,
    function_tool,
    tool_output_guardrail,
)
from agents.testing import function_call

from magent2.bus.memory import MemoryBus
from magent2.runner.journal.tool_calls import RESULT_MAX_BYTES
from magent2.tools.chat import send_message
from magent2.worker.lane_run import Outcome
from tests.support.journaled_runs import (
    CrashingBus,
    ToolCallScript,
    message_contents,
    recorded,
    results_recorded,
    script_call,
    tool_steps,
    work,
    work_until_crash,
)
from tests.support.worker_fixture import AGENT, dead_letters, send, stream, until

# --- concurrent calls


async def test_each_of_two_concurrent_calls_is_recorded_when_it_ends(bus: MemoryBus) -> None:
    gate = asyncio.Event()

    @function_tool
    async def slow() -> str:
        """Wait."""
        await gate.wait()
        return "slow"

    @function_tool
    async def quick() -> str:
        """Do not wait."""
        return "quick"

    shown = ToolCallScript(function_call("slow", {}, call_id="c1"), function_call("quick", {}, call_id="c2"))
    working = asyncio.create_task(work(bus, shown.agent(slow, quick)))

    await until(lambda: results_recorded(bus) == ["c2"])
    gate.set()
    await working

    assert results_recorded(bus) == ["c2", "c1"]
    assert shown.results == {"c1": "slow", "c2": "quick"}


async def test_a_tool_step_has_arguments_result_and_duration(bus: MemoryBus) -> None:
    @function_tool
    def double(n: int) -> int:
        """Double it."""
        return 2 * n

    shown = script_call("double", n=4)
    await work(bus, shown.agent(double))

    start, end = (event for event in stream(bus) if event["event"] == "tool_step")
    assert (start["name"], start["args"], start["status"], start["tool_call_id"]) == ("double", {"n": 4}, "start", "c1")
    assert (end["result_summary"], end["status"], end["error"], end["tool_call_id"]) == ("8", "success", None, "c1")
    assert end["duration_ms"] >= 0
    assert (start["turn"], end["turn"], end["agent"], end["attempt"]) == (0, 0, AGENT, 1)


# --- failures


def raising(**options: Any) -> FunctionTool:
    def break_down() -> str:
        """Break down."""
        send_message("agent:Cy", "I broke down", conversation_id="elsewhere")
        raise LookupError("no such shelf")

    return function_tool(break_down, **options)


HIDDEN = "LookupError: break_down failed; the operator's log has the cause"


def steps_without_ids(bus: MemoryBus) -> list[tuple[str, str | None]]:
    return [(status, error and error.partition(" (failure id ")[0]) for status, error in tool_steps(bus)]


def sorry(context: RunContextWrapper[Any], error: Exception) -> str:
    return "sorry about that"


@pytest.mark.parametrize(
    ("options", "seen"),
    [({}, "break_down failed; the operator's log has the cause"), ({"failure_error_function": sorry}, "sorry about")],
    ids=["default", "own words"],
)
async def test_a_tool_that_raises_sends_nothing_and_its_event_has_the_reason(
    bus: MemoryBus, options: dict[str, Any], seen: str
) -> None:
    shown = script_call("break_down")

    assert await work(bus, shown.agent(raising(**options))) is Outcome.ANSWERED

    assert shown.results["c1"].startswith(seen)
    assert recorded(bus)["c1"]["output"] == shown.results["c1"]
    assert recorded(bus)["c1"]["sends"] == []
    assert steps_without_ids(bus) == [("start", None), ("error", HIDDEN)]
    assert message_contents(bus, "chat:Cy") == []


async def test_a_tool_without_a_failure_function_ends_the_run_when_it_raises(bus: MemoryBus) -> None:
    assert await work(bus, script_call("break_down").agent(raising(failure_error_function=None))) is Outcome.BURIED

    assert steps_without_ids(bus) == [("start", None), ("error", HIDDEN)]
    assert results_recorded(bus) == []
    assert message_contents(bus, "chat:Cy") == []
    assert "no such shelf" in dead_letters(bus)[0]["reason"]


async def test_a_tool_that_times_out_is_a_recorded_failure_and_can_send_nothing_more(bus: MemoryBus) -> None:
    gate = threading.Event()
    refused: list[str] = []

    def linger(context: Any) -> None:
        gate.wait(60)
        try:
            send_message("agent:Cy", "too late", context=context)
        except ValueError as refusal:
            refused.append(str(refusal))

    async def dawdle(context: RunContextWrapper[Any]) -> str:
        """Take too long."""
        # A thread of its own: one of the executor may begin after the time is over, and then it does not begin at all.
        threading.Thread(target=copy_context().run, args=(linger, context.context), daemon=True).start()
        await asyncio.Event().wait()
        return "never"

    shown = script_call("dawdle")
    await work(bus, shown.agent(function_tool(dawdle, timeout=0.01)))
    gate.set()

    await until(lambda: refused)
    assert "has ended" in refused[0]
    assert shown.results == {"c1": "Tool 'dawdle' timed out after 0.01 seconds."}
    assert [status for status, _ in tool_steps(bus)] == ["start", "error"]
    assert "ToolTimeoutError" in (tool_steps(bus)[1][1] or "")
    assert message_contents(bus, "chat:Cy") == []


async def test_a_call_of_an_unknown_tool_has_an_output_a_record_and_events(bus: MemoryBus) -> None:
    shown = script_call("juggle")

    await work(bus, shown.agent())

    assert recorded(bus)["c1"]["output"] == shown.results["c1"]
    assert [status for status, _ in tool_steps(bus)] == ["start", "error"]


async def test_a_result_that_is_too_long_for_the_log_is_an_error_to_the_model(bus: MemoryBus) -> None:
    @function_tool
    def shout() -> str:
        """Say too much."""
        return "A" * RESULT_MAX_BYTES

    shown = script_call("shout")
    await work(bus, shown.agent(shout))

    assert f"the limit is {RESULT_MAX_BYTES}" in shown.results["c1"]
    assert [status for status, _ in tool_steps(bus)] == ["start", "error"]


# --- results from the log


RESULTS: dict[str, Any] = {
    "text": "plain",
    "nothing": None,
    "number": 4,
    "object": {"a": [1, 2.5, None, True]},
    "half a character": "\ud83d!",
    "image": ToolOutputImage(image_url="data:image/png;base64,AAAA"),
    "several": [ToolOutputText(text="one"), ToolOutputText(text="two")],
    "tuple": (1, 2),
    "huge number": 10**30,
}


@pytest.mark.parametrize("result", RESULTS.values(), ids=RESULTS.keys())
async def test_a_result_is_the_same_to_the_model_when_it_is_read_from_the_log(bus: MemoryBus, result: Any) -> None:
    runs = 0

    @function_tool
    def give() -> Any:
        """Give something."""
        nonlocal runs
        runs += 1
        return result

    shown = script_call("give")
    mortal = CrashingBus(bus, on="tool", after=True)
    assert await work_until_crash(mortal, shown.agent(give))
    assert results_recorded(bus) == ["c1"]
    again = script_call("give")
    await work(bus, again.agent(give))

    assert runs == 1
    fresh = MemoryBus()
    send(fresh, "go")
    plain = script_call("give")
    await work(fresh, plain.agent(give))
    assert again.results == plain.results
    assert len(results_recorded(fresh)) == 1
    fresh.close()


@tool_output_guardrail
def censor(data: Any) -> ToolGuardrailFunctionOutput:
    return ToolGuardrailFunctionOutput.reject_content("[withheld]")


async def test_later_runs_see_the_output_of_a_guardrail_in_place_of_the_result(bus: MemoryBus) -> None:
    @function_tool
    def tell() -> str:
        """Tell a secret."""
        return "the secret"

    tell.tool_output_guardrails = [censor]
    shown = script_call("tell")
    await work(bus, shown.agent(tell))

    assert shown.results == {"c1": "[withheld]"}
    assert recorded(bus)["c1"]["output"] == "[withheld]"
