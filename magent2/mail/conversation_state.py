"""The state of a conversation that a delivery depends on: its active agent, its owner, whether it is new."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from magent2.bus.log import Log
from magent2.bus.operations import Expire
from magent2.errors import NotYours, TopicDeleted
from magent2.mail.addressing import name_taken_error
from magent2.mail.headers import ACTIVE_AGENT, OWNER
from magent2.models.address import agent_topic, chat_topic, stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.models.json_types import JsonMapping

ACTIVE_AGENTS_MAX = 10_000  # conversations in the cache


class ActiveAgentCache:
    """The active agent of each conversation at this process's last delivery there.

    An entry may be out of date. A delivery therefore uses it as a condition of its append, and reads the log when the
    condition fails. This saves one read per message in the common case.
    """

    def __init__(self) -> None:
        self._agents: OrderedDict[str, str | None] = OrderedDict()

    def get(self, conversation: str) -> str | None:
        return self._agents.get(conversation)

    def __contains__(self, conversation: str) -> bool:
        return conversation in self._agents

    def set(self, conversation: str, agent: str | None) -> None:
        self._agents[conversation] = agent
        self._agents.move_to_end(conversation)
        if len(self._agents) > ACTIVE_AGENTS_MAX:
            self._agents.popitem(last=False)


@dataclass(frozen=True, slots=True)
class ConversationState:
    """The state of a conversation, as far as a delivery depends on it.

    `new`: the conversation has no records and no owner, so the first sender becomes its owner. `head` is the head of
    its stream; `None` if the state is guessed from the cache.
    """

    active: str | None
    new: bool = False
    head: JsonMapping | None = None

    @property
    def guessed(self) -> bool:
        return self.head is None


async def read_state(log: Log, envelope: MessageEnvelope, principal: str | None) -> ConversationState:
    """Read the state of the envelope's conversation.

    Raises `NotYours` if the principal may not write there, `TopicDeleted` if it was deleted, and `NameTaken` if its id
    is the name of an agent.
    """
    conversation = envelope.conversation_id
    stream_name = stream_topic(conversation)
    if principal is None:
        (stream,) = await log.describe(stream_name)
        return ConversationState(stream.head.get(ACTIVE_AGENT), head=stream.head)
    stream, chat, agent = await log.describe(stream_name, chat_topic(conversation), agent_topic(conversation))
    if stream.deleted or chat.deleted or agent.deleted:
        raise TopicDeleted(f"conversation {conversation!r} was deleted")
    if agent.last:
        raise name_taken_error(conversation)
    head = stream.head
    new = not head and not (stream.last or chat.last)
    may_begin = new and envelope.type == "message"  # a command starts no conversation
    if not may_begin and head.get(OWNER) != principal:
        raise NotYours(f"you own no conversation {conversation!r}; write to one that you started")
    return ConversationState(head.get(ACTIVE_AGENT), new, head)


async def has_mail(log: Log, conversation: str) -> bool:
    """Return whether mail of the conversation waits or is being processed, in the lane of any agent.

    The engine looks at the lanes and at mail that no claim has put into a lane yet, in one step. It is the check that
    keeps retention from deleting a conversation in use; here nothing is deleted.
    """
    (chat,) = await log.describe(chat_topic(conversation))
    if not chat.last or chat.deleted:
        return False
    return not await log.run(Expire(conversation, 0, dry_run=True))
