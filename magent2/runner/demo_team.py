"""Two demo agents that can do what there is to show: stream, tell the time, hand over to each other."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from agents import Agent, function_tool

from magent2.runner.demo import DemoModel
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner

SECOND = "Ada"


def demo_team(first: str, pause_s: float) -> OpenAIAgentsRunner:
    """A runner whose agent, called `first`, has a clock and a colleague called Ada."""

    @function_tool
    def current_time() -> str:
        """The time, in UTC."""
        return f"It is {datetime.now(UTC):%H:%M} UTC."

    model = DemoModel(pause_s)
    colleague: Agent[Any] = Agent(name=SECOND, model=model, tools=[current_time])
    return OpenAIAgentsRunner(Agent(name=first, model=model, tools=[current_time], handoffs=[colleague]))
