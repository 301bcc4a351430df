"""The tools of simulated runs. They are created once and find their process through the bus of the run."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from agents import RunContextWrapper, function_tool
from agents.tool_context import ToolContext

from magent2.models.envelope import MessageEnvelope
from magent2.runner.build import function_tool_of
from magent2.runner.context import RunContext
from magent2.tools import chat
from magent2.tools.default_tools import RUN_PYTHON
from magent2.tools.subagents import NAMES, subagent_tools
from tests.simulation.blocks import python_tool
from tests.simulation.calls import BLOCK, PICK, SEND, SUBAGENT, TELL, call_ids, kind_of, result_of, turn_of
from tests.simulation.directory_fixture import send_call, sending_tools
from tests.simulation.plain_runner import MailFaults

MESSAGE_RECIPIENT = "Ada"


async def _do_work(context: RunContextWrapper[Any]) -> str:
    assert isinstance(context, ToolContext)
    faults, call = MailFaults.of(context.context), context.tool_call_id
    await faults.bus.checkpoint()
    faults.on_call(context.context, turn_of(call), call)
    await asyncio.sleep(faults.rng.choice((0.0, faults.rng.random())))
    faults.raise_tool_bug(call)
    return result_of(call)


@function_tool
async def work(context: RunContextWrapper[Any]) -> str:
    """Do a piece of work."""
    return await _do_work(context)


@function_tool(needs_approval=True)
async def pay(context: RunContextWrapper[Any]) -> str:
    """Do work that needs approval."""
    return await _do_work(context)


@function_tool(name_override=TELL)
async def send_message(context: RunContextWrapper[Any]) -> str:
    """Do a piece of work and send a message."""
    run: RunContext = context.context
    result = await _do_work(context)
    chat.send_message(f"agent:{MESSAGE_RECIPIENT}", result, context=run)
    return result


def tool_of(call: str, conversation: str) -> str:
    """The name of the tool that a call is for."""
    kind = kind_of(call)
    return RUN_PYTHON if kind == BLOCK else send_call(call, conversation).tool if kind == SEND else kind


def tools_for(envelope: MessageEnvelope) -> list[Any]:
    """Only the tools that the mail needs, because the SDK starts a task per tool of an agent in every turn.

    The tool of the client is not among them: the mail brings it.
    """
    calls = (call for turn in call_ids(envelope) for call in turn if kind_of(call) != PICK)
    return [_new_tool(name) for name in dict.fromkeys(tool_of(call, envelope.conversation_id) for call in calls)]


@cache
def _new_tool(name: str) -> Any:
    own = {tool.name: tool for tool in (work, pay, send_message)}
    if name in own:
        return own[name]
    if name == RUN_PYTHON:
        return python_tool()
    if name in NAMES:
        return next(function_tool_of(tool) for tool in subagent_tools([SUBAGENT]) if tool.name == name)
    return function_tool_of(sending_tools()[name])
