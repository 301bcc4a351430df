"""Whom a process serves: the agents of a file, the one that the environment describes, or the default team."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from magent2.errors import SettingsError
from magent2.models.address import check_name
from magent2.roster.default import default_roster
from magent2.roster.environment import Override
from magent2.roster.registry import Registry
from magent2.roster.spec import Roster
from magent2.runner.config import RunnerConfig
from magent2.runner.select import DEMO, LOCAL, select_team
from magent2.runner.team import TeamRunner
from magent2.tools.standard import known_tools
from magent2.worker.drive import Runner

NO_KEY = "because OPENAI_API_KEY is not set"


@dataclass(frozen=True, slots=True)
class Team:
    """The agents to serve and their runner; `described` is what answers, in words, `folder` where its own tools are."""

    names: tuple[str, ...]
    runner: TeamRunner
    registry: Registry
    described: str
    folder: Path | None = None

    @property
    def runners(self) -> dict[str, Runner]:
        return dict.fromkeys(self.names, self.runner)

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
    served = tuple(names) if file is not None and names else runner.agents()
    unknown = [name for name in served if name not in runner.agents()]
    if unknown:
        raise SettingsError(f"the file has no agent {unknown[0][:80]!r}; there is: {', '.join(runner.agents())}")
    return Team(served, runner, registry, _described(chosen, lacking, without_key), folder)


def _configured(variables: Mapping[str, str]) -> Path | None:
    text = variables.get("MAGENT2_CONFIG", "").strip()
    return Path(text).expanduser() if text else None


def choose_registry(
    names: Sequence[str], file: Path | None, config: RunnerConfig, variables: Mapping[str, str]
) -> Registry:
    """Who exists for this process."""
    named = variables.get("AGENT_NAME", "").strip() or None
    if file is not None:
        over = Override(named, config.model, config.instructions, config.tools or None)
        return Registry.of_file(file, known_tools(), variables, over)
    if names or named:
        return Registry.of(_team_of_one(names, config))
    return Registry.of(Override(None, config.model, config.instructions, config.tools or None).apply(default_roster()))


def _team_of_one(names: Sequence[str], config: RunnerConfig) -> Roster:
    if len(names) > 1:
        raise SettingsError("several agents need a file that describes them: --config magent2.toml")
    one = replace(config, agent_name=check_name(names[0], "agent name")) if names else config
    return Roster.of_environment(one.agent_name, model=_real(one.model), instructions=one.instructions, tools=one.tools)


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
