"""Which runner answers: `--model demo` and `--model local` first, then the key, else echo."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from magent2.errors import SettingsError
from magent2.runner.config import RunnerConfig
from magent2.runner.echo import EchoRunner

if TYPE_CHECKING:
    from magent2.runner.openai_agents_runner import OpenAIAgentsRunner

    AnyRunner: TypeAlias = EchoRunner | OpenAIAgentsRunner

DEMO, LOCAL = "demo", "local"


def select_runner(model: str | None = None, config: RunnerConfig | None = None) -> AnyRunner:
    """The runner for this configuration, by default the environment's. `model` is what `--model` says.

    `demo` and `local` need no key. Any other name stands for `AGENT_MODEL`, and does.
    """
    chosen = RunnerConfig.read() if config is None else config
    if model == DEMO:
        return _demo(chosen)
    if model == LOCAL:
        return _local(chosen)
    if model is not None:
        chosen = replace(chosen, model=model)
    if chosen.api_key is not None:
        from magent2.runner.openai_agents_runner import OpenAIAgentsRunner

        return OpenAIAgentsRunner(config=chosen)
    if model is not None:
        raise SettingsError(f"model {model[:80]!r} needs OPENAI_API_KEY; without one use --model demo or --model local")
    return EchoRunner()


def _demo(config: RunnerConfig) -> OpenAIAgentsRunner:
    from magent2.runner.build import build_agent
    from magent2.runner.demo import DemoModel
    from magent2.runner.openai_agents_runner import OpenAIAgentsRunner

    return OpenAIAgentsRunner(build_agent(config, DemoModel()))


def _local(config: RunnerConfig) -> OpenAIAgentsRunner:
    from magent2.runner.local import MODEL_NAME, local_server
    from magent2.runner.openai_agents_runner import OpenAIAgentsRunner

    server = local_server()
    here = replace(config, model=MODEL_NAME, api_key=server.api_key, base_url=server.url)
    return OpenAIAgentsRunner(config=here)
