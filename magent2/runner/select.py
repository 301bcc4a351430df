"""Choose the runner: `--model demo` or `local` if given, else the SDK if a model can be called, else echo."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from magent2.errors import SettingsError
from magent2.roster.spec import Roster
from magent2.runner.config import RunnerConfig
from magent2.runner.demo.script import DEMO
from magent2.runner.echo import EchoRunner
from magent2.runner.providers.catalogue import OPENAI, ModelCatalogue, names_provider

if TYPE_CHECKING:
    from magent2.roster.spec import AgentSpec
    from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
    from magent2.runner.team.runner import TeamRunner
    from magent2.tools.builtins import BuiltinTools, ModelKind

    AnyRunner: TypeAlias = EchoRunner | OpenAIAgentsRunner

LOCAL: Final = "local"


def select_runner(model: str | None = None, config: RunnerConfig | None = None) -> AnyRunner:
    """The runner for a configuration, by default the one of the environment. `model` is the value of `--model`.

    `demo` and `local` need no key. Another name replaces `AGENT_MODEL` and needs the key of its provider.
    """
    chosen = RunnerConfig.read() if config is None else config
    if model == DEMO:
        return _demo_runner(chosen)
    chosen = _on_local_server(chosen) if model == LOCAL else _with_model(chosen, model)
    if not can_call_models(chosen):
        return EchoRunner()
    if (fault := catalogue_of(chosen).find(chosen.model).fault()) is not None:
        raise SettingsError(fault)
    from magent2.runner.openai_agents_runner import OpenAIAgentsRunner

    return OpenAIAgentsRunner(config=chosen)


def select_team(
    roster: Roster | Callable[[], Roster],
    model: str | None = None,
    config: RunnerConfig | None = None,
    *,
    builtins: BuiltinTools | None = None,
    folder: Path | None = None,
    pause_s: float = 0.0,
) -> TeamRunner:
    """The runner for all agents of a roster, chosen by the same rules. `folder` has the modules of its own tools.

    `pause_s` is the pause of the demo model between two words.
    """
    from magent2.runner.team.runner import TeamRunner
    from magent2.tools.builtins import BuiltinTools

    tools = BuiltinTools.read() if builtins is None else builtins
    chosen = RunnerConfig.read() if config is None else config
    if model == DEMO:
        from magent2.runner.demo.model import DemoModel

        return TeamRunner(roster, kind=DEMO, config=chosen, model=DemoModel(pause_s), builtins=tools, folder=folder)
    if model == LOCAL:
        chosen = _on_local_server(chosen)
        return TeamRunner(roster, kind=LOCAL, config=chosen, model=chosen.model, builtins=tools, folder=folder)
    current = roster if isinstance(roster, Roster) else roster()
    kind = kind_of_team(model, chosen, tools, current)
    return TeamRunner(roster, kind=kind, config=_with_model(chosen, model, current), builtins=tools, folder=folder)


def describe_agents(path: str, folder: Path | None = None) -> Sequence[AgentSpec]:
    """Describe the SDK agents at an import path, for an agents file. Raises `SettingsError`."""
    from magent2.runner.team import sdk_agents

    return sdk_agents.describe_agents(path, folder)


def roster_of_code(paths: Sequence[str], folder: Path | None = None) -> Roster:
    """Build the team of the SDK agents at these import paths. Raises `SettingsError`."""
    from magent2.runner.team import sdk_agents

    return Roster.of_code(sdk_agents.describe_all(paths, folder))


def kind_of_team(model: str | None, config: RunnerConfig, builtins: BuiltinTools, roster: Roster) -> ModelKind:
    """Return the kind of model that answers, by the rules of `select_team`. Raises `SettingsError` without a key."""
    if model == DEMO:
        return DEMO
    if model == LOCAL:
        return LOCAL
    chosen = _with_model(config, model, roster)
    if not can_call_models(chosen, roster):
        return "echo"
    return builtins.kind_of_server(chosen.base_url, chosen.api)


def can_call_models(config: RunnerConfig, roster: Roster | None = None) -> bool:
    """Whether a real model answers: the default provider can be used, or the team names another one."""
    catalogue = catalogue_of(config, roster)
    if catalogue.has_default:
        return True
    if roster is not None:
        return names_provider(catalogue, roster, config.model)
    return config.model is not None and catalogue.find(config.model).endpoint.provider != OPENAI


def catalogue_of(config: RunnerConfig, roster: Roster | None = None) -> ModelCatalogue:
    """The providers of a configuration and of a roster."""
    providers = None if roster is None else roster.providers
    return ModelCatalogue(config.api_key, config.base_url, config.api, config.variables, providers)


def _with_model(config: RunnerConfig, model: str | None, roster: Roster | None = None) -> RunnerConfig:
    if model is None:
        return config
    if (fault := catalogue_of(config, roster).find(model).fault()) is not None:
        raise SettingsError(f"{fault}; without it use --model demo or --model local")
    return replace(config, model=model)


def _demo_runner(config: RunnerConfig) -> OpenAIAgentsRunner:
    from magent2.runner.build import build_agent
    from magent2.runner.demo.model import DemoModel
    from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
    from magent2.sandbox.monty import LoopSandbox

    sandbox = LoopSandbox()
    return OpenAIAgentsRunner(build_agent(config, sandbox, DemoModel()), sandbox=sandbox)


def _on_local_server(config: RunnerConfig) -> RunnerConfig:
    from magent2.runner.local import MODEL_NAME, local_server

    server = local_server()
    return replace(config, model=MODEL_NAME, api_key=server.api_key, base_url=server.url)
