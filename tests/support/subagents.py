"""A scripted agent that starts a helper as a subagent, messages it while it works, and waits for its result."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agents.testing import assistant_message, function_call

from magent2.roster.spec import AgentSpec, Roster, Scenario
from magent2.runner.team.runner import TeamRunner
from magent2.tools.registry import ToolRegistry, spec_of
from tests.support.journaled_runs import CallbackModel, Items
from tests.support.steerable_run import shown_steers
from tests.support.waiting import LOOK_AGAIN_S

BOSS = AgentSpec("boss", instructions="You are the boss.", subagents=("helper",))
HELPER = AgentSpec("helper", instructions="You help.", tools=("dig",))


def say(items: Sequence[Mapping[str, Any]]) -> Items:
    """The answers of the helper, which is asked by an agent."""
    results = [str(item["output"]) for item in items if item.get("type") == "function_call_output"]
    return _help(items, results) if is_of_helper(items) else _lead(results)


def is_of_helper(items: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a request is one of the helper."""
    return str(next(item["content"] for item in items if item.get("role") == "user")).startswith("[agent:")


def _help(items: Sequence[Mapping[str, Any]], results: Sequence[str]) -> Items:
    heard = [text for _, text in shown_steers(items)]
    if results:
        return [assistant_message(f"{results[-1]}, told: {', '.join(heard)}")]
    return [function_call("dig", {}, call_id="dig")]


def _lead(results: Sequence[str]) -> Items:
    if not results:
        return [function_call("start_agent", {"agent": "helper", "task": "dig"}, call_id="start")]
    helper = json.loads(results[0]).get("subagent_id")
    if len(results) == 1:
        return [function_call("message_agent", {"subagent_id": helper, "text": "deeper"}, call_id="tell")]
    if len(results) == 2:
        return [function_call("agent_result", {"subagent_id": helper}, call_id="wait")]
    return [assistant_message(json.loads(results[2])["text"])]


def subagent_team(
    is_open: Callable[[], bool], note: Callable[[], object], on_help: Callable[[], object] = lambda: None
) -> TeamRunner:
    """`note` is called when the helper begins to dig, which takes until `is_open`.

    `on_help` is called when the model of the helper is.
    """

    def respond(items: Sequence[Mapping[str, Any]]) -> Items:
        if is_of_helper(items):
            on_help()
        return say(items)

    async def dig() -> str:
        """Dig."""
        note()
        while not is_open():
            await asyncio.sleep(LOOK_AGAIN_S)
        return "found gold"

    agents = {agent.name: agent for agent in (BOSS, HELPER)}
    roster = Roster({"mine": Scenario("mine", agents, root="boss")}, default="mine")
    return TeamRunner(roster, ToolRegistry([spec_of(dig)]), kind="compatible", model=CallbackModel(respond))
