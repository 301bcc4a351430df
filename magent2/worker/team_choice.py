"""Which agents a process serves and with which model. The SDK is imported only if the agents are SDK agents."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from magent2.errors import SettingsError
from magent2.models.address import check_name
from magent2.roster.agents_file import default_roster
from magent2.roster.limits import delivery_retry_policy, run_retry_policy
from magent2.roster.registry import EnvironmentOverride, Registry
from magent2.roster.spec import Roster, is_import_path
from magent2.runner.config import RunnerConfig
from magent2.runner.demo.script import DEMO
from magent2.runner.select import LOCAL, can_call_models, describe_agents, roster_of_code
from magent2.settings import Settings
from magent2.tools.default_tools import known_tools

log = logging.getLogger(__name__)

ECHO = "echo"
MODELS_SHOWN_MAX = 4  # in the banner
NO_KEY = "because OPENAI_API_KEY is not set"


@dataclass(frozen=True, slots=True)
class TeamChoice:
    """The agents file, the selected agents and the model of a process.

    `names` are the agents that were selected by name from a file; empty for all of them. `model_description` is for the
    banner at the start. `folder` is where the team's own tools are.
    """

    registry: Registry
    config: RunnerConfig
    model: str | None
    model_description: str
    folder: Path | None = None
    names: tuple[str, ...] = ()

    @property
    def served_names(self) -> tuple[str, ...]:
        """The agents that are served now."""
        return self.names or self.registry.roster.agent_names()

    @property
    def first_agent(self) -> str:
        """The agent to write to first: the root of the scenario, if it is served."""
        root, served = self.registry.roster.scenario().root, self.served_names
        return root if root in served else served[0]


def choose_agents(
    names: Sequence[str] = (),
    model: str | None = None,
    file: Path | None = None,
    *,
    sdk_agents: Sequence[str] = (),
    without_key: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> TeamChoice:
    """Choose the team of the agents file; without a file, the one agent that is named; else the default team.

    `sdk_agents` are import paths of SDK agents that are the team in place of a file. `MAGENT2_CONFIG` and
    `MAGENT2_AGENTS` may name the file and the paths too. With a file or paths, `names` select some of the agents.
    `without_key` is the model to use if there is neither `model` nor an API key; the echo runner if it is `None`.
    `AGENT_MODEL` is then not used, unless it names a model that needs no key.
    """
    variables = os.environ if environ is None else environ
    if file is None and (configured := variables.get("MAGENT2_CONFIG", "").strip()):
        file = Path(configured).expanduser()
    paths = check_source(file, sdk_agents or (variables.get("MAGENT2_AGENTS", ""),))
    config = RunnerConfig.read(variables)
    chosen_model = model or config.model
    registry = _choose_registry(names, file, paths, config, variables)
    no_key = model is None and config.model not in (DEMO, LOCAL) and not can_call_models(config, registry.roster)
    if no_key:
        chosen_model = without_key
        if config.model is not None:
            log.warning(
                "AGENT_MODEL is not used, because OPENAI_API_KEY is not set",
                extra={"model": config.model, "answers": without_key or ECHO},
            )
    for policy in (run_retry_policy, delivery_retry_policy):
        policy(registry.roster.retry)  # the file and the environment may contradict each other
    selected = tuple(dict.fromkeys(names)) if file is not None or paths else ()
    folder = file.parent if file is not None else Path.cwd() if paths else None
    description = _describe_model(chosen_model, no_key, registry.roster)
    return TeamChoice(registry, config, chosen_model, description, folder, selected)


def _describe_model(model: str | None, no_key: bool, roster: Roster) -> str:
    if no_key:
        return f"the {model} model, {NO_KEY}" if model else f"{ECHO}, {NO_KEY}"
    if model in (DEMO, LOCAL):
        return f"the {model} model"
    agents = [agent for scenario in roster.scenarios.values() for agent in scenario.agents.values()]
    named = dict.fromkeys(name for agent in agents for name in agent.model_names)
    if model or not named:
        return f"model {model}" if model else "the SDK's default model"
    shown = ", ".join(list(named)[:MODELS_SHOWN_MAX])
    return f"models {shown}" + (" …" if len(named) > MODELS_SHOWN_MAX else "")


def check_source(file: Path | None, values: Iterable[str]) -> tuple[str, ...]:
    """Return the import paths of SDK agents in `values`, which may have commas between several.

    Raises `SettingsError` for what is not a path, and if there is an agents file too.
    """
    paths = tuple(dict.fromkeys(path for value in values for part in value.split(",") if (path := part.strip())))
    for path in paths:
        if not is_import_path(path):
            raise SettingsError(f"--agents {path[:80]!r} is not an import path; write 'module:attribute'")
    if file is not None and paths:
        raise SettingsError(
            "an agents file and --agents are both given; name the agents in the file:"
            f' [[scenario.agent]] agent = "{paths[0]}"'
        )
    return paths


def _choose_registry(
    names: Sequence[str],
    file: Path | None,
    sdk_agents: Sequence[str],
    config: RunnerConfig,
    variables: Mapping[str, str],
) -> Registry:
    """Return the registry of all agents that this process knows. Settings of the environment override the file's."""
    agent_name = variables.get("AGENT_NAME", "").strip() or None
    given = EnvironmentOverride.of(Settings.read(variables))
    limits = given.limits
    # The variables of the agent itself take precedence over MAGENT2_LIMIT_*.
    if variables.get("AGENT_MAX_TURNS", "").strip():
        limits["max_turns"] = config.max_turns
    if config.history_max is not None:
        limits["history_max"] = config.history_max
    override = replace(
        given, name=agent_name, model=config.model, instructions=config.instructions, tools=config.tools or None
    )
    if file is not None:
        return Registry.of_file(file, known_tools(), variables, replace(override, required=names), describe_agents)
    if sdk_agents:
        return Registry.of(replace(override, required=names).apply(roster_of_code(sdk_agents, Path.cwd())))
    if names or agent_name:
        return Registry.of(_single_agent(names, config, given))
    return Registry.of(override.apply(default_roster()))


def _single_agent(names: Sequence[str], config: RunnerConfig, given: EnvironmentOverride) -> Roster:
    """Return a roster of one agent, which the environment describes."""
    if len(names) > 1:
        raise SettingsError("several agents need an agents file; pass it with --config magent2.toml")
    name = check_name(names[0], "agent name") if names else config.agent_name
    model = None if config.model in (DEMO, LOCAL) else config.model  # no provider has models of these names
    roster = Roster.of_environment(
        name,
        model=model,
        instructions=config.instructions,
        tools=config.tools,
        limits=given.limits,
        retention=given.retention,
        retry=given.retry,
    )
    return replace(roster, webhooks=given.webhooks)
