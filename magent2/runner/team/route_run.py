"""A run of kind `route`: the supervisor of a scenario says who answers, by a call of the function `route`.

Its mail holds the person's text; its metadata may name the scenario (`scenario_id`) and who has the conversation
(`current`). Its output is the choice as JSON. It always has one: a model that is not there, says something else, fails
or takes too long leaves the choice to the keywords.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import asdict
from typing import Any

from agents import Agent, FunctionTool, ModelProvider, ModelSettings
from agents import Runner as SDKRunner
from agents.exceptions import ModelTimeoutError
from agents.tool_context import ToolContext

from magent2.errors import ModelError, ModelUnavailable
from magent2.models.envelope import OutputEvent
from magent2.roster.routing import (
    NO_CALL,
    ROUTE,
    TIMED_OUT,
    RouteDecision,
    decision_from_call,
    fall_back_to_keywords,
    route_description,
    route_schema,
)
from magent2.roster.spec import Scenario
from magent2.runner.context import RunContext
from magent2.runner.journal.run import JournalledRun
from magent2.runner.run_stream import Event
from magent2.runner.team.spec import TeamMember
from magent2.sessions.stream import event_payload

ROUTE_MAX_S = 15.0  # what the model may take
HISTORY_MAX = 10  # earlier decisions that the supervisor is shown
NO_MODEL, MODEL_FAILED = "no_model", "model_failed"

log = logging.getLogger(__name__)


class RouteRun:
    """One attempt at one routing decision. Only agents of the current roster can be chosen."""

    def __init__(
        self, context: RunContext, scenario: Scenario, member: TeamMember, timeout_s: float = ROUTE_MAX_S
    ) -> None:
        self._context = context
        self._scenario = scenario
        self._member = member
        self._timeout_s = timeout_s
        self._text = context.envelope.content or ""
        current = context.envelope.metadata.get("current")
        self._current = current if isinstance(current, str) else None

    async def without_model(self) -> AsyncGenerator[Event, None]:
        yield self._fallen_back(NO_MODEL)

    async def stream(
        self, instructions: str | None, model: Any, provider: ModelProvider
    ) -> AsyncGenerator[Event, None]:
        agent = self._agent(instructions, model)
        run = JournalledRun(self._context, agent, provider, SDKRunner.run_streamed, max_turns=1)
        try:
            async with aclosing(run.stream(HISTORY_MAX)) as events:
                async for event in events:
                    yield self._decided(event)
        except (ModelUnavailable, ModelError) as error:
            log.warning("a supervisor did not decide", extra={"run_id": self._context.run_id, "error": str(error)})
            yield self._fallen_back(TIMED_OUT if isinstance(error.__cause__, ModelTimeoutError) else MODEL_FAILED)

    def _agent(self, instructions: str | None, model: Any) -> Agent[Any]:
        return Agent(
            name=self._member.name,
            instructions=instructions,
            model=model,
            tools=[self._route()],
            tool_use_behavior="stop_on_first_tool",
            model_settings=ModelSettings(tool_choice=ROUTE, timeout=self._timeout_s),
        )

    def _route(self) -> FunctionTool:
        async def invoke(context: ToolContext[Any], arguments: str) -> str:
            return choice_json(decision_from_call(self._scenario, self._text, self._current, arguments))

        return FunctionTool(
            ROUTE, route_description(self._scenario, self._current), route_schema(self._scenario), invoke
        )

    def _decided(self, event: Event) -> Event:
        """The output as it is when it is a choice; the keywords' choice when the model has only talked."""
        payload = event_payload(event)
        if payload.get("event") != "output" or self._is_choice(payload["text"]):
            return event
        return {
            **payload,
            "text": choice_json(fall_back_to_keywords(self._scenario, self._text, self._current, NO_CALL)),
        }

    def _is_choice(self, text: str) -> bool:
        try:
            choice = json.loads(text)
        except ValueError:  # words, where a call was wanted
            return False
        return isinstance(choice, Mapping) and choice.get("agent") in self._scenario.route_targets and "by" in choice

    def _fallen_back(self, why: str) -> Event:
        context = self._context
        choice = fall_back_to_keywords(self._scenario, self._text, self._current, why)
        event = OutputEvent(conversation_id=context.conversation_id, text=choice_json(choice))
        return {**event_payload(event), "message_id": context.message_id(0)}


def choice_json(choice: RouteDecision) -> str:
    return json.dumps(asdict(choice), ensure_ascii=False)
