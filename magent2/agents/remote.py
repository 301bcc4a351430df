"""Send messages to the runs of a conversation from another process, like `AgentContext` does within one.

with connect("redis://…") as bus:
    context = RemoteContext(bus, "c-1a2b")
    message = context.send_message(BusMessage(content="in Celsius, please", source="user:ann"))
    print(context.receipt(message.id, wait_s=30).status)
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
from magent2.sessions.message_outcome import MessageProgress, find_message_progress
from magent2.sessions.steering import steer
from magent2.sessions.store import with_user_message

SWEEP_S = 30.0  # a waiting call reads the log again after this time, even without a notification


@dataclass(frozen=True, slots=True)
class RemoteContext:
    """Sends steers to the running agents of a conversation, on whichever worker they run.

    `principal` is the user it sends for; `None` is trusted code. `require_active`: never start a new run.
    """

    bus: Engine
    conversation_id: str
    principal: str | None = None
    require_active: bool = False

    def send_message(self, message: BusMessage) -> BusMessage:
        """Send a message to its target, or to all running agents. A message with a known id is not sent again.

        Raises `NoActiveRun`, `QueueFull`, `TextTooLong`, `TemplateRefused` or `IdConflict` if it was not sent.
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
        """The progress of a message. With `wait_s`, waits until all its recipients have seen it, at most that long.

        Blocks this thread.
        """
        deadline = time.monotonic() + wait_s
        read_history = HistoryCache(self.bus).read_with  # later reads fetch new records only
        with self.bus.watch([history_topic(self.conversation_id)]) as watch:
            while True:
                progress = run_sync(self.bus, find_message_progress, self.conversation_id, message_id, read_history)
                if progress is None:
                    raise InvalidInput(f"conversation {self.conversation_id!r} has no message {message_id[:80]!r}")
                left_s = deadline - time.monotonic()
                if not progress.waiting or left_s <= 0:
                    return progress
                watch.wait(min(left_s, SWEEP_S))
