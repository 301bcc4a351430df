"""Parts of openai-agents that are private or undocumented and that we use: one test each.

An upgrade that renames one of them fails here, by its name. The last test shows that: it renames each in turn.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import agents.mcp
import agents.tool
import pytest
from agents import Agent, Handoff, Model, RunResultStreaming, function_tool, handoff
from agents.models import _run_context as run_context
from agents.testing import ScriptedModel, assistant_message
from agents.tool_context import ToolContext

from magent2.runner.event_mapping import SDK_TOOL_FAILED


def check_handoff_agent_ref() -> None:
    target = Agent(name="Bea")

    assert "_agent_ref" in Handoff.__dataclass_fields__
    assert handoff(target)._agent_ref() is target  # type: ignore[misc]


def check_model_cleanup() -> None:
    assert list(inspect.signature(Model._cleanup_on_run_end).parameters) == ["self", "owner"]
    assert inspect.iscoroutinefunction(Model._cleanup_on_run_end)


def check_run_loop_task() -> None:
    assert "run_loop_task" in dir(RunResultStreaming)


def check_run_loop_exception() -> None:
    assert isinstance(inspect.getattr_static(RunResultStreaming, "run_loop_exception"), property)


def check_get_mcp_tools() -> None:
    assert list(inspect.signature(Agent.get_mcp_tools).parameters) == ["self", "run_context"]


def check_invoke_function_tool() -> None:
    parameters = inspect.signature(agents.tool.invoke_function_tool).parameters
    assert {"function_tool", "context", "arguments"} <= set(parameters)


def check_failure_error_functions() -> None:
    @function_tool
    def work() -> str:
        return "done"

    formatter = lambda context, error: "failed"  # noqa: E731
    agents.tool.set_function_tool_failure_error_function(work, formatter)
    assert agents.tool.resolve_function_tool_failure_error_function(work) is formatter


def check_failure_error_handler() -> None:
    assert callable(agents.tool.with_function_tool_failure_error_handler)


def check_timeout_message() -> None:
    message = agents.tool.default_tool_timeout_error_message(tool_name="work", timeout_seconds=2.0)
    assert "work" in message


def check_tool_context() -> None:
    assert {"tool_call", "tool_call_id", "tool_arguments"} <= set(ToolContext.__dataclass_fields__)


def check_model_run_owner() -> None:
    with run_context.model_run_context(CANARIES):
        assert run_context.get_model_run_owner() is CANARIES


CANARIES: list[tuple[object, str, Callable[[], None]]] = [
    (Handoff, "_agent_ref", check_handoff_agent_ref),
    (Model, "_cleanup_on_run_end", check_model_cleanup),
    (RunResultStreaming, "run_loop_task", check_run_loop_task),
    (RunResultStreaming, "run_loop_exception", check_run_loop_exception),
    (Agent, "get_mcp_tools", check_get_mcp_tools),
    (run_context, "get_model_run_owner", check_model_run_owner),
    (agents.tool, "invoke_function_tool", check_invoke_function_tool),
    (agents.tool, "set_function_tool_failure_error_function", check_failure_error_functions),
    (agents.tool, "resolve_function_tool_failure_error_function", check_failure_error_functions),
    (agents.tool, "with_function_tool_failure_error_handler", check_failure_error_handler),
    (agents.tool, "default_tool_timeout_error_message", check_timeout_message),
    (ToolContext, "tool_call", check_tool_context),
    (ToolContext, "tool_call_id", check_tool_context),
    (ToolContext, "tool_arguments", check_tool_context),
]

cases = pytest.mark.parametrize(("holder", "name", "check"), CANARIES, ids=[name for _, name, _ in CANARIES])


@cases
def test_the_sdk_has_the_private_part_that_we_use(holder: object, name: str, check: Callable[[], None]) -> None:
    check()


@cases
def test_a_renamed_part_of_the_sdk_is_noticed(
    holder: object, name: str, check: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    rename(monkeypatch, holder, name)

    with pytest.raises((AssertionError, AttributeError, NameError, TypeError)):
        check()


def rename(monkeypatch: pytest.MonkeyPatch, holder: Any, name: str) -> None:
    fields = getattr(holder, "__dataclass_fields__", {})
    if name in fields:
        monkeypatch.setitem(fields, f"{name}_renamed", fields[name])
        monkeypatch.delitem(fields, name)
    for owner in holder.__mro__ if isinstance(holder, type) else (holder,):
        if name in vars(owner):
            monkeypatch.setattr(owner, f"{name}_renamed", inspect.getattr_static(owner, name), raising=False)
            monkeypatch.delattr(owner, name)


async def test_a_streamed_run_has_the_task_that_we_wait_for() -> None:
    from agents import Runner

    result = Runner.run_streamed(Agent(name="Ada", model=ScriptedModel([[assistant_message("hi")]])), "hello")
    async for _ in result.stream_events():
        pass

    assert result.run_loop_task is not None
    assert result.run_loop_exception is None


def test_the_text_of_a_failed_tool_is_the_one_that_we_recognise() -> None:
    text = agents.tool.default_tool_error_function(None, ValueError("why"))  # type: ignore[arg-type]

    assert text.startswith(SDK_TOOL_FAILED.partition(".")[0])
