"""A conversation's runs from another process, with the face of `AgentContext`.

with connect("redis://…") as bus:
    context = RemoteContext(bus, "c-1a2b")
    said = context.send_message(BusMessage(content="in Celsius, please", source="user:ann"))
    print(context.receipt(said.id, wait_s=30).status)
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.context.bus import BusMessage
from magent2.errors import InvalidInput
from magent2.mail.delivery import SendOptions
from magent2.models.address import check_name, history_topic
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.history import HistoryCache
from magent2.sessions.receipts import MessageProgress, find_message_progress
from magent2.sessions.steering import steer
from magent2.sessions.store import with_user_message

SWEEP_S = 30.0  # who waits looks again this often, woken or not


@dataclass(frozen=True, slots=True)
class RemoteContext:
    """Speaks to the agents at work in a conversation, wherever they are: what is sent is a steer on the log.

    `principal` is for whom it speaks; `None` is trusted code. `require_active`: never begin a run by it.
    """

    bus: Engine
    conversation_id: str
    principal: str | None = None
    require_active: bool = False

    def send_message(self, message: BusMessage) -> BusMessage:
        """Put a message before its target, or before every agent at work; one whose id is known is not sent again.

        `NoActiveRun`, `QueueFull`, `TextTooLong`, `TemplateRefused` and `IdConflict` say why it was not sent.
        """
        target = None if message.target is None else check_name(message.target, "target")
        envelope = MessageEnvelope(
            id=message.id,
            conversation_id=self.conversation_id,
            sender=check_name(message.source, "source"),
            recipient=f"chat:{self.conversation_id}" if target is None else f"agent:{target}",
            content=message.render(),
            created_at=message.timestamp,
        )
        sending = with_user_message(envelope, SendOptions(principal=self.principal), steer=True)
        run_sync(self.bus, steer, envelope, sending, require_active=self.require_active)
        return message

    def receipt(self, message_id: str, wait_s: float = 0.0) -> MessageProgress:
        """What became of a message of the conversation; with `wait_s`, once every agent that it went to has seen it,
        or when that time is up. It blocks this thread, and no other."""
        deadline = time.monotonic() + wait_s
        reading = HistoryCache(self.bus).read_with  # what was read is not read again
        with self.bus.watch([history_topic(self.conversation_id)]) as watch:
            while True:
                fate = run_sync(self.bus, find_message_progress, self.conversation_id, message_id, reading)
                if fate is None:
                    raise InvalidInput(f"conversation {self.conversation_id!r} has no message {message_id[:80]!r}")
                left_s = deadline - time.monotonic()
                if not fate.waiting or left_s <= 0:
                    return fate
                watch.wait(min(left_s, SWEEP_S))
