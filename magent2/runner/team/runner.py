"""The runner of a team: serves every agent of a roster.

What a run goes by (its agents, their instructions, models and tools, the session's overlay) is fixed when it starts and
lies with its start on the log; whatever is reloaded meanwhile counts for the next run.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

from agents import Model
from agents import Runner as SDKRunner

from magent2.errors import Magent2Error
from magent2.models.address import Address
from magent2.models.envelope import MessageEnvelope
from magent2.roster.spec import Roster, Scenario
from magent2.runner.config import HISTORY_MAX, MAX_TURNS, RunnerConfig
from magent2.runner.context import RunContext
from magent2.runner.echo import EchoRunner
from magent2.runner.journal.run import JournalledRun
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner, StreamedEvent
from magent2.runner.run_stream import Event, RunStream
from magent2.runner.sdk_run import LoopProvider
from magent2.runner.team.graph import TeamGraphs
from magent2.runner.team.route_run import ROUTE_MAX_S, RouteRun
from magent2.runner.team.spec import MESSAGE, ROUTE, TOOL, TeamSpec, resolve, scenario_of
from magent2.runner.team.tool_run import ToolRun
from magent2.sandbox.monty import LoopSandbox
from magent2.sessions.history import RunRecord
from magent2.tools.builtins import BuiltinTools, ModelKind
from magent2.tools.default_tools import standard_tools
from magent2.tools.mcp import McpServers
from magent2.tools.registry import ToolRegistry

RosterNow: TypeAlias = Callable[[], Roster]

ROUTING_KINDS: frozenset[ModelKind] = frozenset({"openai", "compatible"})  # models that can be made to call a function

log = logging.getLogger(__name__)


class TeamRunner:
    """Answers for all agents of a roster, one and the same object for each of them.

    `roster` is the team, or says who is in it now. `kind` is what the models are reached by; `model`, where it is
    given, is used for every agent. `folder` is where the modules of the roster's own tools are.
    """

    def __init__(
        self,
        roster: Roster | RosterNow,
        tools: ToolRegistry | None = None,
        *,
        kind: ModelKind,
        config: RunnerConfig | None = None,
        model: Model | str | None = None,
        builtins: BuiltinTools | None = None,
        folder: Path | None = None,
        route_max_s: float = ROUTE_MAX_S,
    ) -> None:
        self._now: RosterNow = roster if not isinstance(roster, Roster) else lambda: roster
        self.tools = tools if tools is not None else standard_tools()
        self.builtins = builtins or BuiltinTools()
        self.kind: ModelKind = kind
        self._config = config or RunnerConfig()
        self._folder = folder
        self._route_max_s = route_max_s
        self._mcp = McpServers()
        self._provider = LoopProvider(self._config.api_key, self._config.base_url)
        self._sandbox = LoopSandbox()
        self._graphs = TeamGraphs(self.tools, self.builtins, self._mcp, self._sandbox, kind, model)
        self._followed: Roster | None = None
        self._plain: dict[str, OpenAIAgentsRunner] = {}
        self._follow()

    @property
    def takes_steers(self) -> bool:
        """Whether its runs ask a model more than once, and so can be told something in between."""
        return self.kind != "echo"

    # --- who there is

    @property
    def roster(self) -> Roster:
        return self._follow()

    def agents(self) -> tuple[str, ...]:
        """The agents to serve."""
        return self.roster.agent_names()

    def _follow(self) -> Roster:
        """The roster of now; what it brings with it is there before it is used.

        A tool of it that cannot be loaded is missing, and says so; the others are there.
        """
        roster = self._now()
        if roster is self._followed:
            return roster
        first = self._followed is None
        try:
            self.tools.follow(roster.tools, self._folder)
        except Magent2Error as error:
            if first:
                raise
            log.warning("the tools of a reloaded roster cannot be loaded", extra={"error": str(error)})
        self._mcp.follow(roster.mcp)
        self._graphs.clear_cache()
        self._plain.clear()
        self._followed = roster
        return roster

    # --- runs

    def spec_for(self, context: RunContext) -> dict[str, Any]:
        """What the run will go by, as things stand."""
        return self._resolve(context.agent, context.history.settings, context.kind).payload()

    def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> RunStream | AsyncGenerator[Event, None]:
        """The events of a run, of whatever sort, that another worker can take over at any moment."""
        spec = self._spec_of(context)
        if context.kind == TOOL:
            return ToolRun(context, spec.members[context.agent], self.tools, self._mcp, self._sandbox).stream()
        if context.kind == ROUTE:
            return self._route(context, spec)
        if self.kind == "echo":
            return _echo(envelope)
        agent = self._graphs.get(spec, context.agent, context.run)
        run = JournalledRun(context, agent, self._provider, SDKRunner.run_streamed, self._limit("max_turns"))
        return run.stream(self._limit("history_max"))

    def stream_run(self, envelope: MessageEnvelope) -> Iterator[StreamedEvent]:
        """Contract v1: in this process, with what it remembers; MCP servers are left out."""
        if self.kind == "echo":
            return EchoRunner().stream_run(envelope)
        roster = self.roster
        address = Address.parse(envelope.recipient)
        name = address.name if address.kind == "agent" else roster.scenario().root
        if name not in self._plain:
            spec = self._resolve(name, {}, MESSAGE)
            run = RunRecord("", name, {}, {}, 0)
            graphs = TeamGraphs(self.tools, self.builtins, McpServers(), self._sandbox, self.kind, self._graphs.model)
            self._plain[name] = OpenAIAgentsRunner(graphs.get(spec, name, run), sandbox=self._sandbox)
        return self._plain[name].stream_run(envelope)

    async def aclose(self) -> None:
        await self.leave_loop()

    async def leave_loop(self) -> None:
        """Close what was opened on this loop: servers of tools, connections to models, processes of blocks."""
        await self._sandbox.aclose()
        await self._mcp.aclose()
        await self._provider.aclose()

    # --- inside

    def _spec_of(self, context: RunContext) -> TeamSpec:
        """The pinned one. A run that another sort of runner has begun has none, and goes by what is there now."""
        pinned: Mapping[str, Any] = context.run.spec
        self._follow()
        if context.agent in pinned.get("agents", ()):
            return TeamSpec.of(pinned)
        return self._resolve(context.agent, context.history.settings, context.kind)

    def _resolve(self, agent: str, settings: Mapping[str, Any], kind: str) -> TeamSpec:
        sort = kind if kind in (TOOL, ROUTE) else MESSAGE
        return resolve(self.roster, agent, settings, kind=sort, model=self._config.model)

    def _route(self, context: RunContext, spec: TeamSpec) -> AsyncGenerator[Event, None]:
        member = spec.members[context.agent]
        timeout_s = min(self._route_max_s, self.roster.limits.get("route_max_s", self._route_max_s))
        run = RouteRun(context, self._routed_scenario(context, spec), member, timeout_s)
        if self.kind not in ROUTING_KINDS:
            return run.without_model()
        model = self._graphs.model if self._graphs.model is not None else member.model
        return run.stream(spec.instructions_of(context.agent), model, self._provider)

    def _routed_scenario(self, context: RunContext, spec: TeamSpec) -> Scenario:
        wanted = context.envelope.metadata.get("scenario_id")
        named = wanted if isinstance(wanted, str) else spec.scenario_id
        return scenario_of(self.roster, context.agent, named)

    def _limit(self, name: Literal["max_turns", "history_max"]) -> int:
        """The environment's word where it says something, else the roster's."""
        own, default = getattr(self._config, name), {"max_turns": MAX_TURNS, "history_max": HISTORY_MAX}[name]
        return int(own if own != default else self.roster.limits.get(name, default))


async def _echo(envelope: MessageEnvelope) -> AsyncGenerator[Event, None]:
    for event in EchoRunner().stream_run(envelope):
        yield event
