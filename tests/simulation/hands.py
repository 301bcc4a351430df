"""The tools of simulated runs. They are made once: whose process they work in, they find by the run's bus."""

from __future__ import annotations

import asyncio
from functools import cache
from typing import Any

from agents import RunContextWrapper, function_tool
from agents.tool_context import ToolContext

from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.team.graph import function_tool_of
from magent2.tools.default_tools import RUN_PYTHON
from magent2.tools.sending import send
from magent2.tools.subagents import NAMES, subagent_tools
from tests.simulation.blocks import python_tool
from tests.simulation.calls import BLOCK, CHILD, SEND, call_ids, kind_of, result_of, turn_of
from tests.simulation.moods import Temper
from tests.simulation.town import send_of, sending_tools

LETTER_TO = "Ada"


async def _do(context: RunContextWrapper[Any]) -> str:
    assert isinstance(context, ToolContext)
    temper, call = Temper.of(context.context), context.tool_call_id
    await temper.line.breathe()
    temper.see(context.context, turn_of(call), call)
    await asyncio.sleep(temper.dice.choice((0.0, temper.dice.random())))
    return result_of(call)


@function_tool
async def work(context: RunContextWrapper[Any]) -> str:
    """Do a piece of work."""
    return await _do(context)


@function_tool(needs_approval=True)
async def pay(context: RunContextWrapper[Any]) -> str:
    """Do what a person must agree to."""
    return await _do(context)


@function_tool
async def tell(context: RunContextWrapper[Any]) -> str:
    """Do a piece of work and send a letter."""
    run: RunContext = context.context
    result = await _do(context)
    letter = MessageEnvelope(
        conversation_id=run.conversation_id,
        sender=f"agent:{run.agent}",
        recipient=f"agent:{LETTER_TO}",
        content=result,
    )
    send(run.bus, letter)
    return result


def tool_of(call: str, conversation: str) -> str:
    """The name of the tool that a call is of."""
    kind = kind_of(call)
    return RUN_PYTHON if kind == BLOCK else send_of(call, conversation).tool if kind == SEND else kind


def tools_for(envelope: MessageEnvelope) -> list[Any]:
    """Those that the mail asks for: for each tool that an agent has, the SDK starts a task in every turn."""
    calls = (call for turn in call_ids(envelope) for call in turn)
    return [_made(name) for name in dict.fromkeys(tool_of(call, envelope.conversation_id) for call in calls)]


@cache
def _made(name: str) -> Any:
    own = {tool.name: tool for tool in (work, pay, tell)}
    if name in own:
        return own[name]
    if name == RUN_PYTHON:
        return python_tool()
    if name in NAMES:
        return next(function_tool_of(tool) for tool in subagent_tools([CHILD]) if tool.name == name)
    return function_tool_of(sending_tools()[name])
