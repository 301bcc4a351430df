"""The limit of messages that wait in one conversation.

Reading the queue for every message would cost more than the message. So after each read, as many messages pass
unchecked as fit under the limit, at most 50. With several gateways, each may let that many through.
"""

from __future__ import annotations

from collections import OrderedDict

from magent2.bus.interface import Engine
from magent2.bus.operations import Describe, Find, Read
from magent2.bus.records import Page, Record, TopicInfo
from magent2.errors import QueueFull, UnknownCursor
from magent2.mail.headers import ACTIVE_AGENT, RUN_ENVELOPE
from magent2.models.address import chat_topic, stream_topic

QUEUE_MAX_MESSAGES = 1_000  # messages that wait in one conversation
UNCHECKED_MAX = 50  # messages of one conversation between two reads of its queue
CONVERSATIONS_MAX = 10_000  # counted at a time


class QueueLimit:
    """Refuses messages to a conversation whose queue is full."""

    def __init__(self, bus: Engine, max_messages: int) -> None:
        self._bus = bus
        self._max = max_messages
        self._left: OrderedDict[str, int] = OrderedDict()  # messages until the next read, by conversation

    async def admit(self, conversation: str) -> None:
        """Count a message. Raises `QueueFull` if too many messages wait.

        It counts a repeat too, because only the log knows the ids. That costs at most an earlier read of the queue.
        """
        left = self._left.get(conversation)
        if left is None:
            left = self._allow(conversation, min(UNCHECKED_MAX, self._max))
        if left < 1:
            left = await self._check(conversation)
        self._left[conversation] = left - 1

    def _allow(self, conversation: str, left: int) -> int:
        self._left[conversation] = left
        self._left.move_to_end(conversation)
        if len(self._left) > CONVERSATIONS_MAX:
            self._left.popitem(last=False)
        return left

    async def _check(self, conversation: str) -> int:
        """Read the queue. Return how many messages may pass until the next read."""
        waiting = await self._waiting(conversation)
        if waiting >= self._max:
            raise QueueFull(
                f"{waiting} messages wait in this conversation, the limit is {self._max}; wait for an answer"
            )
        return self._allow(conversation, min(UNCHECKED_MAX, self._max - waiting))

    async def _waiting(self, conversation: str) -> int:
        """Count the messages after the one whose run started last. A lane is processed in order."""
        topic = chat_topic(conversation)
        found: tuple[TopicInfo, ...] = await self._bus.acall(Describe((stream_topic(conversation), topic)))
        head, chat = found[0].head, found[1]
        answered = await self._answered_seq(topic, head.get(RUN_ENVELOPE), chat.floor)
        if answered is None:  # no agent will answer
            return 0
        if chat.last - answered < self._max:
            return chat.last - answered
        # Without an active agent, only mail that names an agent waits: for one that was never started. The last records
        # are counted, because notes to the conversation itself may lie before them.
        active = head.get(ACTIVE_AGENT) is not None
        try:
            page: Page = await self._bus.acall(Read(topic, answered if active else None, self._max))
        except UnknownCursor:  # retention has removed it meanwhile
            return 0
        return sum(_waits(record, active) for record in page.records)

    async def _answered_seq(self, topic: str, envelope_id: object, floor: int) -> int | None:
        """Return the seq of the message whose run started last, or `None` if it is not in this conversation."""
        if not isinstance(envelope_id, str):
            return floor
        record: Record | None = await self._bus.acall(Find(topic, envelope_id))
        return None if record is None else max(record.seq, floor)


def _waits(record: Record, active: bool) -> bool:
    sender, recipient = (str(record.payload.get(name, "")) for name in ("sender", "recipient"))
    return not sender.startswith("agent:") and (active or recipient.startswith("agent:"))
