"""The agents, scenarios and tools that the gateway knows. It runs none of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from magent2.errors import Magent2Error
from magent2.models.api.team import BuiltinToolStatus
from magent2.roster.agents_file import default_roster
from magent2.roster.registry import Registry
from magent2.roster.spec import AgentSpec, Roster
from magent2.tools.builtins import ROUTING_KINDS, BuiltinTools, ModelKind, kind_of_models
from magent2.tools.default_tools import standard_tools
from magent2.tools.registry import ToolRegistry

RELOAD_CHECK_S = 1.0  # least time between two checks of the roster's files

log = logging.getLogger(__name__)


class TeamNames(NamedTuple):
    """Names of a roster: its agents, those that only route, and those that no new conversation may have.

    The names of an agents file are reserved before its agents have ever been started.
    """

    agents: frozenset[str]
    routing: frozenset[str]
    reserved: frozenset[str]


class Catalogue:
    """The current roster and its tools. `kind` is the kind of model that the workers use, if it is known.

    A tool that this process cannot load is listed without its schema. The worker that has it checks the arguments.
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
        self._tools_of: Roster | None = None  # the roster that `_tools` was built from
        self._names: TeamNames | None = None
        self._names_of: Roster | None = None
        self._next_check = 0.0

    @property
    def roster(self) -> Roster:
        """The current roster. Changed files are read again."""
        now = time.monotonic()
        if now >= self._next_check:
            self._next_check = now + RELOAD_CHECK_S
            self.registry.reload()
        return self.registry.roster

    @property
    def tools(self) -> ToolRegistry:
        """The tools whose schemas this process can load."""
        roster = self.roster
        if roster is not self._tools_of:
            self._tools_of = roster
            try:
                self._tools.follow(roster.tools, self._folder)
            except Magent2Error as error:
                log.warning(
                    "cannot load tools of the roster; they are listed without their schemas",
                    extra={"error": str(error)},
                )
        return self._tools

    @property
    def names(self) -> TeamNames:
        """The names of the current roster, computed once for each."""
        roster = self.roster
        if self._names is None or self._names_of is not roster:
            agents = frozenset(roster.agent_names())
            self._names = TeamNames(agents, roster.routing_agents(), agents if self.registry.files else frozenset())
            self._names_of = roster
        return self._names

    def agent(self, scenario_id: str | None, name: str) -> AgentSpec | None:
        """Return an agent of the session's scenario, else of the first scenario that has it."""
        roster = self.roster
        own = None if scenario_id is None else roster.scenarios.get(scenario_id)
        for scenario in (*([] if own is None else [own]), *roster.scenarios.values()):
            if name in scenario.agents:
                return scenario.agents[name]
        return None

    def tools_of(self, agent: AgentSpec, model: str | None = None) -> list[str]:
        """Return the tools that the model of an agent gets. `model` replaces the model of the agent."""
        models = agent.model_names if model is None else (model,)
        own_server = bool(agent.base_url or agent.api_key_env or agent.api)
        kind = kind_of_models(self.kind or "openai", models, own_server=own_server)
        return self.builtins.given(agent.tools, agent.approval, kind)

    @property
    def has_routing_model(self) -> bool:
        """Whether the workers' model may be able to route. If it is unknown, the worker decides."""
        return self.kind is None or self.kind in ROUTING_KINDS

    def builtin_status(self) -> list[BuiltinToolStatus]:
        """Return the status of the built-in tools. An unknown model counts as one that supports all of them."""
        return [BuiltinToolStatus(**status) for status in self.builtins.status(self.kind or "openai")]


def used_by(roster: Roster) -> Mapping[str, list[str]]:
    """Return the agents that list a tool, by the name of the tool. Of agents with the same name the first counts."""
    agents: dict[str, AgentSpec] = {}
    for scenario in roster.scenarios.values():
        for name, agent in scenario.agents.items():
            agents.setdefault(name, agent)
    found: dict[str, list[str]] = {}
    for agent in agents.values():
        for tool in agent.tools:
            found.setdefault(tool, []).append(agent.name)
    return found
