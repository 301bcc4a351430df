"""The runner of a team: serves all agents of a roster.

The specification of a run (its agents with their instructions, models and tools, the session's overlay) is pinned when
the run starts and is on the log with its start. A roster that is reloaded later applies to the next run.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from agents import Model
from agents import Runner as SDKRunner

from magent2.errors import Magent2Error, OutputMismatch, SettingsError
from magent2.fair_share import FairThreads
from magent2.mail.headers import MESSAGE_RUN, ROUTE_RUN, TOOL_RUN
from magent2.models.address import Address
from magent2.models.envelope import MessageEnvelope
from magent2.models.json_types import JsonObject
from magent2.models.output_schema import output_fault
from magent2.roster.spec import ContextValues, Roster
from magent2.runner.attachments import REQUEST_FILES_MAX_BYTES
from magent2.runner.config import MAX_TURNS, RunnerConfig
from magent2.runner.context import RunContext
from magent2.runner.echo import EchoRunner
from magent2.runner.guardrails import input_guardrail, output_guardrail
from magent2.runner.journal.compaction import earlier_runs_of
from magent2.runner.journal.run import JournalledRun
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner, StreamedEvent
from magent2.runner.providers.catalogue import check_models
from magent2.runner.providers.provider import import_foreign, provider_of
from magent2.runner.run_stream import Event, RunStream
from magent2.runner.team.graph import TeamGraphs
from magent2.runner.team.route_run import ROUTE_MAX_S, RouteRun
from magent2.runner.team.spec import TeamSpec, resolve, scenario_of
from magent2.runner.team.tool_run import ToolRun
from magent2.sandbox.monty import PROCESSES_MAX, PROCESSES_PER_PRINCIPAL_MAX, LoopSandbox, MontySandbox
from magent2.sessions.history import RecordedSettings, RunRecord
from magent2.tools.builtins import ROUTING_KINDS, BuiltinTools, ModelKind
from magent2.tools.default_tools import standard_tools
from magent2.tools.interface import TOOL_THREADS_MAX, TOOL_THREADS_PER_PRINCIPAL_MAX
from magent2.tools.mcp import McpServers
from magent2.tools.registry import ToolRegistry

RosterSource: TypeAlias = Callable[[], Roster]


log = logging.getLogger(__name__)


class TeamRunner:
    """Answers for all agents of a roster.

    `roster` is the team, or a function that returns the current one. `kind` is the kind of the models. `model` replaces
    the model of every agent. `folder` has the modules of the roster's own tools.
    """

    def __init__(
        self,
        roster: Roster | RosterSource,
        tools: ToolRegistry | None = None,
        *,
        kind: ModelKind,
        config: RunnerConfig | None = None,
        model: Model | str | None = None,
        builtins: BuiltinTools | None = None,
        folder: Path | None = None,
        route_max_s: float = ROUTE_MAX_S,
    ) -> None:
        self._roster_source: RosterSource = roster if not isinstance(roster, Roster) else lambda: roster
        self.tools = tools if tools is not None else standard_tools(limits=lambda: self.roster.limits)
        self.builtins = replace(builtins or BuiltinTools(), folder=folder)
        self.kind: ModelKind = kind
        self._config = config or RunnerConfig()
        self._folder = folder
        self._route_max_s = route_max_s
        self._mcp = McpServers()
        self._provider = provider_of(self._config)
        limits = self._roster_source().limits
        self.sandbox = LoopSandbox(
            lambda: MontySandbox(
                processes=limits.get("sandbox_processes_max", PROCESSES_MAX),
                per_principal=limits.get("sandbox_processes_per_principal_max", PROCESSES_PER_PRINCIPAL_MAX),
            )
        )
        self.tool_threads = FairThreads(
            limits.get("tool_threads_max", TOOL_THREADS_MAX),
            limits.get("tool_threads_per_principal_max", TOOL_THREADS_PER_PRINCIPAL_MAX),
        )
        self._graphs = TeamGraphs(
            self.tools, self.builtins, self._mcp, self.sandbox, kind, self._provider, model, folder
        )
        self._loaded_roster: Roster | None = None
        self._v1_runners: dict[str, OpenAIAgentsRunner] = {}  # by agent
        self._load_roster()

    @property
    def takes_steers(self) -> bool:
        """Whether its runs can be steered: they call a model, and see new messages before each call."""
        return self.kind != "echo" or any(
            agent.agent is not None for scenario in self.roster.scenarios.values() for agent in scenario.agents.values()
        )

    @property
    def history_max(self) -> int | None:
        """How many earlier runs of a conversation the model gets; no limit by default."""
        own = self._config.history_max
        return own if own is not None else self.roster.limits.get("history_max")

    @property
    def roster(self) -> Roster:
        return self._load_roster()

    def agents(self) -> tuple[str, ...]:
        """The names of the agents to serve."""
        return self.roster.agent_names()

    def _load_roster(self) -> Roster:
        """Return the current roster. If it has changed, load its tools and MCP servers first.

        An error in the tools of the first roster is raised. Later, tools that cannot be loaded are logged and missing.
        """
        roster = self._roster_source()
        if roster is self._loaded_roster:
            return roster
        first = self._loaded_roster is None
        try:
            self.tools.follow(roster.tools, self._folder)
        except Magent2Error as error:
            if first:
                raise
            log.warning("the tools of a reloaded roster cannot be loaded", extra={"error": str(error)})
        try:
            self._follow_models(roster)
        except Magent2Error as error:
            if first:
                raise
            log.warning("the models of a reloaded roster cannot be used", extra={"error": str(error)})
        self._mcp.follow(roster.mcp)
        self._graphs.clear_cache()
        self._v1_runners.clear()
        self._loaded_roster = roster
        return roster

    def _follow_models(self, roster: Roster) -> None:
        """Check the models and guardrails of a roster, and import what they need. Raises `SettingsError`."""
        self._provider.follow(roster.providers)
        agents = {agent.name: agent for part in roster.scenarios.values() for agent in part.agents.values()}.values()
        for agent in agents:
            for path in agent.input_guardrails:
                input_guardrail(path, self._folder)
            for path in agent.output_guardrails:
                output_guardrail(path, self._folder)
        if self._graphs.model is not None or self.kind not in ROUTING_KINDS:  # one that replaces all, or none
            return
        catalogue = self._provider.catalogue
        faults = check_models(catalogue, roster, self._config.model)
        if faults:
            raise SettingsError("; ".join(faults))
        import_foreign([target for _, found in catalogue.team(roster, self._config.model) for target in found])

    # --- runs

    def spec_for(self, context: RunContext) -> JsonObject:
        """The specification of a run that starts now, as JSON."""
        return self._resolve(context.agent, context.history.settings, context.kind).payload()

    def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> RunStream | AsyncGenerator[Event, None]:
        """The events of a run of any kind. Another worker can take the run over at any time."""
        spec = self._spec_of(context)
        if context.kind == TOOL_RUN:
            member = spec.members[context.agent]
            return ToolRun(context, member, self.tools, self._mcp, self.sandbox, self.tool_threads).stream()
        if context.kind == ROUTE_RUN:
            return self._route(context, spec)
        if self.kind == "echo" and spec.members[context.agent].agent is None:
            return self._echo(envelope, context, spec)
        agent = self._graphs.get(spec, context.agent, context.run)
        # An SDK agent may have a model of its own, which needs no key.
        if self.kind == "echo" and not isinstance(agent.model, Model):
            return self._echo(envelope, context, spec)
        # A limit of the environment that differs from the default overrides the roster's.
        config, limits = self._config, self.roster.limits
        max_turns = config.max_turns if config.max_turns != MAX_TURNS else limits.get("max_turns", MAX_TURNS)
        run = JournalledRun(
            context,
            agent,
            self._provider,
            SDKRunner.run_streamed,
            max_turns,
            self.tool_threads,
            self._graphs.contexts(spec, self.history_max),
            limits.get("request_files_max_bytes", REQUEST_FILES_MAX_BYTES),
        )
        return run.stream(earlier_runs_of(self.history_max))

    def _echo(self, envelope: MessageEnvelope, context: RunContext, spec: TeamSpec) -> AsyncGenerator[Event, None]:
        wanted, own = context.options.output_schema, spec.members[context.agent].output_schema
        schema = own if wanted is None else wanted.json_schema
        fault = None if schema is None else output_fault(schema, envelope.content or "")
        if fault is not None:
            raise OutputMismatch(f"the echo of the message does not match the schema of the output: {fault}")
        return EchoRunner().astream_run(envelope)

    def stream_run(self, envelope: MessageEnvelope) -> Iterator[StreamedEvent]:
        """Contract v1: run with the conversation that this process remembers, without MCP servers."""
        if self.kind == "echo":
            return EchoRunner().stream_run(envelope)
        roster = self.roster
        address = Address.parse(envelope.recipient)
        name = address.name if address.kind == "agent" else roster.scenario().root
        if name not in self._v1_runners:
            spec = self._resolve(name, RecordedSettings(), MESSAGE_RUN)
            run = RunRecord("", name, {}, {}, 0)
            graphs = replace(self._graphs, mcp=McpServers(), _cache=OrderedDict())
            self._v1_runners[name] = OpenAIAgentsRunner(
                graphs.get(spec, name, run), sandbox=self.sandbox, provider=self._provider
            )
        return self._v1_runners[name].stream_run(envelope)

    async def aclose(self) -> None:
        await self.leave_loop()

    async def leave_loop(self) -> None:
        """Close what was opened on this loop: MCP servers, connections to models and sandbox processes."""
        await self.sandbox.aclose()
        await self._mcp.aclose()
        await self._provider.aclose()

    def _spec_of(self, context: RunContext) -> TeamSpec:
        """The pinned specification. A run that another kind of runner started has none and gets the current one."""
        pinned = context.run.spec
        self._load_roster()
        if context.agent in pinned.get("agents", ()):
            return TeamSpec.from_payload(pinned)
        return self._resolve(context.agent, context.history.settings, context.kind)

    def _resolve(self, agent: str, settings: RecordedSettings, kind: str) -> TeamSpec:
        kind = kind if kind in (TOOL_RUN, ROUTE_RUN) else MESSAGE_RUN
        context = ContextValues()
        if self._config.context_max is not None:
            context["context_max"] = self._config.context_max
        if self._config.summary_model is not None:
            context["summary_model"] = self._config.summary_model
        return resolve(self.roster, agent, settings, kind=kind, model=self._config.model, context=context)

    def _route(self, context: RunContext, spec: TeamSpec) -> AsyncGenerator[Event, None]:
        member = spec.members[context.agent]
        timeout_s = min(self._route_max_s, self.roster.limits.get("route_max_s", self._route_max_s))
        wanted = context.envelope.metadata.get("scenario_id")
        scenario = scenario_of(self.roster, context.agent, wanted if isinstance(wanted, str) else spec.scenario_id)
        run = RouteRun(context, scenario, member, timeout_s)
        if self.kind not in ROUTING_KINDS:
            return run.without_model()
        return run.stream(spec.instructions_of(context.agent), self._graphs.model_of(member), self._provider)
