"""Which agents a process serves and with which model, decided without importing the SDK."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from magent2.errors import SettingsError
from magent2.models.address import check_name
from magent2.roster.agents_file import default_roster
from magent2.roster.limits import delivery_retry_policy, run_retry_policy
from magent2.roster.registry import EnvironmentOverride, Registry
from magent2.roster.spec import Roster
from magent2.runner.config import RunnerConfig
from magent2.runner.select import DEMO, LOCAL
from magent2.settings import Settings
from magent2.tools.default_tools import known_tools

log = logging.getLogger(__name__)

ECHO = "echo"
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
    without_key: str | None = None,
    environ: Mapping[str, str] | None = None,
) -> TeamChoice:
    """Choose the team of the agents file; without a file, the one agent that is named; else the default team.

    `MAGENT2_CONFIG` may name the file too. With a file, `names` select some of its agents. `without_key` is the model
    to use if there is neither `model` nor an API key; the echo runner if it is `None`. `AGENT_MODEL` is then not used,
    unless it names a model that needs no key.
    """
    variables = os.environ if environ is None else environ
    if file is None and (configured := variables.get("MAGENT2_CONFIG", "").strip()):
        file = Path(configured).expanduser()
    config = RunnerConfig.read(variables)
    chosen_model = model or config.model
    no_key = model is None and config.api_key is None and config.model not in (DEMO, LOCAL)
    if no_key:
        chosen_model = without_key
        if config.model is not None:
            log.warning(
                "AGENT_MODEL is not used, because OPENAI_API_KEY is not set",
                extra={"model": config.model, "answers": without_key or ECHO},
            )
    registry = _choose_registry(names, file, config, variables)
    for policy in (run_retry_policy, delivery_retry_policy):
        policy(registry.roster.retry)  # the file and the environment may contradict each other
    selected = tuple(dict.fromkeys(names)) if file is not None else ()
    folder = None if file is None else file.parent
    return TeamChoice(registry, config, chosen_model, _describe_model(chosen_model, no_key), folder, selected)


def _describe_model(model: str | None, no_key: bool) -> str:
    if no_key:
        return f"the {model} model, {NO_KEY}" if model else f"{ECHO}, {NO_KEY}"
    if model in (DEMO, LOCAL):
        return f"the {model} model"
    return f"model {model}" if model else "the SDK's default model"


def _choose_registry(
    names: Sequence[str], file: Path | None, config: RunnerConfig, variables: Mapping[str, str]
) -> Registry:
    """Return the registry of all agents that this process knows. Settings of the environment override the file's."""
    agent_name = variables.get("AGENT_NAME", "").strip() or None
    given = EnvironmentOverride.of(Settings.read(variables))
    limits = given.limits
    # The variables of the agent itself take precedence over MAGENT2_LIMIT_*.
    if variables.get("AGENT_MAX_TURNS", "").strip():
        limits["max_turns"] = config.max_turns
    if variables.get("AGENT_HISTORY_MAX", "").strip():
        limits["history_max"] = config.history_max
    override = replace(
        given, name=agent_name, model=config.model, instructions=config.instructions, tools=config.tools or None
    )
    if file is not None:
        return Registry.of_file(file, known_tools(), variables, replace(override, required=names))
    if names or agent_name:
        return Registry.of(_single_agent(names, config, given))
    return Registry.of(override.apply(default_roster()))


def _single_agent(names: Sequence[str], config: RunnerConfig, given: EnvironmentOverride) -> Roster:
    """Return a roster of one agent, which the environment describes."""
    if len(names) > 1:
        raise SettingsError("several agents need an agents file; pass it with --config magent2.toml")
    name = check_name(names[0], "agent name") if names else config.agent_name
    model = None if config.model in (DEMO, LOCAL) else config.model  # no provider has models of these names
    return Roster.of_environment(
        name,
        model=model,
        instructions=config.instructions,
        tools=config.tools,
        limits=given.limits,
        retention=given.retention,
        retry=given.retry,
    )
