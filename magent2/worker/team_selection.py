"""Whom a process serves: the agents of a file, the one that the environment describes, or the default team."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from magent2.bus.interface import Engine
from magent2.errors import SettingsError
from magent2.models.address import check_name
from magent2.roster.agents_file import default_roster
from magent2.roster.limits import LimitValues, parse_limit_variables
from magent2.roster.registry import EnvironmentOverride, Registry
from magent2.roster.spec import Roster
from magent2.runner.config import RunnerConfig
from magent2.runner.select import DEMO, LOCAL, select_team
from magent2.runner.team.runner import TeamRunner
from magent2.sessions.approvals import APPROVAL_MAX_S
from magent2.settings import Settings
from magent2.telemetry.runs import Observer
from magent2.tools.default_tools import known_tools
from magent2.worker.lane_run import RUN_MAX_S
from magent2.worker.runner_adapter import Runner
from magent2.worker.service import CONCURRENCY, DRAIN_S, LEASE_S, WorkerService

NO_KEY = "because OPENAI_API_KEY is not set"


@dataclass(frozen=True, slots=True)
class Team:
    """The agents to serve and their runner; `described` is what answers, in words, `folder` where its own tools are."""

    names: tuple[str, ...]
    runner: TeamRunner
    registry: Registry
    described: str
    folder: Path | None = None
    chosen: bool = False  # by name: whoever joins the file is not served here

    @property
    def limits(self) -> LimitValues:
        """Those of the file, and over them the environment's."""
        return self.registry.roster.limits

    def runners_now(self) -> dict[str, Runner]:
        """Who is to be served now; a file that has changed is read again."""
        return dict.fromkeys(self.names if self.chosen else self.runner.agents(), self.runner)

    def service(self, bus: Engine, concurrency: int | None = None, observer: Observer | None = None) -> WorkerService:
        """A worker for the team, which follows it."""
        limits = self.limits
        service = WorkerService(
            bus,
            self.runners_now,
            concurrency=limits.get("concurrency", CONCURRENCY) if concurrency is None else concurrency,
            lease_s=limits.get("lease_s", LEASE_S),
            run_max_s=limits.get("run_max_s", RUN_MAX_S),
            observer=observer,
        )
        service.lane_loop.drain_s = limits.get("run_drain_s", DRAIN_S)
        service.approval_max_s = limits.get("approval_max_s", APPROVAL_MAX_S)
        return service

    @property
    def first(self) -> str:
        """Whom to write to first."""
        root = self.registry.roster.scenario().root
        return root if root in self.names else self.names[0]


def choose_team(
    names: Sequence[str] = (),
    model: str | None = None,
    file: Path | None = None,
    *,
    without_key: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> Team:
    """The team of the file, if there is one; else, if an agent is named, that one alone; else the default.

    With a file (`MAGENT2_CONFIG` names one too) `names` choose some of its agents. `without_key` is the model for want
    of a key: echo, when it is None.
    """
    variables = os.environ if environ is None else environ
    file = file or _configured(variables)
    config = RunnerConfig.read(variables)
    chosen = model or config.model
    lacking = chosen is None and config.api_key is None
    registry = choose_registry(names, file, config, variables)
    folder = file.parent if file is not None else None
    runner = select_team(lambda: _now(registry), without_key if lacking else chosen, config, folder=folder)
    some = file is not None and bool(names)
    served = tuple(dict.fromkeys(names)) if some else runner.agents()
    return Team(served, runner, registry, _described(chosen, lacking, without_key), folder, some)


def _configured(variables: Mapping[str, str]) -> Path | None:
    text = variables.get("MAGENT2_CONFIG", "").strip()
    return Path(text).expanduser() if text else None


def choose_registry(
    names: Sequence[str], file: Path | None, config: RunnerConfig, variables: Mapping[str, str]
) -> Registry:
    """Who exists for this process."""
    named = variables.get("AGENT_NAME", "").strip() or None
    limits = _limits(config, variables)
    over = EnvironmentOverride(named, config.model, config.instructions, config.tools or None, limits=limits)
    if file is not None:
        return Registry.of_file(file, known_tools(), variables, replace(over, required=names))
    if names or named:
        return Registry.of(_team_of_one(names, config, limits))
    return Registry.of(over.apply(default_roster()))


def _limits(config: RunnerConfig, variables: Mapping[str, str]) -> LimitValues:
    """The limits that the environment sets; a variable of the agent's own goes first."""
    limits = parse_limit_variables(Settings.read(variables).limits)
    if variables.get("AGENT_MAX_TURNS", "").strip():
        limits["max_turns"] = config.max_turns
    if variables.get("AGENT_HISTORY_MAX", "").strip():
        limits["history_max"] = config.history_max
    return limits


def _team_of_one(names: Sequence[str], config: RunnerConfig, limits: LimitValues) -> Roster:
    if len(names) > 1:
        raise SettingsError("several agents need a file that describes them: --config magent2.toml")
    one = replace(config, agent_name=check_name(names[0], "agent name")) if names else config
    return Roster.of_environment(
        one.agent_name, model=_real(one.model), instructions=one.instructions, tools=one.tools, limits=limits
    )


def _real(model: str | None) -> str | None:
    """`demo` and `local` are no names that a provider knows."""
    return None if model in (DEMO, LOCAL) else model


def _now(registry: Registry) -> Roster:
    registry.reload()
    return registry.roster


def _described(model: str | None, lacking: bool, without_key: str | None) -> str:
    if lacking:
        return f"the {without_key} model, {NO_KEY}" if without_key else f"echo, {NO_KEY}"
    if model in (DEMO, LOCAL):
        return f"the {model} model"
    return f"model {model}" if model else "the SDK's default model"
