"""A real local model: tokens through the runner, and through a worker that is stopped or crashes."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from magent2.bus.memory import MemoryBus
from magent2.errors import SettingsError
from magent2.models.envelope import OutputEvent, TokenEvent
from magent2.runner.config import RunnerConfig
from magent2.runner.local import MODEL_NAME, find_weights, local_server
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.runner.select import select_runner
from magent2.worker.lane_run import Outcome
from tests.support.journaled_runs import CrashingBus, work, work_until_crash
from tests.support.proxy import ModelProxy
from tests.support.worker_fixture import (
    AGENT,
    command,
    envelope,
    history,
    kinds,
    outputs,
    run_worker,
    send,
    stream,
    until,
)

pytestmark = pytest.mark.soak

CONFIG = RunnerConfig(agent_name=AGENT, instructions="Answer in one short sentence.")


@pytest.fixture(autouse=True)
def installed() -> None:
    try:
        find_weights()
    except SettingsError as missing:
        pytest.skip(str(missing))


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


def local_runner() -> OpenAIAgentsRunner:
    runner = select_runner("local", CONFIG)
    assert isinstance(runner, OpenAIAgentsRunner)
    return runner


def test_the_local_model_streams_an_answer_and_remembers_the_question() -> None:
    runner = local_runner()

    def ask(text: str) -> list[TokenEvent | OutputEvent]:
        return list(runner.stream_run(envelope(text)))  # type: ignore[arg-type]

    *tokens, output = ask("What is the capital of France?")
    *_, second = ask("And of Italy?")

    assert len(tokens) > 3
    assert "".join(token.text for token in tokens) == output.text
    assert "Paris" in output.text
    assert "Rome" in second.text
    assert isinstance(second, OutputEvent)
    assert second.usage is not None
    assert second.usage["output_tokens"] > 0


async def test_any_worker_goes_on_with_what_the_log_remembers(bus: MemoryBus) -> None:
    send(bus, "What is the capital of France?")
    await work(bus, local_runner())
    send(bus, "And of Italy?")

    assert await work(bus, local_runner(), "another") is Outcome.ANSWERED

    first, second = outputs(bus)
    assert "Paris" in first
    assert "Rome" in second


async def test_a_stop_reaches_a_run_inside_the_answer_of_the_model(bus: MemoryBus) -> None:
    server = local_server()
    with ModelProxy(urlsplit(server.url).port or 0, after_tokens=1, hold=True) as proxy:
        config = RunnerConfig(AGENT, MODEL_NAME, api_key=server.api_key, base_url=proxy.url)
        send(bus, "Tell me a long story.")
        async with run_worker(bus, OpenAIAgentsRunner(config=config)) as service:
            await until(lambda: "token" in kinds(stream(bus)))
            command(bus, "stop")
            await until(lambda: service.outcomes[Outcome.STOPPED] == 1)
        assert proxy.hung_up.wait(10)

    assert kinds(stream(bus))[-1] == "stopped"
    assert kinds(history(bus)) == ["start", "stopped"]


async def test_a_crash_at_any_point_leaves_one_answer_that_equals_its_tokens() -> None:
    for after in (False, True):
        at = 0
        died = True
        while died:
            at += 1
            died = await die_and_take_over(at, after)
        assert at > 3, "a start, some tokens and an end are at least three appends"


async def die_and_take_over(at: int, after: bool) -> bool:
    """A run whose worker dies at this append, and another that goes on. Whether there was such an append."""
    bus = MemoryBus()
    try:
        send(bus, "hello")
        died = await work_until_crash(CrashingBus(bus, at, after), local_runner())
        if not outputs(bus):
            assert await work(bus, local_runner()) is Outcome.ANSWERED

        (said,) = outputs(bus)
        last = max(event["attempt"] for event in stream(bus) if event["event"] == "token")
        tokens = [event["text"] for event in stream(bus) if event["event"] == "token" and event["attempt"] == last]
        assert "".join(tokens) == said != ""
        assert kinds(history(bus)).count("start") == 1
        return died
    finally:
        bus.close()
