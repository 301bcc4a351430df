"""The limit of messages that wait in one conversation.

Reading the queue for every message would cost more than the message. So after each read, as many messages pass
unchecked as fit under the limit, at most 50. With several gateways, each may let that many through.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from magent2.bus.interface import Engine
from magent2.bus.operations import Describe, Find, Read
from magent2.bus.records import Page, Record, TopicInfo
from magent2.errors import UnknownCursor
from magent2.gateway.problems import RETRY_HEADERS, Problem
from magent2.mail.delivery import DeliveryResult, SendOptions
from magent2.mail.headers import ACTIVE_AGENT, RUN_ENVELOPE
from magent2.models.address import chat_topic, stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.history import HistoryReader, read_history
from magent2.sessions.store import SessionStore

if TYPE_CHECKING:
    from magent2.telemetry.observation import DeliveryObserver

UNCHECKED_MAX = 50  # messages of one conversation between two reads of its queue
CONVERSATIONS_MAX = 10_000  # counted at a time


class QueuedSessions(SessionStore):
    """A session store that refuses messages to a conversation whose queue is full."""

    def __init__(self, bus: Engine, max_messages: int, deliveries: DeliveryObserver | None = None) -> None:
        super().__init__(bus, deliveries)
        self._max = max_messages
        self._left: OrderedDict[str, int] = OrderedDict()  # messages until the next read, by conversation

    async def post(self, envelope: MessageEnvelope, options: SendOptions | None = None) -> DeliveryResult:
        """Raises `queue_full` if too many messages wait. Commands are never refused: they do not wait."""
        if envelope.type == "message":
            await self._count(envelope.conversation_id)
        return await super().post(envelope, options)

    async def deliver(self, envelope: MessageEnvelope, options: SendOptions | None = None) -> DeliveryResult:
        """Raises `queue_full` as `post` does: this mail waits in the same lane."""
        await self._count(envelope.conversation_id)
        return await super().deliver(envelope, options)

    async def steer(
        self,
        envelope: MessageEnvelope,
        options: SendOptions | None = None,
        *,
        require_active: bool = False,
        history_reader: HistoryReader = read_history,
    ) -> DeliveryResult:
        """Raises `queue_full` also if the active run has not read too many earlier steers."""
        await self._count(envelope.conversation_id)
        return await super().steer(envelope, options, require_active=require_active, history_reader=history_reader)

    async def _count(self, conversation: str) -> None:
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
            raise Problem(
                429,
                "queue_full",
                f"{waiting} messages wait in this conversation, the limit is {self._max}; wait for an answer",
                RETRY_HEADERS,
            )
        return self._allow(conversation, min(UNCHECKED_MAX, self._max - waiting))

    async def _waiting(self, conversation: str) -> int:
        """Count the messages after the one whose run started last. A lane is processed in order."""
        topic = chat_topic(conversation)
        found: tuple[TopicInfo, ...] = await self.bus.acall(Describe((stream_topic(conversation), topic)))
        head, chat = found[0].head, found[1]
        answered = await self._answered_seq(topic, head.get(RUN_ENVELOPE), chat.floor)
        if answered is None or head.get(ACTIVE_AGENT) is None:  # no agent will answer
            return 0
        if chat.last - answered < self._max:
            return chat.last - answered
        try:
            page: Page = await self.bus.acall(Read(topic, answered, self._max))
        except UnknownCursor:  # retention has removed it meanwhile
            return 0
        return sum(not str(record.payload.get("sender", "")).startswith("agent:") for record in page.records)

    async def _answered_seq(self, topic: str, envelope_id: object, floor: int) -> int | None:
        """Return the seq of the message whose run started last, or `None` if it is not in this conversation."""
        if not isinstance(envelope_id, str):
            return floor
        record: Record | None = await self.bus.acall(Find(topic, envelope_id))
        return None if record is None else max(record.seq, floor)
