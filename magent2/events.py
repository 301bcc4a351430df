"""What a run reports, in one place: the events of the contract, and those of a run in this process."""

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
    """An agent's next model call sees these messages. `lost`: how many were trimmed before the agent could.

    It is told by a run in this process, has the messages themselves, and is on no log. There, what the answer of a turn
    has seen is told by `ReceiptEvent`, of the same kind, with what is recorded of each message.
    """

    event: Literal["message_received"] = "message_received"
    messages: tuple[BusMessage, ...] = ()
    lost: int = 0

    @property
    def message_ids(self) -> tuple[str, ...]:
        return tuple(message.id for message in self.messages)


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """An event, and the agent that it happened to."""

    agent_id: str
    agent_name: str
    event: BaseStreamEvent
