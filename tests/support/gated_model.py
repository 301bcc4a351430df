"""The demo model with a gate, for tests of the page: it waits at the gate, or fails, when the message says so.

`held: TEXT` streams the first half of the text, waits until the gate is open, and streams the rest. `gated: TEXT` waits
at the gate first and then does what TEXT says, also if more messages follow it in the same request. `fail: TEXT` raises
ModelRefused. `down: TEXT` raises ModelUnavailable, which is retried, while the gate is closed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from itertools import takewhile
from typing import Any

from agents import TResponseInputItem
from agents.items import TResponseStreamEvent

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.directory.users import accept_friendship, create_user, remove_friendship, request_friendship
from magent2.errors import ModelRefused, ModelUnavailable
from magent2.models.principal import ADMIN
from magent2.roster.agents_file import default_roster
from magent2.roster.spec import McpServer, Roster
from magent2.runner.config import RunnerConfig
from magent2.runner.demo.model import DemoModel
from magent2.runner.team.runner import TeamRunner
from magent2.tools.builtins import BuiltinTools
from magent2.tools.default_tools import STANDARD
from magent2.tools.registry import ToolRegistry, tool

EXTRA_TOOLS = ("chat_send", "run_python", "friend_send", "send_file", "part")
SUBAGENTS = ("support",)
FRIENDS = ("bob", "cat")  # of the local user
LOCAL = ADMIN.name.partition(":")[2]
SENDER_LABEL = re.compile(r"^\[agent:[^\]]*\]: ")
HELD, GATED, FAIL, DOWN = "held:", "gated:", "fail:", "down:"


class GatedModel(DemoModel):
    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def stream_response(self, system_instructions: str | None, input: Any, *more: Any, **state: Any) -> Any:  # noqa: A002
        input = _without_sender_labels(input)  # noqa: A001
        texts = _unanswered_texts(input)
        text = texts[-1] if texts else ""
        if text.startswith(FAIL):
            raise ModelRefused("told to fail")
        if text.startswith(DOWN) and not self.gate.is_set():
            raise ModelUnavailable("the provider does not answer")
        # A message that arrives before the run has started is in its first request, behind the one with the prefix.
        if any(unanswered.startswith(GATED) for unanswered in texts):
            await self.gate.wait()
            input = _without_prefix(GATED, input)  # noqa: A001
        events = super().stream_response(system_instructions, input, *more, **state)
        async for event in self._held(events) if text.startswith(HELD) else events:
            yield event

    async def _held(self, events: AsyncIterator[TResponseStreamEvent]) -> AsyncIterator[TResponseStreamEvent]:
        collected = [event async for event in events]
        for index, event in enumerate(collected):
            if index == len(collected) // 2:
                await self.gate.wait()
            yield event


def _unanswered_texts(model_input: str | list[TResponseInputItem]) -> list[str]:
    """The messages of users since the last item of another kind."""
    if isinstance(model_input, str):
        return [model_input]
    last = list(takewhile(lambda item: item.get("role") == "user", reversed(model_input)))
    return [str(item.get("content")) for item in reversed(last)]


def _without_sender_labels(model_input: str | list[TResponseInputItem]) -> Any:
    """Remove the labels of messages from agents, so that their commands work like those of users."""
    if isinstance(model_input, str):
        return model_input
    return [_with_text(item, lambda text: SENDER_LABEL.sub("", text)) for item in model_input]


def _without_prefix(prefix: str, model_input: str | list[TResponseInputItem]) -> Any:
    if isinstance(model_input, str):
        return model_input.removeprefix(prefix).strip()
    return [_with_text(item, lambda text: text.removeprefix(prefix).strip()) for item in model_input]


def _with_text(item: Any, change: Callable[[str], str]) -> Any:
    content = item.get("content") if isinstance(item, dict) else None
    return {**item, "content": change(content)} if isinstance(content, str) else item


def page_roster(mcp: tuple[str, ...] = ()) -> Roster:
    """The default team; its root agent also runs Python, sends files and starts the subagent `support`.

    `mcp` names MCP servers of the root agent. They do not exist, so a roster with them is for display only.
    """
    roster = default_roster()
    scenario = roster.scenarios[roster.default]
    root = scenario.agents[scenario.root]
    added = tuple(tool for tool in EXTRA_TOOLS if tool not in root.tools)
    new_root = replace(root, tools=(*root.tools, *added), subagents=SUBAGENTS, mcp=mcp)
    new_scenario = replace(scenario, agents={**scenario.agents, new_root.name: new_root})
    servers = {name: McpServer(name=name, command=(name,)) for name in mcp}
    return replace(roster, scenarios={**roster.scenarios, scenario.id: new_scenario}, mcp={**roster.mcp, **servers})


def befriend(bus: Engine) -> None:
    """Give the local user two friends."""
    for name in (LOCAL, *FRIENDS):
        run_sync(bus, create_user, name, name, {"agent": "support"})
    for name in FRIENDS:
        run_sync(bus, request_friendship, LOCAL, name)
        run_sync(bus, accept_friendship, name, LOCAL)


def gated_team(model: GatedModel, bus: Engine) -> TeamRunner:
    @tool
    def part() -> str:
        """Bob ends the friendship."""
        run_sync(bus, remove_friendship, FRIENDS[0], LOCAL)
        return "parted"

    tools = ToolRegistry([*STANDARD, part])
    return TeamRunner(page_roster(), tools, kind="demo", config=RunnerConfig(), model=model, builtins=BuiltinTools())
