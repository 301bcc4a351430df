"""Answers that have to match a schema: told to the model, asked again once, over takeovers, and failed by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from agents import Agent, GuardrailFunctionOutput, RunContextWrapper, output_guardrail
from agents.testing import assistant_message
from pydantic import BaseModel

from magent2.bus.memory import MemoryBus
from magent2.models.run_options import RUN_OPTIONS
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.worker.lane_run import Outcome
from tests.support.journaled_runs import CallbackModel, CrashingBus
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.team import CHIEF, DESK, SHOP, mail, roster, team_on, work, work_until_crash
from tests.support.worker_fixture import dead_letters, outputs, stream

SCHEMA = {
    "type": "object",
    "properties": {"total": {"type": "number"}},
    "required": ["total"],
    "additionalProperties": False,
}
BAD, GOOD = '{"total": "seven"}', '{"total": 7}'
TEAM = roster(CHIEF, replace(DESK, output_schema=SCHEMA), SHOP)
PER_MESSAGE = {RUN_OPTIONS: {"output_schema": {"name": "bill", "schema": SCHEMA, "strict": True}}}


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


async def answered(bus: MemoryBus, replies: list[Reply], team: Any = None, **mailed: Any) -> tuple[Outcome, list[Any]]:
    mail(bus, "what does it cost?", **mailed)
    with ModelServer(replies) as server:
        runner = team_on(server.url, team or TEAM)
        outcome = await work(bus, runner)
        await runner.aclose()
    return outcome, server.requests


def restarts(bus: MemoryBus) -> list[dict[str, Any]]:
    return [dict(event) for event in stream(bus) if event["event"] == "run" and event["status"] == "restarted"]


async def test_the_schema_of_an_agent_is_told_to_the_model(bus: MemoryBus) -> None:
    outcome, (request,) = await answered(bus, [Reply(GOOD)])

    assert (outcome, outputs(bus)) == (Outcome.ANSWERED, [GOOD])
    sent = request["text"]["format"]
    assert (sent["type"], sent["schema"], sent["strict"]) == ("json_schema", SCHEMA, True)


async def test_the_schema_of_a_message_takes_the_place_of_the_agents(bus: MemoryBus) -> None:
    wanted = {"schema": {"type": "object", "properties": {"a": {"type": "integer"}}}}
    outcome, (request,) = await answered(bus, [Reply('{"a": 1}')], metadata={RUN_OPTIONS: {"output_schema": wanted}})

    assert (outcome, outputs(bus)) == (Outcome.ANSWERED, ['{"a": 1}'])
    assert request["text"]["format"]["schema"] == wanted["schema"]
    assert request["text"]["format"]["strict"] is False  # it breaks the rules of strict mode, which providers refuse


async def test_a_mismatch_is_asked_again_once_with_the_fault_named(bus: MemoryBus) -> None:
    outcome, (first, second) = await answered(bus, [Reply(BAD), Reply(GOOD)])

    assert (outcome, outputs(bus)) == (Outcome.ANSWERED, [GOOD])
    *before, answer, told = second["input"]
    assert before == first["input"]
    assert answer["content"][0]["text"] == BAD
    assert "$.total: 'seven' is not of type 'number'" in told["content"]
    assert '"required":["total"]' in told["content"]
    (output,) = [event for event in stream(bus) if event["event"] == "output"]
    assert output["usage"]["total_tokens"] == 24


async def test_the_text_of_a_mismatch_is_no_message_and_its_tokens_are_withdrawn(bus: MemoryBus) -> None:
    await answered(bus, [Reply(BAD), Reply(GOOD)])

    kinds = [event["event"] for event in stream(bus) if event["event"] != "token"]
    (restart,) = restarts(bus)
    tokens = {event["message_id"] for event in stream(bus) if event["event"] == "token"}
    (output,) = [event for event in stream(bus) if event["event"] == "output"]
    assert kinds == ["run", "run", "output", "run"]
    assert restart["reason"] == "output mismatch: $.total: 'seven' is not of type 'number'"
    assert tokens == {restart["message_id"], output["message_id"]}
    assert len(tokens) == 2


async def test_a_second_mismatch_fails_the_run_by_name(bus: MemoryBus) -> None:
    outcome, requests = await answered(bus, [Reply(BAD), Reply("seven"), Reply(GOOD)])

    assert (outcome, len(requests), outputs(bus)) == (Outcome.BURIED, 2, [])
    (letter,) = dead_letters(bus, "desk")
    assert "OutputMismatch" in json.dumps(letter)
    assert "it is not JSON" in json.dumps(letter)


async def test_a_mismatch_is_asked_again_once_over_takeovers(bus: MemoryBus) -> None:
    """Whichever append the first worker dies at, before or after it, the model is told of one mismatch at most."""
    with ModelServer([Reply(BAD), Reply(BAD)]) as server:
        counting = CrashingBus(bus)
        mail(bus, "what does it cost?")
        runner = team_on(server.url, TEAM)
        assert await work(counting, runner) is Outcome.BURIED
        await runner.aclose()
    assert counting.count >= 3  # the start, the first answer, the end

    for at in range(1, counting.count + 1):
        for after in (False, True):
            told = await told_when_taken_over(at, after)
            assert max(told) == 1, (at, after, told)


async def told_when_taken_over(at: int, after: bool) -> list[int]:
    """How many mismatches each request names, if the first worker dies at an append and another one takes over."""
    bus, told = MemoryBus(), list[int]()
    mail(bus, "what does it cost?")

    def answer(request: dict[str, Any]) -> Reply:
        told.append(sum("does not match" in str(item.get("content")) for item in request["input"]))
        return Reply(BAD)

    with ModelServer(answer) as server:
        first, second = (team_on(server.url, TEAM) for _ in range(2))
        await work_until_crash(CrashingBus(bus, at=at, after=after), first)  # it may need fewer appends this time
        if not dead_letters(bus, "desk"):
            assert await work(bus, second) is Outcome.BURIED
        await first.aclose()
        await second.aclose()
    assert len(dead_letters(bus, "desk")) == 1
    bus.close()
    return told


async def test_a_worker_that_dies_in_the_second_turn_leaves_the_mismatch_recorded(bus: MemoryBus) -> None:
    mail(bus, "what does it cost?")
    with ModelServer([Reply(BAD), Reply(GOOD), Reply(GOOD)]) as server:
        first, second = (team_on(server.url, TEAM) for _ in range(2))
        assert await work_until_crash(CrashingBus(bus, on="end"), first)
        assert await work(bus, second) is Outcome.ANSWERED
        await first.aclose()
        await second.aclose()

    assert ["does not match" in json.dumps(request["input"]) for request in server.requests] == [False, True, True]
    assert (outputs(bus), len([one for one in restarts(bus) if "mismatch" in str(one.get("reason"))])) == ([GOOD], 1)


async def test_the_agent_that_answers_after_a_handoff_has_its_own_schema(bus: MemoryBus) -> None:
    team = roster(CHIEF, DESK, replace(SHOP, output_schema=SCHEMA))
    replies = [Reply(calls=[Call("transfer_to_shop", {"reason": "price"})]), Reply("seven"), Reply(GOOD)]
    outcome, requests = await answered(bus, replies, team)

    assert (outcome, outputs(bus)) == (Outcome.ANSWERED, [GOOD])
    assert "format" not in requests[0].get("text", {})
    assert requests[2]["instructions"] == "You are the shop."


async def test_tools_may_be_called_before_the_second_answer(bus: MemoryBus) -> None:
    replies = [Reply(BAD), Reply(calls=[Call("weather", {"city": "Oslo"})]), Reply(GOOD)]
    outcome, _ = await answered(bus, replies)

    assert (outcome, outputs(bus)) == (Outcome.ANSWERED, [GOOD])


async def test_models_that_know_no_schemas_are_checked_too(bus: MemoryBus) -> None:
    mail(bus, "hello", metadata=PER_MESSAGE)
    echo = team_on("http://127.0.0.1:9/v1", kind="echo")
    assert await work(bus, echo) is Outcome.BURIED
    mail(bus, GOOD, metadata=PER_MESSAGE)
    assert await work(bus, echo) is Outcome.ANSWERED
    await echo.aclose()

    assert outputs(bus) == [GOOD]
    assert "the echo of the message does not match" in json.dumps(dead_letters(bus, "desk"))


# --- agents of the SDK, without a team


class Bill(BaseModel):
    total: float


async def test_the_output_type_of_an_sdk_agent_is_asked_again_too(bus: MemoryBus) -> None:
    seen: list[object] = []

    @output_guardrail
    async def guard(context: RunContextWrapper, agent: Agent, output: Any) -> GuardrailFunctionOutput:
        seen.append(output)
        return GuardrailFunctionOutput(output_info=None, tripwire_triggered=False)

    texts = iter([BAD, GOOD])
    model = CallbackModel(lambda items: [assistant_message(next(texts))])
    agent = Agent(name="desk", model=model, output_type=Bill, output_guardrails=[guard])
    mail(bus, "what does it cost?")

    assert await work(bus, OpenAIAgentsRunner(agent)) is Outcome.ANSWERED
    assert (json.loads(outputs(bus)[0]), seen) == ({"total": 7.0}, [Bill(total=7.0)])
