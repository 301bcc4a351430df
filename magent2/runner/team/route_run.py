"""A run of kind `route`: the supervisor of a scenario decides which agent answers, by calling the function `route`.

Its mail has the user's text. The metadata may name the scenario (`scenario_id`) and the agent that has the conversation
(`current`). The output is the decision as JSON. There always is one: if there is no model, or if it answers without the
call, fails or takes too long, the keywords decide.
"""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict

from agents import Agent, FunctionTool, Model, ModelProvider, ModelSettings
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
from magent2.runner.journal.agents import ANY_AGENT
from magent2.runner.journal.compaction import RequestPolicy
from magent2.runner.journal.run import JournalledRun
from magent2.runner.providers.settings import sdk_settings
from magent2.runner.run_stream import Event
from magent2.runner.team.spec import TeamMember
from magent2.sessions.stream import event_payload

ROUTE_MAX_S = 15.0  # how long the model may take
DECISIONS_SHOWN_MAX = 10  # earlier decisions that the supervisor sees
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
        yield self._keyword_output(NO_MODEL)

    async def stream(
        self, instructions: str | None, model: Model | str | None, provider: ModelProvider
    ) -> AsyncGenerator[Event, None]:
        agent = self._agent(instructions, model)
        # A decision has no time for a summary.
        contexts = {ANY_AGENT: RequestPolicy(context_max=self._member.context_max, summaries=False)}
        start = SDKRunner.run_streamed
        run = JournalledRun(self._context, agent, provider, start, max_turns=1, contexts=contexts)
        try:
            async with aclosing(run.stream(DECISIONS_SHOWN_MAX)) as events:
                async for event in events:
                    yield self._ensure_decision(event)
        except (ModelUnavailable, ModelError) as error:
            log.warning("a supervisor made no decision", extra={"run_id": self._context.run_id, "error": str(error)})
            yield self._keyword_output(TIMED_OUT if isinstance(error.__cause__, ModelTimeoutError) else MODEL_FAILED)

    def _agent(self, instructions: str | None, model: Model | str | None) -> Agent:
        return Agent(
            name=self._member.name,
            instructions=instructions,
            model=model,
            tools=[self._route_tool()],
            tool_use_behavior="stop_on_first_tool",
            model_settings=sdk_settings(self._member.model_settings).resolve(
                ModelSettings(tool_choice=ROUTE, timeout=self._timeout_s)
            ),
        )

    def _route_tool(self) -> FunctionTool:
        async def invoke(context: ToolContext, arguments: str) -> str:
            return _to_json(decision_from_call(self._scenario, self._text, self._current, arguments))

        return FunctionTool(
            ROUTE, route_description(self._scenario, self._current), route_schema(self._scenario), invoke
        )

    def _ensure_decision(self, event: Event) -> Event:
        """Replace the output by the keywords' decision if it is not a decision. Leave other events as they are."""
        payload = event_payload(event)
        if payload.get("event") != "output" or self._is_decision(payload["text"]):
            return event
        decision = fall_back_to_keywords(self._scenario, self._text, self._current, NO_CALL)
        return {**payload, "text": _to_json(decision)}

    def _is_decision(self, text: str) -> bool:
        try:
            value = json.loads(text)
        except ValueError:  # the model has answered with text
            return False
        return isinstance(value, dict) and value.get("agent") in self._scenario.route_targets and "by" in value

    def _keyword_output(self, reason: str) -> Event:
        """The output event of a run that the keywords decide. `reason`: why the model did not."""
        context = self._context
        decision = fall_back_to_keywords(self._scenario, self._text, self._current, reason)
        event = OutputEvent(conversation_id=context.conversation_id, text=_to_json(decision))
        return {**event_payload(event), "message_id": context.message_id(0)}


def _to_json(decision: RouteDecision) -> str:
    return json.dumps(asdict(decision), ensure_ascii=False)
