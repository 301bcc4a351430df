"""From a configuration to what the SDK wants to have."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from agents import Agent, Model, ModelProvider, RunConfig, Tool, ToolErrorFormatterArgs

from magent2.errors import InvalidInput, Refused
from magent2.runner.config import TOOLS, RunnerConfig


def build_agent(config: RunnerConfig, model: Model | None = None) -> Agent[Any]:
    """The agent that the configuration describes, on another model if one is given."""
    return Agent(
        name=config.agent_name,
        instructions=config.instructions,
        model=model or config.model,
        tools=[load_tool(name) for name in config.tools],
    )


def load_tool(name: str) -> Tool:
    module, attribute = TOOLS[name]
    tool: Tool = getattr(import_module(module), attribute)
    return tool


def run_config(note_failure: Callable[[str, str], None], provider: ModelProvider) -> RunConfig:
    """How every run is done. `note_failure` is told the id of a call that failed, and why.

    The SDK's own tracing is off: it would send conversations to a third party, whatever server the model is on.
    A tool that does not exist is an answer to the model, which can do better; it does not end the run.
    """

    def explain(failure: ToolErrorFormatterArgs[Any]) -> str | None:
        note_failure(failure.call_id, reason_of(failure))
        return str(failure.error) if isinstance(failure.error, InvalidInput | Refused) else None

    return RunConfig(
        model_provider=provider,
        tracing_disabled=True,
        tool_error_formatter=explain,
        tool_not_found_behavior="return_error_to_model",
    )


def reason_of(failure: ToolErrorFormatterArgs[Any]) -> str:
    if failure.error is None:
        return failure.default_message
    return f"{type(failure.error).__name__}: {failure.error}"
