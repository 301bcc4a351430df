"""Apply the options of a message to the agents of its run. They are copies, so no other run sees it.

A tool of the client is a function tool that waits, as one does that needs approval. The decision on its call has the
output, which is the result of the call.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import isawaitable

from agents import Agent, FunctionTool, Handoff, ModelSettings, RunContextWrapper
from agents.tool_context import ToolContext
from openai.types.shared import Reasoning

from magent2.bus.log import Log
from magent2.errors import InvalidInput
from magent2.models.run_options import ClientTool, RunModelSettings
from magent2.runner.journal.journal import Journal
from magent2.sessions.approvals import find_output

NO_OUTPUT = "The call has no result: its output was lost."


def apply_options(agent: Agent, journal: Journal) -> None:
    """Change the copy of an agent: its instructions, its tools and the settings of its model.

    The choice of a tool is for the agent that the run starts with. Raises `InvalidInput` for a tool of the client that
    has the name of a tool of the agent, and for the choice of a tool that there is not.
    """
    options = journal.context.options
    if options.instructions:
        agent.instructions = with_instructions(agent.instructions, options.instructions)
    if options.model_settings is not None:
        agent.model_settings = agent.model_settings.resolve(_model_settings(options.model_settings))
    if not options.tools and options.tool_choice is None:
        return
    own = {tool.name for tool in agent.tools} | {
        target.tool_name if isinstance(target, Handoff) else Handoff.default_tool_name(target)
        for target in agent.handoffs
    }
    for tool in options.tools or ():
        if tool.name in own:
            raise InvalidInput(f"agent {agent.name!r} has a tool {tool.name!r} of its own; rename the client's")
    agent.tools = [*agent.tools, *(_client_tool(tool, journal) for tool in options.tools or ())]
    choice = options.tool_choice
    if choice is None or agent.name != journal.context.agent:
        return
    known = own | {tool.name for tool in options.tools or ()}
    # The tools of an MCP server are not known yet.
    if choice not in {"auto", "none", "required", *known} and not agent.mcp_servers:
        raise InvalidInput(
            f"tool_choice: agent {agent.name!r} has no tool {choice!r}; name one that the request brings"
        )
    agent.model_settings = agent.model_settings.resolve(ModelSettings(tool_choice=choice))


def _client_tool(tool: ClientTool, journal: Journal) -> FunctionTool:
    async def invoke(context: ToolContext, arguments: str) -> object:
        """The output that the client has sent."""
        key = journal.last_turn, context.tool_call_id
        decision = journal.decisions.get(key)
        if decision is not None and "output" in decision:
            return decision["output"]
        # A worker of an older release has recorded the decision without the output. The mail of the client has it.
        run = journal.context
        found = await find_output(Log(run.bus), run.conversation_id, run.agent, run.run_id, *key)
        return NO_OUTPUT if found is None else found

    return FunctionTool(
        name=tool.name,
        description=tool.description,
        params_json_schema=tool.parameters,
        on_invoke_tool=invoke,
        strict_json_schema=bool(tool.strict),
        needs_approval=True,
    )


def with_instructions(
    own: str | Callable[..., object] | None, more: str
) -> str | Callable[[RunContextWrapper, Agent], Awaitable[str]]:
    """An agent's own instructions, then more as a separate paragraph."""
    if own is None or isinstance(own, str):
        return _joined(own, more)

    async def instructions(context: RunContextWrapper, agent: Agent) -> str:
        found = own(context, agent)
        return _joined(str(await found if isawaitable(found) else found), more)

    return instructions


def _joined(own: str | None, more: str) -> str:
    return "\n\n".join(text for part in (own or "", more) if (text := part.strip()))


def _model_settings(wanted: RunModelSettings) -> ModelSettings:
    effort = wanted.reasoning_effort
    return ModelSettings(
        temperature=wanted.temperature,
        top_p=wanted.top_p,
        frequency_penalty=wanted.frequency_penalty,
        presence_penalty=wanted.presence_penalty,
        max_tokens=wanted.max_tokens,
        reasoning=None if effort is None else Reasoning(effort=effort),
        verbosity=wanted.verbosity,
        parallel_tool_calls=wanted.parallel_tool_calls,
    )
