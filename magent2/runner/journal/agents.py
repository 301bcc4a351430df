"""The agents of a journalled run: copies of those that were given, whose models and tools go through the journal."""

from __future__ import annotations

import copy
import json
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

from agents import (
    Agent,
    ApplyPatchTool,
    ComputerTool,
    CustomTool,
    FunctionTool,
    FunctionToolResult,
    Handoff,
    HostedMCPTool,
    LocalShellTool,
    Model,
    ModelProvider,
    RunContextWrapper,
    ShellTool,
    Tool,
    ToolsToFinalOutputResult,
    handoff,
)
from agents.tool import (
    ToolErrorFunction,
    default_tool_error_function,
    default_tool_timeout_error_message,
    resolve_function_tool_failure_error_function,
    set_function_tool_failure_error_function,
)
from agents.tool_context import ToolContext

from magent2.bus.operations import SetHead
from magent2.errors import InvalidInput, ModelError
from magent2.mail.headers import ACTIVE_AGENT
from magent2.models.address import stream_topic
from magent2.models.events import HandoffEvent
from magent2.runner.journal.approvals import JournalledMcp, asking
from magent2.runner.journal.journal import Journal
from magent2.runner.journal.model import JournalModel, final_of
from magent2.runner.journal.tool_calls import RecordedCall, call_tool, seen
from magent2.sessions.folds import function_calls
from magent2.tools.interface import call_scope

LOCAL_TOOLS = (ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool)


class JournalledAgents:
    """Copies for one run, each made once, so that agents may hand off in circles."""

    def __init__(self, journal: Journal, provider: ModelProvider) -> None:
        self._journal = journal
        self._provider = provider
        self._copies: dict[int, Agent[Any]] = {}
        self._originals: list[Agent[Any]] = []  # kept, so that no id is used twice

    def copy_of(self, agent: Agent[Any]) -> Agent[Any]:
        if not isinstance(agent, Agent):
            raise InvalidInput(f"a journalled run needs an agent of the SDK, not {type(agent).__name__}")
        if id(agent) not in self._copies:
            self._originals.append(agent)
            made = self._copies[id(agent)] = copy.copy(agent)
            made.model = JournalModel(self._model_of(agent), self._journal, agent.name)
            made.tools = [self._tool(tool, agent.name) for tool in agent.tools]
            made.handoffs = [self._handoff(target, agent) for target in agent.handoffs]
            if agent.tool_use_behavior == "run_llm_again":
                made.tool_use_behavior = self._after_tools
            if agent.mcp_servers or "get_mcp_tools" in vars(agent):
                self._journal_mcp(made)
        return self._copies[id(agent)]

    def _model_of(self, agent: Agent[Any]) -> Model:
        return agent.model if isinstance(agent.model, Model) else self._provider.get_model(agent.model)

    # --- tools

    async def _after_tools(
        self, context: RunContextWrapper[Any], results: list[FunctionToolResult]
    ) -> ToolsToFinalOutputResult:
        return await final_of(self._journal, results)

    def _tool(self, tool: Tool, agent: str) -> Tool:
        if isinstance(tool, LOCAL_TOOLS) or (isinstance(tool, ShellTool) and tool.executor is not None):
            raise ModelError(
                f"{type(tool).__name__} of agent {agent!r} would act a second time after a crash;"
                " give the agent a function_tool that does the work"
            )
        if isinstance(tool, HostedMCPTool) and tool.on_approval_request is None:
            return JournalledMcp(tool, self._journal)
        return self._function_tool(tool, agent) if isinstance(tool, FunctionTool) else tool

    def _function_tool(self, tool: FunctionTool, agent: str) -> FunctionTool:
        journal, inner = self._journal, self._telling(tool)

        async def invoke(context: ToolContext[Any], arguments: str) -> Any:
            return await call_tool(journal, inner, context, arguments, agent)

        outer = copy.copy(tool)
        outer.on_invoke_tool = invoke
        outer.needs_approval = asking(journal, tool.needs_approval)
        outer.timeout_seconds = None  # the inner one keeps the time: what comes after its end must not be cut off
        return outer

    def _telling(self, tool: FunctionTool) -> FunctionTool:
        """A copy that tells why a call failed. The default wording is told by the run's own formatter."""
        telling = copy.copy(tool)
        formatter = resolve_function_tool_failure_error_function(tool)
        if formatter is not None and formatter is not default_tool_error_function:
            set_function_tool_failure_error_function(telling, self._noting(formatter))
        if tool.timeout_seconds is not None:
            telling.timeout_error_function = self._noting(tool.timeout_error_function or _timed_out(tool))
        return telling

    def _noting(self, formatter: ToolErrorFunction) -> ToolErrorFunction:
        failures = self._journal.failures

        def noting(context: RunContextWrapper[Any], error: Exception) -> Any:
            if isinstance(context, ToolContext):
                failures[context.tool_call_id] = f"{type(error).__name__}: {error}"
            return formatter(context, error)

        return noting

    def _journal_mcp(self, made: Agent[Any]) -> None:
        """Tools of MCP servers are only known when a turn begins."""
        listed: Callable[[RunContextWrapper[Any]], Awaitable[list[Tool]]] = made.get_mcp_tools

        async def get_mcp_tools(context: RunContextWrapper[Any]) -> list[Tool]:
            return [self._tool(tool, made.name) for tool in await listed(context)]

        object.__setattr__(made, "get_mcp_tools", get_mcp_tools)

    # --- handoffs

    def _handoff(self, target: Agent[Any] | Handoff[Any, Any], source: Agent[Any]) -> Handoff[Any, Any]:
        original = handoff(target) if isinstance(target, Agent) else target
        known = original._agent_ref() if original._agent_ref is not None else None

        async def invoke(context: RunContextWrapper[Any], arguments: str) -> Agent[Any]:
            return await self._hand_over(original, known, source, context, arguments)

        made = copy.copy(original)
        made.on_invoke_handoff = invoke
        if isinstance(known, Agent):
            made._agent_ref = weakref.ref(self.copy_of(known))
        return made

    async def _hand_over(
        self, original: Handoff[Any, Any], known: Any, source: Agent[Any], context: RunContextWrapper[Any], text: str
    ) -> Agent[Any]:
        """Go on with the copy of the target. A recorded handoff emits no event again."""
        call = self._call_of(original.tool_name, source.name, text)
        if call.recorded is not None and isinstance(known, Agent):
            return self.copy_of(known)
        call.observe()
        with call_scope(call.scope()) as scope, seen(call.observed):
            target = await original.on_invoke_handoff(context, text)
        if call.recorded is None:
            await self._journal.emit(self._event(call, source.name, target.name))
            heads = self._heads(target.name)
            await call.hand_over(original.get_transfer_message(target), scope.sends, heads)
        return self.copy_of(target)

    def _heads(self, target: str) -> tuple[SetHead, ...]:
        """Mail goes to the target from now on, if it is an agent with a mailbox: one that the run's spec names."""
        context = self._journal.context
        if target not in context.run.spec.get("agents", ()):
            return ()
        return (SetHead(stream_topic(context.conversation_id), {ACTIVE_AGENT: target}),)

    def _call_of(self, tool: str, source: str, text: str) -> RecordedCall:
        """The SDK does not say which call it is: the first of this name, as it takes no other."""
        journal = self._journal
        calls = function_calls(journal.previous.get("output", ()))
        found = next((call["call_id"] for call in calls if call["name"] == tool), tool)
        return RecordedCall(journal, journal.turn - 1, found, tool, text, source)

    def _event(self, call: RecordedCall, source: str, target: str) -> dict[str, Any]:
        event = HandoffEvent(
            conversation_id=self._journal.context.conversation_id,
            source=source,
            target=target,
            reason=_reason(call.arguments),
        )
        return self._journal.event(event, call.turn, source)


def _reason(arguments: str) -> str | None:
    try:
        given = json.loads(arguments) if arguments.strip() else None
    except ValueError:  # a model may write anything
        return None
    reason = given.get("reason") if isinstance(given, dict) else None
    return reason if isinstance(reason, str) else None


def _timed_out(tool: FunctionTool) -> ToolErrorFunction:
    message = default_tool_timeout_error_message(tool_name=tool.name, timeout_seconds=tool.timeout_seconds or 0)
    return lambda context, error: message
