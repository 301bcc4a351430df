"""All events of a run: those of the contract, and those that only a run in this process reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from magent2.context.bus import BusMessage
from magent2.models.envelope import BaseStreamEvent, OutputEvent, TokenEvent, ToolStepEvent
from magent2.models.events import ErrorEvent, HandoffEvent, MessageEvent, ReceiptEvent, RunEvent, UserMessageEvent

__all__ = [
    "BaseStreamEvent",
    "ErrorEvent",
    "HandoffEvent",
    "MessageEvent",
    "MessageReceivedEvent",
    "OutputEvent",
    "ReceiptEvent",
    "RunEvent",
    "StreamEvent",
    "TokenEvent",
    "ToolStepEvent",
    "UserMessageEvent",
]


class MessageReceivedEvent(BaseStreamEvent):
    """The agent's next model call sees these messages. `lost`: messages that were trimmed before the agent saw them.

    Only a run in this process reports this event; it is never on a log. A worker's run writes a `ReceiptEvent` with the
    same event name instead, after the answer of the turn.
    """

    event: Literal["message_received"] = "message_received"
    messages: tuple[BusMessage, ...] = ()
    lost: int = 0

    @property
    def message_ids(self) -> tuple[str, ...]:
        return tuple(message.id for message in self.messages)


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event, and the agent it belongs to."""

    agent_id: str
    agent_name: str
    event: BaseStreamEvent
