"""What the messaging tools share: for whom a run acts, mail as part of a larger append, and their limits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from magent2.bus.log import Log
from magent2.bus.operations import Append, LastSeqIs, SetHead, Write
from magent2.directory.agents import AGENTS
from magent2.directory.entity import EntityKind, EntitySnapshot, look_up_entity
from magent2.directory.users import USERS, User, check_user_id, user_removed_error
from magent2.errors import InvalidInput, TopicDeleted, UnknownAgent
from magent2.mail.delivery import SendOptions
from magent2.mail.headers import LAST_TEXT, OWNER
from magent2.models.address import stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.models.principal import ADMIN
from magent2.sessions.store import short_title, user_message_record
from magent2.tools.interface import RunFacts, SendMark
from magent2.tools.sending import plan_envelope

TEXT_MAX_CHARS = 100_000


def shown_id(envelope_id: str) -> str:
    """The id of the event that shows mail in the conversation it goes to."""
    return f"shown:{envelope_id}"


def checked_text(text: str, limit: int = TEXT_MAX_CHARS) -> str:
    """A message's text, trimmed."""
    chosen = text.strip()
    if not chosen:
        raise InvalidInput("text must be non-empty")
    if len(chosen) > limit:
        raise InvalidInput(f"a text has at most {limit} characters, not {len(chosen)}; send less, or a file")
    return chosen


async def acting_user(log: Log, run: RunFacts) -> str:
    """The user that a run works for: whoever wrote, else whoever the conversation belongs to."""
    if run.principal is not None:
        return check_user_id(run.principal)
    found = await log.describe(stream_topic(run.conversation_id))
    return check_user_id(str(found[0].head.get(OWNER) or ADMIN.name))


def now_text() -> str:
    return datetime.now(UTC).isoformat()


def still(kind: EntityKind[Any], entity: str, found: EntitySnapshot[Any]) -> LastSeqIs:
    """That an entity is as it was found."""
    return LastSeqIs(kind.topic(entity), found.seq)


async def require_user(log: Log, user: str) -> LastSeqIs:
    """That whoever it is sent for has not gone; one whom the directory never knew cannot go."""
    try:
        found = await look_up_entity(log, USERS, user)
    except TopicDeleted:
        raise user_removed_error(user) from None
    if found is not None and found.state.removed:
        raise user_removed_error(user)
    return LastSeqIs(USERS.topic(user), 0 if found is None else found.seq)


async def require_agent(log: Log, agent: str) -> LastSeqIs:
    """That an agent was not retired."""
    entry = await look_up_entity(log, AGENTS, agent)
    if entry is not None and entry.state.removed:
        raise UnknownAgent(f"the agent {agent!r} was removed")
    return LastSeqIs(AGENTS.topic(agent), 0 if entry is None else entry.seq)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentMail:
    """Mail for an agent in a conversation of `owner`; `None` for one whose owner need not be asked."""

    conversation: str
    agent: str
    owner: str | None
    sender: str
    text: str
    created_at: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
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


async def plan_mail(log: Log, letter: AgentMail, run: RunFacts, mark: SendMark) -> Append:
    """The letter, with the event that shows it where it goes.

    The owner's own right is what it goes by: whoever calls this has made sure that the sender may write to them.
    """
    there = await require_agent(log, letter.agent)
    envelope = letter.envelope(mark.id)
    event = replace(user_message_record(envelope, letter.steer), id=shown_id(mark.id), digest=mark.id)
    sending = SendOptions(
        principal=letter.owner,
        hops=run.hops + 1,
        trace=mark.trace,
        with_records=(event,),
        with_heads=(SetHead(stream_topic(letter.conversation), {LAST_TEXT: short_title(letter.text)}),),
    )
    mail = await plan_envelope(log, envelope, sending, letter.steer)
    return mail.merge(Write(conditions=(there,)))


def sender_of(run: RunFacts, agent: str, conversation: str) -> str:
    """An agent's own name opens no lane of its own; where the same agent is meant elsewhere, it says from where."""
    if agent != run.agent or conversation == run.conversation_id:
        return f"agent:{run.agent}"
    return f"agent:{run.agent}@{run.conversation_id}"[:480]


def home_agent(user: User) -> str:
    """Who answers for a user in the foreground."""
    if user.agent is None:
        raise InvalidInput(f"@{user.nametag} has no foreground agent; `magent2 users set {user.id} --agent NAME`")
    return user.agent
