"""Agents, scenarios and tools as the gateway describes them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from magent2.errors import Magent2Error
from magent2.roster.agents_file import default_roster
from magent2.roster.registry import Registry
from magent2.roster.spec import AgentSpec, Roster, Scenario
from magent2.tools.builtins import BUILTINS, BuiltinStatus, BuiltinTools, ModelKind
from magent2.tools.default_tools import standard_tools
from magent2.tools.registry import ToolRegistry

LOOK_S = 1.0  # how often the files of a roster are looked at, at most
ROUTING_KINDS: frozenset[ModelKind] = frozenset({"openai", "compatible"})  # models that can be made to call a function

log = logging.getLogger(__name__)


class Catalogue:
    """The current roster and its tools. `kind` is the kind of model that the workers use, if it is known.

    The gateway runs none of it. A tool of the roster that cannot be loaded here is listed without its schema; a worker
    that has it checks for itself.
    """

    def __init__(
        self,
        registry: Registry | None = None,
        *,
        builtins: BuiltinTools | None = None,
        kind: ModelKind | None = None,
        folder: Path | None = None,
    ) -> None:
        self.registry = registry or Registry.of(default_roster())
        self.builtins = builtins or BuiltinTools()
        self.kind = kind
        self._folder = folder
        self._tools = standard_tools()
        self._followed: Roster | None = None
        self._look_again = 0.0

    @property
    def roster(self) -> Roster:
        """The current roster. Changed files are read again."""
        now = time.monotonic()
        if now >= self._look_again:
            self._look_again = now + LOOK_S
            self.registry.reload()
        return self.registry.roster

    @property
    def tools(self) -> ToolRegistry:
        """The tools whose schemas this process can load."""
        roster = self.roster
        if roster is not self._followed:
            self._followed = roster
            try:
                self._tools.follow(roster.tools, self._folder)
            except Magent2Error as error:
                log.warning("tools of the roster cannot be shown", extra={"error": str(error)})
        return self._tools

    def team(self, scenario_id: str | None) -> Scenario:
        """The scenario; one that a session names and that is gone meanwhile is an error that says what there is."""
        return self.roster.scenario(scenario_id)

    def agent(self, scenario_id: str | None, name: str) -> AgentSpec | None:
        """The agent as the session's scenario has it, or, from elsewhere, as any has it."""
        roster = self.roster
        own = None if scenario_id is None else roster.scenarios.get(scenario_id)
        for scenario in (*([] if own is None else [own]), *roster.scenarios.values()):
            if name in scenario.agents:
                return scenario.agents[name]
        return None

    def tools_of(self, agent: AgentSpec) -> list[str]:
        """What the agent is given: all that it may use, but for built-in tools that are switched off."""
        enabled = {status["name"] for status in self.builtin_status() if status["enabled"]}
        return [name for name in agent.tools if name not in BUILTINS or name in enabled]

    @property
    def has_routing_model(self) -> bool:
        """Whether it is worth asking a supervisor; a worker without such a model says so itself."""
        return self.kind is None or self.kind in ROUTING_KINDS

    def builtin_status(self) -> list[BuiltinStatus]:
        """Of a model that is not known, as it would be on one that takes all of them."""
        return self.builtins.status(self.kind or "openai")


def used_by(roster: Roster) -> Mapping[str, list[str]]:
    """Tool → the agents whose lists name it."""
    found: dict[str, list[str]] = {}
    seen: set[str] = set()
    for scenario in roster.scenarios.values():
        for agent in scenario.agents.values():
            if agent.name not in seen:
                seen.add(agent.name)
                for name in agent.tools:
                    found.setdefault(name, []).append(agent.name)
    return found
