"""The limit of messages that wait in one conversation.

Reading the queue for every message would cost more than the message. So after each read, as many messages pass
unchecked as fit under the limit, at most 50. With several gateways, each may let that many through.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from magent2.bus.interface import Engine
from magent2.bus.operations import Describe, Find, Read
from magent2.bus.records import Page, Record, TopicInfo
from magent2.errors import UnknownCursor
from magent2.gateway.problems import RETRY_HEADERS, Problem
from magent2.mail.delivery import DeliveryResult, SendOptions
from magent2.mail.headers import ACTIVE_AGENT, RUN_ENVELOPE
from magent2.models.address import chat_topic, stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.store import SessionStore

if TYPE_CHECKING:
    from magent2.telemetry.observation import DeliveryObserver

UNSEEN_MAX = 50  # messages of one conversation between two looks
CONVERSATIONS_MAX = 10_000  # that are counted at a time


class QueuedSessions(SessionStore):
    """A session store that refuses messages to a conversation whose queue is full."""

    def __init__(self, bus: Engine, max_messages: int, deliveries: DeliveryObserver | None = None) -> None:
        super().__init__(bus, deliveries)
        self._max = max_messages
        self._left: OrderedDict[str, int] = OrderedDict()  # until the next look

    async def post(self, envelope: MessageEnvelope, options: SendOptions | None = None) -> DeliveryResult:
        """`queue_full` when too much waits; a command is never refused for that."""
        if envelope.type == "message":
            await self._count(envelope.conversation_id)
        return await super().post(envelope, options)

    async def deliver(self, envelope: MessageEnvelope, options: SendOptions | None = None) -> DeliveryResult:
        """The same limit: whatever it asks for, it waits in the same lane."""
        await self._count(envelope.conversation_id)
        return await super().deliver(envelope, options)

    async def steer(
        self, envelope: MessageEnvelope, options: SendOptions | None = None, **choices: Any
    ) -> DeliveryResult:
        """`queue_full` also when the run that it is for has not seen what was said before."""
        await self._count(envelope.conversation_id)
        return await super().steer(envelope, options, **choices)

    async def _count(self, conversation: str) -> None:
        left = self._left.get(conversation)
        if left is None:
            left = self._note(conversation, min(UNSEEN_MAX, self._max))
        if left < 1:
            left = await self._look(conversation)
        self._left[conversation] = left - 1

    def _note(self, conversation: str, left: int) -> int:
        self._left[conversation] = left
        self._left.move_to_end(conversation)
        if len(self._left) > CONVERSATIONS_MAX:
            self._left.popitem(last=False)
        return left

    async def _look(self, conversation: str) -> int:
        """How many messages may pass until the next look."""
        waiting = await self._waiting(conversation)
        if waiting >= self._max:
            raise Problem(
                429,
                "queue_full",
                f"{waiting} messages wait in this conversation, the limit is {self._max}; wait for an answer",
                RETRY_HEADERS,
            )
        return self._note(conversation, min(UNSEEN_MAX, self._max - waiting))

    async def _waiting(self, conversation: str) -> int:
        """People's messages after the one whose run began last: a lane is worked in order."""
        topic = chat_topic(conversation)
        found: tuple[TopicInfo, ...] = await self.bus.acall(Describe((stream_topic(conversation), topic)))
        head, chat = found[0].head, found[1]
        answered = await self._place(topic, head.get(RUN_ENVELOPE), chat.floor)
        if answered is None or head.get(ACTIVE_AGENT) is None:  # the message expects no answer
            return 0
        if chat.last - answered < self._max:
            return chat.last - answered
        try:
            page: Page = await self.bus.acall(Read(topic, answered, self._max))
        except UnknownCursor:  # retention went by
            return 0
        return sum(not str(record.payload.get("sender", "")).startswith("agent:") for record in page.records)

    async def _place(self, topic: str, envelope_id: Any, floor: int) -> int | None:
        """The seq of the message that was answered last; `None` when it did not come this way."""
        if not isinstance(envelope_id, str):
            return floor
        record: Record | None = await self.bus.acall(Find(topic, envelope_id))
        return None if record is None else max(record.seq, floor)
