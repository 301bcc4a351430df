"""Functions shared by the messaging tools: the user that a run acts for, mail to an agent, directory conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from magent2.bus.log import Log
from magent2.bus.operations import Append, LastSeqIs, Write
from magent2.directory.agents import AGENTS
from magent2.directory.entity import EntityKind, EntitySnapshot, look_up_entity
from magent2.directory.users import USERS, User, check_user_id, user_removed_error
from magent2.errors import InvalidInput, TopicDeleted, UnknownAgent
from magent2.mail.delivery import SendOptions
from magent2.mail.headers import OWNER
from magent2.models.address import stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.models.principal import ADMIN
from magent2.tools.interface import RunFacts, SendMark
from magent2.tools.sending import plan_envelope

TEXT_MAX_CHARS = 100_000
SENDER_MAX_CHARS = 480


def check_text(text: str, limit: int = TEXT_MAX_CHARS) -> str:
    """Return the text of a message, trimmed. Raise `InvalidInput` if it is empty or too long."""
    trimmed = text.strip()
    if not trimmed:
        raise InvalidInput("text must be non-empty")
    if len(trimmed) > limit:
        raise InvalidInput(
            f"a text may have at most {limit} characters, not {len(trimmed)}; send a shorter text or a file"
        )
    return trimmed


async def acting_user(log: Log, run: RunFacts) -> str:
    """The user that a run acts for: the sender of the message it answers, else the owner of the conversation."""
    if run.principal is not None:
        return check_user_id(run.principal)
    found = await log.describe(stream_topic(run.conversation_id))
    return check_user_id(str(found[0].head.get(OWNER) or ADMIN.name))


def now_text() -> str:
    return datetime.now(UTC).isoformat()


def unchanged(kind: EntityKind[Any], entity: str, found: EntitySnapshot[Any]) -> LastSeqIs:
    """The condition that an entity of the directory is still as it was found."""
    return LastSeqIs(kind.topic(entity), found.seq)


async def require_user(log: Log, user: str) -> LastSeqIs:
    """The condition that the user for whom a message is sent still exists; an unregistered user cannot be removed."""
    try:
        found = await look_up_entity(log, USERS, user)
    except TopicDeleted:
        raise user_removed_error(user) from None
    if found is not None and found.state.removed:
        raise user_removed_error(user)
    return LastSeqIs(USERS.topic(user), 0 if found is None else found.seq)


async def require_agent(log: Log, agent: str) -> LastSeqIs:
    """The condition that an agent has not been removed."""
    entry = await look_up_entity(log, AGENTS, agent)
    if entry is not None and entry.state.removed:
        raise UnknownAgent(f"the agent {agent!r} was removed")
    return LastSeqIs(AGENTS.topic(agent), 0 if entry is None else entry.seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMail:
    """Mail to an agent in a conversation of `owner`; with `None`, the owner of the conversation is not checked."""

    conversation: str
    agent: str
    owner: str | None
    sender: str
    text: str
    created_at: str
    metadata: Mapping[str, object] = field(default_factory=dict)
    steer: bool = False

    def envelope(self, send_id: str) -> MessageEnvelope:
        return MessageEnvelope(
            id=send_id,
            conversation_id=self.conversation,
            sender=self.sender,
            recipient=f"agent:{self.agent}",
            type="message",
            content=self.text,
            metadata=dict(self.metadata),
            created_at=datetime.fromisoformat(self.created_at),
        )


async def plan_mail(log: Log, mail: AgentMail, run: RunFacts, mark: SendMark) -> Append:
    """The append that delivers mail, with the event that shows it in its conversation.

    The mail is delivered with the rights of the owner. The caller has checked that the sender may write to them.
    """
    agent_exists = await require_agent(log, mail.agent)
    options = SendOptions(principal=mail.owner, hops=run.hops + 1, trace=mark.trace)
    append = await plan_envelope(log, mail.envelope(mark.id), options, mail.steer)
    return append.merge(Write(conditions=(agent_exists,)))


def sender_of(run: RunFacts, agent: str, conversation: str) -> str:
    """The sender of mail from a run.

    An agent does not receive mail from itself. Where the same agent is meant in another conversation, the sender says
    which conversation the mail comes from.
    """
    if agent != run.agent or conversation == run.conversation_id:
        return f"agent:{run.agent}"
    return f"agent:{run.agent}@{run.conversation_id}"[:SENDER_MAX_CHARS]


def home_agent(user: User) -> str:
    """The agent that talks with a user."""
    if user.agent is None:
        raise InvalidInput(f"@{user.nametag} has no agent; set one with `magent2 users set {user.id} --agent NAME`")
    return user.agent
