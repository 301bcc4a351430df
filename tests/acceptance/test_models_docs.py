"""The example of docs/models.md answers on real servers, with its guardrail and its second model."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.bus.memory import MemoryBus
from magent2.roster.agents_file import load_agents_file
from magent2.runner.config import RunnerConfig
from magent2.runner.providers.catalogue import ANY_LLM_KEYS
from magent2.runner.select import select_team
from magent2.tools.builtins import BuiltinTools
from magent2.worker.lane_run import Outcome
from tests.support.forked_processes import ROOT
from tests.support.model_server import ModelServer, Reply
from tests.support.team import mail, work
from tests.support.worker_fixture import outputs, stream

PAGE = (ROOT / "docs" / "models.md").read_text()


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M)
    return str(text)


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


async def test_the_example_answers_refuses_and_falls_back(bus: MemoryBus, tmp_path: Path) -> None:
    replies = [Reply("From llama."), Reply(status=503)]
    with (
        ModelServer(replies, apis=["chat"]) as local,
        ModelServer([Reply("From Claude.")], apis=["anthropic"]) as anthropic,
        ModelServer([Reply("From Qwen.")]) as coder,
    ):
        text = block("toml").replace("http://127.0.0.1:8000/v1", local.url)
        text = text.replace("http://127.0.0.1:8001/v1", coder.url)
        (tmp_path / "magent2.toml").write_text(f'{text}\n[provider.anthropic]\nbase_url = "{anthropic.root}"\n')
        (tmp_path / "guards.py").write_text(block("python"))
        team = load_agents_file(tmp_path / "magent2.toml", ()).roster
        config = RunnerConfig.read({"ANTHROPIC_API_KEY": "of anthropic", "CODER_KEY": "of the coder"})
        runner = select_team(team, config=config, builtins=BuiltinTools(), folder=tmp_path)

        outcomes = []
        for message in ("hello", "my card is 4111 1111 1111 1111"):
            mail(bus, message, conversation=message)
            outcomes.append(await work(bus, runner))
        mail(bus, "hello again")
        outcomes.append(await work(bus, runner))
        mail(bus, "code", agent="coder", conversation="code")
        outcomes.append(await work(bus, runner, "coder"))
        await runner.aclose()

    assert outcomes == [Outcome.ANSWERED, Outcome.BURIED, Outcome.ANSWERED, Outcome.ANSWERED]
    assert (outputs(bus, "hello"), outputs(bus), outputs(bus, "code")) == (
        ["From llama."],
        ["From Claude."],
        ["From Qwen."],
    )
    assert [event["model"] for event in stream(bus) if event.get("event") == "output"] == [
        "anthropic/claude-sonnet-4-5"
    ]
    assert coder.headers[0]["authorization"] == "Bearer of the coder"
    assert (local.requests[0]["temperature"], local.requests[0]["max_tokens"]) == (0.2, 2000)


def test_the_page_names_every_prefix() -> None:
    assert [name for name in ANY_LLM_KEYS if f"`{name}/" not in PAGE] == []
