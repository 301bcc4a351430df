"""How an agent's unread bus messages enter its model calls.

`inject_bus_messages` adds them to a request. They count as read once the model has answered that request; if it did
not, the agent gets them again. `WatchedAgents` reports the answers.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, cast

from agents import Agent, Model, ModelProvider, ModelResponse, TResponseInputItem
from agents.items import TResponseStreamEvent
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest
from agents.run import CallModelData, ModelInputData

from magent2.context.agent import AgentContext
from magent2.context.inject import InjectedMessages, InputItem, for_injection
from magent2.events import BaseStreamEvent, ErrorEvent, MessageReceivedEvent

log = logging.getLogger(__name__)

TEMPLATE_REFUSED = "template_refused"

Report = Callable[[BaseStreamEvent], None]


def inject_bus_messages(ctx: AgentContext, report: Report | None = None) -> BusInjection:
    """A filter for one run of the SDK: `RunConfig(call_model_input_filter=inject_bus_messages(ctx))`.

    `stream_agent` has its own. `report` is called with an event for each message received or rejected.
    """
    return BusInjection(ctx, report or (lambda event: None))


class BusInjection:
    """The SDK's `call_model_input_filter` of one run."""

    def __init__(
        self, ctx: AgentContext, report: Report, wait_for_events: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`wait_for_events` returns when all earlier events of the run were reported."""
        self._ctx = ctx
        self._report = report
        self._wait_for_events = wait_for_events
        self._injected = InjectedMessages()

    async def __call__(self, data: CallModelData) -> ModelInputData:
        self.commit()  # the SDK starts another turn, so the model has answered the previous one
        if self._wait_for_events is not None:
            await self._wait_for_events()
        items = cast(list[InputItem], data.model_data.input)
        self._receive(len(items))
        request = cast(list[TResponseInputItem], self._injected.apply(items))
        return ModelInputData(input=request, instructions=data.model_data.instructions)

    def commit(self) -> None:
        """The model has answered: the messages of its request are read."""
        self._injected.commit()

    def roll_back(self) -> None:
        """Return the messages that no answer has seen, so that the next run of this agent gets them."""
        self._ctx.return_messages(self._injected.roll_back())

    def has_pending(self) -> bool:
        """Whether there are messages for the next request."""
        waiting = for_injection(self._ctx.consume_messages(), self._ctx.agent_id)
        self._ctx.return_messages(waiting)
        return bool(waiting)

    def apply(self, items: list[InputItem]) -> list[InputItem]:
        """The conversation with the messages at the positions where the model saw them."""
        return self._injected.apply(items)

    def _receive(self, position: int) -> None:
        """Take the unread messages into the request at this position, and report them."""
        messages = for_injection(self._ctx.consume_messages(), self._ctx.agent_id)
        failures = self._injected.add(messages, position)
        failed_ids = {failure.message.id for failure in failures}
        received = tuple(message for message in messages if message.id not in failed_ids)
        lost = self._ctx.lost_messages()
        conversation = self._ctx.conversation_id
        if lost:
            log.warning("messages were trimmed before the agent read them", extra={"agent": self._ctx.agent_id})
        if received or lost:
            self._report(MessageReceivedEvent(conversation_id=conversation, messages=received, lost=lost))
        for failure in failures:
            log.warning("a message could not be rendered", extra={"message_id": failure.message.id})
            text = f"message {failure.message.id!r} was not shown to the model: {failure.error}"
            self._report(ErrorEvent(conversation_id=conversation, code=TEMPLATE_REFUSED, message=text))


class WatchedModel(Model):
    """Wraps an agent's model. Calls `on_answer` when a response is complete.

    An error of the model is raised after `wait_for_events`: when a run fails, the SDK drops events that are unread.
    """

    def __init__(
        self, inner: Model, on_answer: Callable[[], None], wait_for_events: Callable[[], Awaitable[None]]
    ) -> None:
        self._inner = inner
        self._on_answer = on_answer
        self._wait_for_events = wait_for_events

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        response = await self._inner.get_response(*args, **options)
        self._on_answer()
        return response

    async def stream_response(self, *args: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        events = self._inner.stream_response(*args, **options)
        try:
            async for event in events:
                if event.type == "response.completed":
                    self._on_answer()
                yield event
        except Exception:
            await self._wait_for_events()
            raise
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self._inner.get_retry_advice(request)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._inner._cleanup_on_run_end(owner)

    def __getattr__(self, name: str) -> Any:
        """All other attributes that the SDK reads from a model."""
        return getattr(self.__dict__["_inner"], name)


class WatchedAgents:
    """Copies of the agents of one run whose models report each answer."""

    def __init__(
        self, provider: ModelProvider, on_answer: Callable[[], None], wait_for_events: Callable[[], Awaitable[None]]
    ) -> None:
        self._provider = provider
        self._on_answer = on_answer
        self._wait_for_events = wait_for_events
        self._copies: dict[int, Agent] = {}  # by id, because handoffs may form a circle

    def copy_of(self, agent: Agent) -> Agent:
        """A copy of the agent and of the agents it hands off to, with watched models and unchanged settings."""
        known = self._copies.get(id(agent))
        if known is not None:
            return known
        inner = agent.model if isinstance(agent.model, Model) else self._provider.get_model(agent.model)
        model = WatchedModel(inner, self._on_answer, self._wait_for_events)
        copy = self._copies[id(agent)] = agent.clone(model=model, model_settings=agent.model_settings)
        copy.handoffs = [self.copy_of(target) if isinstance(target, Agent) else target for target in agent.handoffs]
        return copy
