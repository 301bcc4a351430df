"""How an agent's unread bus messages enter its model calls.

They are added to a request and count as read once the model has answered that request; if it did not, the agent gets
them again. Three ways lead there, and a message takes only one of them:

- `BusModel`, the model of every agent that `create_agent` makes, for a run that the caller starts with the SDK;
- `stream_agent`, which uses the models without `BusModel`: `WatchedAgents` reports their answers;
- `inject_bus_messages`, a filter for runs of other agents. It runs before `BusModel`, which then finds nothing unread.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, cast
from weakref import WeakKeyDictionary

from agents import Agent, Model, ModelProvider, ModelResponse, TResponseInputItem
from agents.items import TResponseStreamEvent
from agents.models._run_context import get_model_run_owner
from agents.run import CallModelData, ModelInputData

from magent2.context.agent import AgentContext
from magent2.context.inject import InjectedMessages, InputItem, for_injection
from magent2.events import BaseStreamEvent, ErrorEvent, MessageReceivedEvent
from magent2.runner.context import ModelRequest
from magent2.runner.wrapped_model import WrappedModel, closing_events

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
        request = self.request(data.model_data.input)
        return ModelInputData(input=request, instructions=data.model_data.instructions)

    def request(self, sdk_items: list[TResponseInputItem]) -> list[TResponseInputItem]:
        """The items of a request of the SDK, with the messages of this agent in them."""
        items = cast(list[InputItem], sdk_items)
        self._receive(len(items))
        return cast(list[TResponseInputItem], self._injected.apply(items))

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


# The injection of each run that the SDK makes with `BusModel`s, by the object that identifies the run to its models. It
# is shared by the agents of a run: after a handoff, the next agent receives the messages to the first one.
_injections: WeakKeyDictionary[object, BusInjection] = WeakKeyDictionary()


class BusModel(WrappedModel):
    """The model of an agent that `create_agent` makes. Adds the agent's unread bus messages to each request of a run.

    `wrapped` is a model, or a name that is resolved in the run, because an HTTP client belongs to one event loop.
    """

    def __init__(self, wrapped: str | Model, provider: ModelProvider, ctx: AgentContext) -> None:
        self.wrapped = wrapped
        self._provider = provider
        self._ctx = ctx

    @property
    def _inner(self) -> Model:  # type: ignore[override]
        return self.wrapped if isinstance(self.wrapped, Model) else self._provider.get_model(self.wrapped)

    async def get_response(
        self,
        system_instructions: str | None,
        input: ModelRequest,  # noqa: A002  the SDK's name for it
        *rest: Any,
        **options: Any,
    ) -> ModelResponse:
        injection = self._injection_of_run(options)
        request = _with_messages(injection, input)
        response = await self._inner.get_response(system_instructions, request, *rest, **options)
        if injection is not None:
            injection.commit()
        return response

    async def stream_response(
        self,
        system_instructions: str | None,
        input: ModelRequest,  # noqa: A002  the SDK's name for it
        *rest: Any,
        **options: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        injection = self._injection_of_run(options)
        request = _with_messages(injection, input)
        streamed = self._inner.stream_response(system_instructions, request, *rest, **options)
        async with closing_events(streamed) as events:
            async for event in events:
                if event.type == "response.completed" and injection is not None:
                    injection.commit()
                yield event

    def _injection_of_run(self, options: Mapping[str, object]) -> BusInjection | None:
        """The injection of the run that makes this call; `None` outside a run."""
        run = get_model_run_owner()
        if run is None:
            return None
        injection = _injections.get(run)
        if injection is not None and (options.get("previous_response_id") or options.get("conversation_id")):
            injection.roll_back()  # the provider has the earlier requests with their messages: add only new ones
            injection = None
        if injection is None:
            injection = _injections[run] = inject_bus_messages(self._ctx)
        return injection

    async def _cleanup_on_run_end(self, owner: object) -> None:
        injection = _injections.pop(owner, None)
        if injection is not None:
            injection.roll_back()
        if isinstance(self.wrapped, Model):  # a model that was found by its name keeps nothing for a run
            await super()._cleanup_on_run_end(owner)


def _with_messages(injection: BusInjection | None, request: ModelRequest) -> ModelRequest:
    if injection is None:
        return request
    return injection.request([{"role": "user", "content": request}] if isinstance(request, str) else request)


class WatchedModel(WrappedModel):
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
        async with closing_events(self._inner.stream_response(*args, **options)) as events:
            try:
                async for event in events:
                    if event.type == "response.completed":
                        self._on_answer()
                    yield event
            except Exception:
                await self._wait_for_events()
                raise


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
        found = agent.model.wrapped if isinstance(agent.model, BusModel) else agent.model
        inner = found if isinstance(found, Model) else self._provider.get_model(found)
        model = WatchedModel(inner, self._on_answer, self._wait_for_events)
        copy = self._copies[id(agent)] = agent.clone(model=model, model_settings=agent.model_settings)
        copy.handoffs = [self.copy_of(target) if isinstance(target, Agent) else target for target in agent.handoffs]
        return copy
