"""Choose the runner: `--model demo` or `local` if given, else the SDK if there is an API key, else echo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from magent2.errors import SettingsError
from magent2.runner.config import RunnerConfig
from magent2.runner.echo import EchoRunner

if TYPE_CHECKING:
    from magent2.roster.spec import Roster
    from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
    from magent2.runner.team.runner import TeamRunner
    from magent2.tools.builtins import BuiltinTools, ModelKind

    AnyRunner: TypeAlias = EchoRunner | OpenAIAgentsRunner

DEMO: Final = "demo"
LOCAL: Final = "local"


def select_runner(model: str | None = None, config: RunnerConfig | None = None) -> AnyRunner:
    """The runner for a configuration, by default the one of the environment. `model` is the value of `--model`.

    `demo` and `local` need no key. Another name replaces `AGENT_MODEL` and needs a key.
    """
    chosen = RunnerConfig.read() if config is None else config
    if model == DEMO:
        return _demo_runner(chosen)
    chosen = _on_local_server(chosen) if model == LOCAL else _with_model(chosen, model)
    if chosen.api_key is None:
        return EchoRunner()
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
    kind = kind_of_team(model, chosen, tools)
    return TeamRunner(roster, kind=kind, config=_with_model(chosen, model), builtins=tools, folder=folder)


def kind_of_team(model: str | None, config: RunnerConfig, builtins: BuiltinTools) -> ModelKind:
    """Return the kind of model that answers, by the rules of `select_team`. Raises `SettingsError` without a key."""
    if model == DEMO:
        return DEMO
    if model == LOCAL:
        return LOCAL
    chosen = _with_model(config, model)
    return "echo" if chosen.api_key is None else builtins.kind_of_server(chosen.base_url)


def _with_model(config: RunnerConfig, model: str | None) -> RunnerConfig:
    if model is None:
        return config
    if config.api_key is None:
        raise SettingsError(f"model {model[:80]!r} needs OPENAI_API_KEY; without one use --model demo or --model local")
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
