"""The demo model, for tests of the page: it can be held in the middle of an answer, and made to fail.

`held: TEXT` says the first half of the text, waits until the gate is opened, and says the rest. `gated: TEXT` waits
before it does anything, then does what TEXT says. `fail: TEXT` is refused.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from typing import Any

from agents import TResponseInputItem
from agents.items import TResponseStreamEvent

from magent2.bus.flow import run
from magent2.bus.interface import Engine
from magent2.directory.friends import accepting, removing, requesting
from magent2.directory.users import making_user
from magent2.errors import ModelRefused
from magent2.models.principal import ADMIN
from magent2.roster.agents_file import default_roster
from magent2.roster.spec import Roster
from magent2.runner.config import RunnerConfig
from magent2.runner.demo.model import DemoModel
from magent2.runner.team.runner import TeamRunner
from magent2.tools.builtins import BuiltinTools
from magent2.tools.default_tools import STANDARD
from magent2.tools.registry import ToolRegistry, tool

ABLE = ("chat_send", "run_python", "friend_send", "send_file", "part")
STARTABLE = ("support",)
FRIENDS = ("bob", "cat")  # of whoever holds the machine's token
LOCAL = ADMIN.name.partition(":")[2]
LABEL = re.compile(r"^\[agent:[^\]]*\]: ")
HELD, GATED, FAIL = "held:", "gated:", "fail:"


class GatedModel(DemoModel):
    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def stream_response(self, system_instructions: str | None, input: Any, *more: Any, **state: Any) -> Any:  # noqa: A002
        input = _unlabelled(input)  # noqa: A001
        text = _last_text(input)
        if text.startswith(FAIL):
            raise ModelRefused("told to fail")
        if text.startswith(GATED):
            await self.gate.wait()
            input = _without(GATED, input)  # noqa: A001
        events = super().stream_response(system_instructions, input, *more, **state)
        async for event in self._held(events) if text.startswith(HELD) else events:
            yield event

    async def _held(self, events: AsyncIterator[TResponseStreamEvent]) -> AsyncIterator[TResponseStreamEvent]:
        found = [event async for event in events]
        for place, event in enumerate(found):
            if place == len(found) // 2:
                await self.gate.wait()
            yield event


def _last_text(asked: str | list[TResponseInputItem]) -> str:
    if isinstance(asked, str):
        return asked
    said = [item for item in asked if item.get("role") == "user"]
    content = said[-1].get("content") if said else ""
    return content if isinstance(content, str) else str(content)


def _unlabelled(asked: str | list[TResponseInputItem]) -> Any:
    """What agents say, without who says it: they are obeyed as people are."""
    return asked if isinstance(asked, str) else [_shorter(item, lambda text: LABEL.sub("", text)) for item in asked]


def _without(prefix: str, asked: str | list[TResponseInputItem]) -> Any:
    """The same, its texts without the prefix."""
    if isinstance(asked, str):
        return asked.removeprefix(prefix).strip()
    return [_shorter(item, lambda text: text.removeprefix(prefix).strip()) for item in asked]


def _shorter(item: Any, shorten: Callable[[str], str]) -> Any:
    content = item.get("content") if isinstance(item, dict) else None
    return {**item, "content": shorten(content)} if isinstance(content, str) else item


def page_roster() -> Roster:
    """The default team, whose first agent may run Python, send, fall out with a friend, and start another agent."""
    roster = default_roster()
    scenario = roster.scenarios[roster.default]
    root = scenario.agents[scenario.root]
    more = tuple(tool for tool in ABLE if tool not in root.tools)
    able = replace(root, tools=(*root.tools, *more), subagents=STARTABLE)
    with_it = replace(scenario, agents={**scenario.agents, able.name: able})
    return replace(roster, scenarios={**roster.scenarios, scenario.id: with_it})


def befriend(bus: Engine) -> None:
    """Give the machine's user two friends."""
    for name in (LOCAL, *FRIENDS):
        run(bus, making_user(name, name, {"agent": "support"}))
    for name in FRIENDS:
        run(bus, requesting(LOCAL, name))
        run(bus, accepting(name, LOCAL))


def gated_team(model: GatedModel, bus: Engine) -> TeamRunner:
    @tool
    def part() -> str:
        """Bob ends the friendship."""
        run(bus, removing(FRIENDS[0], LOCAL))
        return "parted"

    tools = ToolRegistry([*STANDARD, part])
    return TeamRunner(page_roster(), tools, kind="demo", config=RunnerConfig(), model=model, builtins=BuiltinTools())
