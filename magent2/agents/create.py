"""Create an agent that runs in this process."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import wraps
from typing import TypeAlias, cast, get_args, get_origin

from agents import Agent, Model, ModelSettings, Tool, function_tool

from magent2.agents.injection import BusModel
from magent2.context.agent import AgentContext
from magent2.errors import InvalidInput
from magent2.fair_share import FairThreads
from magent2.models.address import check_name
from magent2.runner.build import function_tool_of
from magent2.runner.config import DEFAULT_AGENT, MAX_TURNS
from magent2.runner.demo.script import DEMO
from magent2.runner.providers.catalogue import OPENAI
from magent2.runner.providers.provider import LoopProvider
from magent2.runner.select import LOCAL
from magent2.tools.interface import TOOL_THREADS_MAX, run_in_tool_thread
from magent2.tools.registry import ToolSpec

MODELS = f"'{OPENAI}:NAME', 'PROVIDER/NAME', '{DEMO}', '{LOCAL}', or a model object of the SDK"

SDK_TOOLS = tuple(get_origin(kind) or kind for kind in get_args(Tool))

AnyTool: TypeAlias = Tool | ToolSpec | Callable[..., object]


@dataclass(slots=True)
class AgentRuntime:
    """An agent, its context and its models. Receives messages from its creation on. Runs one stream at a time."""

    agent: Agent
    ctx: AgentContext
    provider: LoopProvider
    max_turns: int = MAX_TURNS
    streaming: bool = field(default=False, init=False)


def create_agent(
    model: str | Model,
    *,
    instructions: str | None = None,
    tools: Iterable[AnyTool] = (),
    handoffs: Iterable[Agent | AgentRuntime] = (),
    model_settings: ModelSettings | None = None,
    name: str = DEFAULT_AGENT,
    ctx: AgentContext | None = None,
    max_turns: int = MAX_TURNS,
) -> AgentRuntime:
    """Create an agent. The model is `openai:NAME` (the server is `OPENAI_BASE_URL`), `demo`, `local`, an SDK object, or
    one of another provider, such as `anthropic/NAME`.

    Messages to its context reach its next model call, in `stream_agent` and in a run of the SDK: `Runner.run(agent)`.
    Tools are functions, tools of the SDK or `ToolSpec`s. The SDK passes them the agent's context. `handoffs` are agents
    that it may hand the conversation off to; from then on they receive the messages to this agent. `ctx` is an existing
    context, for example that of a subagent; by default the agent is the main one of a new run. A stream calls the model
    at most `max_turns` times.
    """
    if max_turns < 1:
        raise InvalidInput(f"max_turns must be at least 1, not {max_turns}")
    sdk_model, provider = _resolve_model(model)
    agent = Agent(
        name=check_name(name, "agent name"),
        instructions=instructions,
        model=sdk_model,
        tools=[_sdk_tool(tool) for tool in tools],
        handoffs=[target.agent if isinstance(target, AgentRuntime) else target for target in handoffs],
    )
    if model_settings is not None:  # else the SDK's defaults for this model
        agent.model_settings = model_settings
    context = AgentContext() if ctx is None else ctx
    agent.model = BusModel(sdk_model, provider, context)  # not before: the SDK chooses the settings by the model's name
    context.subscribe()
    return AgentRuntime(agent, context, provider, max_turns)


def _resolve_model(model: str | Model) -> tuple[str | Model, LoopProvider]:
    if not isinstance(model, str):
        if not isinstance(model, Model):
            raise InvalidInput(f"the model must be {MODELS}, not a {type(model).__name__}")
        return model, LoopProvider()
    if model == DEMO:
        from magent2.runner.demo.model import DemoModel

        return DemoModel(), LoopProvider()
    if model == LOCAL:
        from magent2.runner.local import MODEL_NAME, local_server

        server = local_server()
        return MODEL_NAME, LoopProvider(server.api_key, server.url)
    provider = LoopProvider()
    if provider.catalogue.find(model).endpoint.provider != OPENAI:
        return model, provider
    prefix, colon, name = model.partition(":")
    if prefix != OPENAI or not colon or not name.strip():
        raise InvalidInput(f"unknown model {model[:80]!r}: use {MODELS}")
    # The SDK reads what is before a slash as the provider.
    return f"{OPENAI}/{name}" if "/" in name else name, provider


def _sdk_tool(tool: AnyTool) -> Tool:
    if isinstance(tool, ToolSpec):
        return function_tool_of(tool.definition())
    if isinstance(tool, SDK_TOOLS):
        return cast(Tool, tool)
    if callable(tool):
        return function_tool(_on_threads(tool) if inspect.isfunction(tool) else tool)
    raise InvalidInput(f"a tool must be a function, a tool of the SDK or a ToolSpec, not a {type(tool).__name__}")


def _on_threads(function: Callable[..., object]) -> Callable[..., object]:
    """The same function, asynchronous: its code runs on threads for tools and not in the loop's default executor."""
    if inspect.iscoroutinefunction(function):
        return function
    threads = FairThreads(TOOL_THREADS_MAX)

    @wraps(function)
    async def run(*args: object, **kwargs: object) -> object:
        return await run_in_tool_thread(threads, function, *args, **kwargs)

    return run
