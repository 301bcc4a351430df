"""Guardrails of a team: they are loaded by name, and a run that trips one fails before or after its model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from agents import GuardrailFunctionOutput, input_guardrail, output_guardrail

from magent2.bus.memory import MemoryBus
from magent2.errors import SettingsError
from magent2.roster.spec import AgentSpec
from magent2.runner import guardrails
from magent2.worker.lane_run import Outcome
from tests.support.model_server import ModelServer, Reply
from tests.support.team import mail, roster, team_on, work
from tests.support.worker_fixture import dead_letters, outputs

HERE = __name__
DESK = AgentSpec("desk", instructions="You are the desk.")


def no_secrets(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered="secret" in str(given))


async def no_shouting(context: Any, agent: Any, said: Any) -> GuardrailFunctionOutput:
    return GuardrailFunctionOutput(output_info=None, tripwire_triggered=str(said).isupper())


def broken(context: Any, agent: Any, given: Any) -> GuardrailFunctionOutput:
    raise KeyError("a bug")


sdk_input = input_guardrail(no_secrets)
sdk_output = output_guardrail(no_shouting)


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


async def answer(bus: MemoryBus, agent: AgentSpec, text: str, *replies: Reply) -> tuple[Outcome, int]:
    """How a run ended, and how often its model was asked."""
    mail(bus, text)
    with ModelServer(replies) as server:
        runner = team_on(server.url, roster(agent))
        outcome = await work(bus, runner)
        await runner.aclose()
    return outcome, len(server.requests)


@pytest.mark.parametrize("name", ["no_secrets", "sdk_input"])
async def test_an_input_that_trips_a_guardrail_fails_the_run(bus: MemoryBus, name: str) -> None:
    desk = replace(DESK, input_guardrails=(f"{HERE}:{name}",))

    assert (await answer(bus, desk, "hello", Reply("Hi.")))[0] is Outcome.ANSWERED
    outcome, asked = await answer(bus, desk, "my secret", Reply("Thanks."))

    assert (outcome, outputs(bus)) == (Outcome.BURIED, ["Hi."])
    assert "a guardrail refused" in str(dead_letters(bus, "desk"))
    assert name != "no_secrets" or asked == 0  # a plain function is done before the model is asked


@pytest.mark.parametrize("name", ["no_shouting", "sdk_output"])
async def test_an_output_that_trips_a_guardrail_fails_the_run(bus: MemoryBus, name: str) -> None:
    desk = replace(DESK, output_guardrails=(f"{HERE}:{name}",))

    assert await answer(bus, desk, "hello", Reply("Hi.")) == (Outcome.ANSWERED, 1)
    assert await answer(bus, desk, "hello", Reply("HI")) == (Outcome.BURIED, 1)
    assert outputs(bus) == ["Hi."]


async def test_a_guardrail_with_a_bug_does_not_let_the_run_pass(bus: MemoryBus) -> None:
    desk = replace(DESK, input_guardrails=(f"{HERE}:broken",))

    assert await answer(bus, desk, "hello", Reply("Hi.")) == (Outcome.BURIED, 0)
    assert outputs(bus) == []


@pytest.mark.parametrize(
    ("load", "path", "reason"),
    [
        (guardrails.input_guardrail, f"{HERE}:missing", "cannot be loaded"),
        (guardrails.input_guardrail, f"{HERE}:HERE", "is a str, not a function"),
        (guardrails.input_guardrail, f"{HERE}:sdk_output", "list it in output_guardrails"),
        (guardrails.output_guardrail, f"{HERE}:sdk_input", "list it in input_guardrails"),
    ],
)
def test_what_is_not_a_guardrail_is_an_error_that_says_why(load: Any, path: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        load(path, None)


def test_a_team_with_a_guardrail_that_cannot_be_loaded_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="guardrail 'nowhere:guard'"):
        team_on("http://127.0.0.1:1/v1", roster(replace(DESK, input_guardrails=("nowhere:guard",))), folder=tmp_path)
