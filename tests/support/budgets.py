"""Agents whose model calls use a known amount, and readers of what they have used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agents import Agent, Usage, function_tool
from agents.testing import assistant_message, function_call

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.models.budgets import NOTHING, Amount
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.sessions.usage.ledger import UNUSED, Used, read_user_usage
from tests.support.audit import whole_log
from tests.support.journaled_runs import CallbackModel, Items, results_in
from tests.support.worker_fixture import AGENT, stream

USER = "user:ann"
INPUT, OUTPUT = 70, 30  # tokens of each call


@function_tool
async def look() -> str:
    """Look."""
    return "seen"


def metered(model: CallbackModel) -> CallbackModel:
    """The model, each call of which reports the same usage."""
    model.set_default_usage(Usage(1, INPUT, output_tokens=OUTPUT, total_tokens=INPUT + OUTPUT))
    return model


def looking(times: int, model_name: str = "") -> OpenAIAgentsRunner:
    """An agent that calls a tool this many times and then answers: one model call more."""

    def say(items: Sequence[Mapping[str, Any]]) -> Items:
        done = len(results_in(items))
        return [function_call("look", {}, call_id=f"c{done}")] if done < times else [assistant_message("done")]

    model = metered(CallbackModel(say))
    if model_name:
        model.model = model_name  # type: ignore[attr-defined]  # as models of the SDK have it
    return OpenAIAgentsRunner(Agent(name=AGENT, model=model, tools=[look]))


def budget_events(bus: Engine, conversation: str = "one") -> list[Mapping[str, Any]]:
    return [event for event in stream(bus, conversation) if event["event"] == "budget"]


def used_by(bus: Engine, user: str = USER) -> Used:
    return sum((row.used for row in run_sync(bus, read_user_usage, user).rows), UNUSED)


def answers_of(bus: Engine, *conversations: str) -> Amount:
    """What the answers in the histories of these conversations say that they have used."""
    total = NOTHING
    for conversation in conversations:
        for record in whole_log(bus, f"history:{conversation}"):
            if record.payload["kind"] == "answer":
                usage = record.payload["response"].get("usage") or {}
                tokens = usage.get("input_tokens", 0), usage.get("output_tokens", 0)
                total += Amount(*tokens, calls=1, unpriced_calls=1)
    return total
