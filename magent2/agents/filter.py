"""`inject_bus_messages`: an agent's unread messages enter its next model call."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

from agents import TResponseInputItem
from agents.run import CallModelData, ModelInputData

from magent2.context.agent import AgentContext
from magent2.context.bus import BusMessage
from magent2.context.inject import FailedInjection, InjectedMessages, InputItem, for_injection
from magent2.events import BaseStreamEvent, ErrorEvent, MessageReceivedEvent

log = logging.getLogger(__name__)

TEMPLATE_REFUSED = "template_refused"

Report = Callable[[BaseStreamEvent], None]


def inject_bus_messages(ctx: AgentContext, report: Report | None = None) -> BusInjection:
    """A filter for one run of the SDK: `RunConfig(call_model_input_filter=inject_bus_messages(ctx))`.

    `stream_agent` brings its own. `report` is told of what was received.
    """
    return BusInjection(ctx, report or _nobody)


class BusInjection:
    """The SDK's `call_model_input_filter` of one run. What it took is kept once the model has answered."""

    def __init__(
        self, ctx: AgentContext, report: Report, caught_up: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        """`caught_up` returns when all that happened before has been reported."""
        self._ctx = ctx
        self._report = report
        self._caught_up = caught_up
        self._injected = InjectedMessages()

    async def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        self.commit()  # the SDK asks for another turn, so the last one was answered
        if self._caught_up is not None:
            await self._caught_up()
        items = cast(list[InputItem], data.model_data.input)
        self._receive(len(items))
        shown = cast(list[TResponseInputItem], self._injected.apply(items))
        return ModelInputData(input=shown, instructions=data.model_data.instructions)

    def commit(self) -> None:
        self._injected.commit()

    def roll_back(self) -> None:
        """Give back what no answer has seen: another run of this agent will be shown it."""
        self._ctx.return_messages(self._injected.roll_back())

    def pending(self) -> bool:
        """Whether something waits that the model is to be shown."""
        waiting = for_injection(self._ctx.consume_messages(), self._ctx.agent_id)
        self._ctx.return_messages(waiting)
        return bool(waiting)

    def applied(self, items: list[InputItem]) -> list[InputItem]:
        """The conversation as the model has seen it."""
        return self._injected.apply(items)

    def _receive(self, place: int) -> None:
        messages = for_injection(self._ctx.consume_messages(), self._ctx.agent_id)
        failed = self._injected.add(messages, place)
        bad = {unshown.message.id for unshown in failed}
        self._tell([message for message in messages if message.id not in bad])
        for unshown in failed:
            self._tell_failure(unshown)

    def _tell(self, messages: list[BusMessage]) -> None:
        lost = self._ctx.lost_messages()
        if lost:
            log.warning("messages were trimmed before the agent read them", extra={"agent": self._ctx.agent_id})
        if messages or lost:
            conversation = self._ctx.conversation_id
            self._report(MessageReceivedEvent(conversation_id=conversation, messages=tuple(messages), lost=lost))

    def _tell_failure(self, unshown: FailedInjection) -> None:
        log.warning("a message could not be rendered", extra={"message_id": unshown.message.id})
        told = f"message {unshown.message.id!r} was not shown to the model: {unshown.error}"
        self._report(
            ErrorEvent(conversation_id=self._ctx.conversation_id, code=TEMPLATE_REFUSED, message=told),
        )


def _nobody(event: BaseStreamEvent) -> None:
    """Ignore the messages."""
