"""How things are in a conversation that mail comes to: who is active there, who owns it, whether it has begun."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magent2.bus.log import Log
from magent2.errors import NotYours, TopicDeleted
from magent2.mail.addressing import name_taken_error
from magent2.mail.headers import ACTIVE_AGENT, OWNER
from magent2.models.address import agent_topic, chat_topic, stream_topic
from magent2.models.envelope import MessageEnvelope

ACTIVE_AGENTS_MAX = 10_000  # conversations whose active agent is remembered


class ActiveAgentCache:
    """Who was active in which conversation when this process last delivered there.

    A guess: a delivery that makes one has it checked by its append, and looks when it was wrong.
    """

    def __init__(self) -> None:
        self._agents: OrderedDict[str, str | None] = OrderedDict()

    def guess(self, conversation: str) -> str | None:
        return self._agents.get(conversation)  # of a conversation never seen: that it is new

    def __contains__(self, conversation: str) -> bool:
        return conversation in self._agents

    def note(self, conversation: str, agent: str | None) -> None:
        self._agents[conversation] = agent
        self._agents.move_to_end(conversation)
        if len(self._agents) > ACTIVE_AGENTS_MAX:
            self._agents.popitem(last=False)


@dataclass(frozen=True, slots=True)
class ConversationState:
    """How things are in the conversation, as far as a delivery depends on it.

    `head` is `None` when all of it is a guess. `new`: nobody has begun it, so whoever writes first owns it.
    """

    active: str | None
    new: bool = False
    head: Mapping[str, Any] | None = None

    @property
    def guessed(self) -> bool:
        return self.head is None


async def read_state(log: Log, envelope: MessageEnvelope, principal: str | None) -> ConversationState:
    """How things are now. `NotYours`: the principal may not write there."""
    conversation = envelope.conversation_id
    own_log = stream_topic(conversation)
    if principal is None:
        (stream,) = await log.describe(own_log)
        return ConversationState(stream.head.get(ACTIVE_AGENT), head=stream.head)
    stream, chat, agent = await log.describe(own_log, chat_topic(conversation), agent_topic(conversation))
    if stream.deleted or chat.deleted or agent.deleted:
        raise TopicDeleted(f"conversation {conversation!r} was deleted")
    if agent.last:
        raise name_taken_error(conversation)
    head = stream.head
    new = not head and not (stream.last or chat.last)
    if not _may_write(principal, head, new and envelope.type == "message"):
        raise NotYours(f"there is no conversation {conversation!r} of yours; write to one that you began")
    return ConversationState(head.get(ACTIVE_AGENT), new, head)


def _may_write(principal: str, head: Mapping[str, Any], may_begin: bool) -> bool:
    """A command begins no conversation: there is nothing to command."""
    return may_begin or head.get(OWNER) == principal
