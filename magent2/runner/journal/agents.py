"""The agents of a journalled run: copies of the given agents, whose models and tools go through the journal."""

from __future__ import annotations

import copy
import json
import weakref
from collections.abc import Awaitable, Mapping

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
from magent2.failures import mask_secrets
from magent2.mail.headers import ACTIVE_AGENT
from magent2.models.address import stream_topic
from magent2.models.events import HandoffEvent, McpServerEvent
from magent2.models.json_types import encodable
from magent2.runner.event_mapping import as_text, cut
from magent2.runner.journal.approvals import JournalledMcpTool, approval_check
from magent2.runner.journal.compaction import RequestFitter, RequestPolicy
from magent2.runner.journal.journal import Journal
from magent2.runner.journal.model import JournalModel
from magent2.runner.journal.options import apply_options
from magent2.runner.journal.output import check_output_of
from magent2.runner.journal.tool_calls import RecordedCall, call_tool
from magent2.runner.providers.provider import candidates_of
from magent2.runner.sdk_run import sdk_tool_failure
from magent2.sessions.folds import function_calls

HANDOFF_REASON_MAX_CHARS = 300  # of the reason that a model gives
ANY_AGENT = ""  # in a table by agent: those that it does not name
LOCAL_TOOLS = (ApplyPatchTool, ComputerTool, CustomTool, LocalShellTool)


class JournalledAgents:
    """Copies the agents of one run. Each agent is copied once, so that agents can hand off in circles."""

    def __init__(
        self,
        journal: Journal,
        provider: ModelProvider,
        contexts: Mapping[str, RequestPolicy] | None = None,
    ) -> None:
        """`contexts` says what the requests of each agent may contain."""
        self._journal = journal
        self._contexts = contexts or {}
        self._provider = provider
        self._copies: dict[int, Agent] = {}  # by `id` of the original
        self._reported: set[str] = set()  # MCP servers that cannot be used
        self._originals: list[Agent] = []  # referenced here, so that no `id` is used for another object

    def copy_of(self, agent: object) -> Agent:
        if not isinstance(agent, Agent):
            raise InvalidInput(f"a journalled run needs an agent of the SDK, not {type(agent).__name__}")
        if id(agent) not in self._copies:
            self._originals.append(agent)
            made = self._copies[id(agent)] = copy.copy(agent)
            candidates = candidates_of(self._provider, agent.model)
            context = self._contexts.get(agent.name, self._contexts.get(ANY_AGENT))
            fitter = RequestFitter(self._journal, agent.name, candidates, self._provider, context)
            made.model = JournalModel(candidates, self._journal, agent.name, fitter)
            apply_options(made, self._journal)
            check_output_of(made, self._journal.context.options.output_schema)
            made.tools = [self._tool(tool, agent.name) for tool in made.tools]
            made.handoffs = [self._handoff(target, agent) for target in agent.handoffs]
            if agent.tool_use_behavior == "run_llm_again":
                made.tool_use_behavior = self._after_tools
            if agent.mcp_servers or "get_mcp_tools" in vars(agent):
                self._journal_mcp_tools(made)
        return self._copies[id(agent)]

    async def _after_tools(
        self, context: RunContextWrapper, results: list[FunctionToolResult]
    ) -> ToolsToFinalOutputResult:
        """Make the last tool result the output of the run if every call of the turn says that the model can be skipped.

        The records decide, not the calls of this attempt: a replayed call must have the same effect.
        """
        journal = self._journal
        calls = function_calls(journal.last_output)
        records = [journal.results.get((journal.last_turn, call["call_id"])) for call in calls]
        if not records or not all(record is not None and record.get("skip_turn") for record in records):
            return ToolsToFinalOutputResult(is_final_output=False)
        return ToolsToFinalOutputResult(is_final_output=True, final_output=as_text(results[-1].output))

    # --- tools

    def _tool(self, tool: Tool, agent: str) -> Tool:
        check_tool(tool, agent)
        if isinstance(tool, HostedMCPTool) and tool.on_approval_request is None:
            return JournalledMcpTool(tool, self._journal)
        return self._function_tool(tool, agent) if isinstance(tool, FunctionTool) else tool

    def _function_tool(self, tool: FunctionTool, agent: str) -> FunctionTool:
        journal, inner = self._journal, self._with_failure_reasons(tool)

        async def invoke(context: ToolContext, arguments: str) -> object:
            return await call_tool(journal, inner, context, arguments, agent)

        outer = copy.copy(tool)
        outer.on_invoke_tool = invoke
        outer.needs_approval = approval_check(journal, tool.needs_approval)
        # The timeout of the inner tool applies. A timeout here could cancel the commit of the result.
        outer.timeout_seconds = None
        return outer

    def _with_failure_reasons(self, tool: FunctionTool) -> FunctionTool:
        """Copy the tool so that the journal learns why a call failed.

        The SDK's default text needs no wrapper: the formatter of the run (`run_config`) notes the reason.
        """
        copied = copy.copy(tool)
        formatter = resolve_function_tool_failure_error_function(tool)
        if formatter is not None and formatter is not default_tool_error_function:
            set_function_tool_failure_error_function(copied, self._note_reason(formatter))
        if tool.timeout_seconds is not None:
            message = default_tool_timeout_error_message(tool_name=tool.name, timeout_seconds=tool.timeout_seconds)
            timeout_formatter = tool.timeout_error_function or (lambda context, error: message)
            copied.timeout_error_function = self._note_reason(timeout_formatter)
        return copied

    def _note_reason(self, formatter: ToolErrorFunction) -> ToolErrorFunction:
        failures = self._journal.failures

        async def format_and_note(context: RunContextWrapper, error: Exception) -> str:
            if isinstance(context, ToolContext):
                failures[context.tool_call_id] = sdk_tool_failure(context.tool_name, error).named
            text = formatter(context, error)
            return mask_secrets(await text if isinstance(text, Awaitable) else text)

        return format_and_note

    def _journal_mcp_tools(self, made: Agent) -> None:
        """Wrap the listing of MCP tools: they are only known when a turn begins."""
        list_tools = made.get_mcp_tools

        async def get_mcp_tools(context: RunContextWrapper) -> list[Tool]:
            tools = await list_tools(context)
            await self._report_mcp_servers(made.name)
            return [self._tool(tool, made.name) for tool in tools]

        object.__setattr__(made, "get_mcp_tools", get_mcp_tools)

    async def _report_mcp_servers(self, agent: str) -> None:
        """Emit an event for each MCP server that cannot be used, once in an attempt and not in replayed turns."""
        journal, context = self._journal, self._journal.context
        for server in context.mcp_unavailable.keys() - self._reported:
            if journal.turn not in journal.responses:
                self._reported.add(server)
                event = McpServerEvent(
                    conversation_id=context.conversation_id, server=server, reason=context.mcp_unavailable[server]
                )
                await journal.emit(journal.event(event, journal.turn, agent))

    # --- handoffs

    def _handoff(self, target: Agent | Handoff, source: Agent) -> Handoff:
        original = handoff(target) if isinstance(target, Agent) else target
        known_target = original._agent_ref() if original._agent_ref is not None else None

        async def invoke(context: RunContextWrapper, arguments: str) -> Agent:
            return await self._hand_off(original, known_target, source, context, arguments)

        made = copy.copy(original)
        made.on_invoke_handoff = invoke
        if isinstance(known_target, Agent):
            made._agent_ref = weakref.ref(self.copy_of(known_target))
        return made

    async def _hand_off(
        self, original: Handoff, known_target: object, source: Agent, context: RunContextWrapper, arguments: str
    ) -> Agent:
        """Invoke the handoff and continue with the copy of its target. A recorded handoff is not invoked again.

        If the target is not known before, the handoff has to be invoked to learn it, but its event is emitted once.
        """
        journal = self._journal
        # The SDK does not say which call it is. It takes one handoff per response, the first call of that name.
        calls = function_calls(journal.last_output)
        call_id = next((call["call_id"] for call in calls if call["name"] == original.tool_name), original.tool_name)
        call = RecordedCall(journal, journal.last_turn, call_id, original.tool_name, arguments, source.name)
        recorded = call.result_record is not None
        if recorded and isinstance(known_target, Agent):
            return self.copy_of(known_target)
        call.observe()
        async with call.running() as scope:
            target: Agent = await original.on_invoke_handoff(context, arguments)
        if not recorded:
            event = HandoffEvent(
                conversation_id=journal.context.conversation_id,
                source=source.name,
                target=target.name,
                reason=_reason(arguments),
            )
            await journal.emit(journal.event(event, call.turn, source.name))
            heads = self._active_agent_heads(target.name)
            await call.record_handoff(original.get_transfer_message(target), scope.sends, heads)
        return self.copy_of(target)

    def _active_agent_heads(self, target: str) -> tuple[SetHead, ...]:
        """The head that sends further mail to the target, if it has a mailbox: if the spec of the run names it."""
        context = self._journal.context
        if target not in context.run.spec.get("agents", ()):
            return ()
        return (SetHead(stream_topic(context.conversation_id), {ACTIVE_AGENT: target}),)


def check_tool(tool: Tool, agent: str) -> None:
    """Raise `ModelError` for a tool of the SDK whose calls cannot be recorded."""
    if isinstance(tool, LOCAL_TOOLS) or (isinstance(tool, ShellTool) and tool.executor is not None):
        raise ModelError(
            f"{type(tool).__name__} of agent {agent!r} would act a second time after a crash;"
            " give the agent a function_tool that does the work"
        )


def _reason(arguments: str) -> str | None:
    """The reason that the model gives for a handoff, if its arguments have one."""
    try:
        parsed = json.loads(arguments) if arguments.strip() else None
    except (ValueError, RecursionError):  # a model may write anything
        return None
    reason = parsed.get("reason") if isinstance(parsed, dict) else None
    words = " ".join(encodable(reason).split()) if isinstance(reason, str) else ""
    return cut(words, HANDOFF_REASON_MAX_CHARS) or None
