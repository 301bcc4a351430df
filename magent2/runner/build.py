"""From a configuration to what the SDK wants to have."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Any

from agents import Agent, Model, ModelProvider, MultiProvider, RunConfig, Tool, ToolErrorFormatterArgs
from openai import AsyncOpenAI

from magent2.errors import InvalidInput, Refused
from magent2.runner.config import RunnerConfig
from magent2.runner.team.graph import function_tool_of, with_python
from magent2.sandbox.interface import Sandbox
from magent2.tools.builtins import BUILTINS, BuiltinTools, ModelKind
from magent2.tools.default_tools import standard_tools


def build_agent(config: RunnerConfig, sandbox: Sandbox, model: Model | None = None) -> Agent[Any]:
    """The agent that the configuration describes, on another model if one is given. Its blocks run in the sandbox."""
    return Agent(
        name=config.agent_name,
        instructions=config.instructions,
        model=model or config.model,
        tools=load_tools(config, sandbox, hosted=model is None),
    )


def load_tools(config: RunnerConfig, sandbox: Sandbox, *, hosted: bool = True) -> list[Tool]:
    """The tools that the configuration names; of those that the provider runs, the ones that it would take."""
    standard = standard_tools()
    own = with_python([standard.get(name) for name in config.tools if name not in BUILTINS], sandbox)
    here = {tool.name: function_tool_of(tool) for tool in own}
    builtins = BuiltinTools.read()
    kind: ModelKind = builtins.kind_of_server(config.base_url) if hosted else "demo"
    found = [builtins.build(name, kind) if name in BUILTINS else here[name] for name in config.tools]
    return [tool for tool in found if tool is not None]


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


# --- Models by name, over HTTP.


class LoopProvider(ModelProvider):
    """One HTTP client per event loop.

    The SDK shares one client in the whole process. Its pooled connections belong to the loop that opened them, so the
    next run on another loop would fail with "Event loop is closed".
    """

    def __init__(self, api_key: str | None = None, base_url: str | None = None) -> None:
        """What is not given comes from the environment, as the SDK reads it."""
        self._api_key = api_key
        self._base_url = base_url
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[AsyncOpenAI, MultiProvider]] = (
            weakref.WeakKeyDictionary()
        )

    def get_model(self, model_name: str | None) -> Model:
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            client = AsyncOpenAI(api_key=self._api_key, base_url=self._base_url)
            self._by_loop[loop] = client, MultiProvider(openai_client=client)
        _, provider = self._by_loop[loop]
        return provider.get_model(model_name)

    async def aclose(self) -> None:
        """Close the connections of this loop."""
        client, _ = self._by_loop.pop(asyncio.get_running_loop(), (None, None))
        if client is not None:
            await client.close()
