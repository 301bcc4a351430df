"""Results that the model need not see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agents.testing import function_call

from magent2.bus.memory import MemoryBus
from magent2.runner.build import function_tool_of
from magent2.tools.definition import ToolDefinition, ToolExecutionContext, ToolExecutionResult, ToolSignature
from tests.support.journaled_runs import CrashingBus, ToolCallScript, answers_recorded, work, work_until_crash
from tests.support.worker_fixture import outputs


def quiet(name: str, skip: bool = True) -> ToolDefinition:
    async def execute(given: Mapping[str, Any], context: ToolExecutionContext) -> ToolExecutionResult[str]:
        return ToolExecutionResult(f"{name} is done", f"{name} is done", skip_turn=skip)

    return ToolDefinition(ToolSignature(name, "Does it.", {"type": "object", "properties": {}}), {}, execute)


def calling(*names: str) -> ToolCallScript:
    return ToolCallScript(*(function_call(name, {}, call_id=name) for name in names))


async def test_a_call_that_skips_the_turn_is_the_output_without_a_model_call(bus: MemoryBus) -> None:
    shown = calling("say")

    await work(bus, shown.agent(function_tool_of(quiet("say"))))

    assert (outputs(bus), answers_recorded(bus), shown.results) == (["say is done"], [0], {})


async def test_an_attempt_that_takes_over_skips_the_turn_too(bus: MemoryBus) -> None:
    shown = calling("say")
    agent = shown.agent(function_tool_of(quiet("say")))

    assert await work_until_crash(CrashingBus(bus, on="tool", after=True), agent)
    await work(bus, agent)

    assert (outputs(bus), answers_recorded(bus)) == (["say is done"], [0])


async def test_the_model_is_called_if_one_result_of_several_is_for_it(bus: MemoryBus) -> None:
    shown = calling("say", "look")

    await work(bus, shown.agent(function_tool_of(quiet("say")), function_tool_of(quiet("look", skip=False))))

    assert (outputs(bus), answers_recorded(bus)) == (["done"], [0, 1])
