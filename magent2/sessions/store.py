"""Sessions over the bus: a conversation is its `stream:` log, and its head is what a list of conversations shows."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from magent2.bus.delivery import ACTIVE_AGENT, ActiveAgents, Delivered, Sending, delivering
from magent2.bus.flow import Flow, arun
from magent2.bus.interface import Engine
from magent2.bus.operations import Append, At, Delete, Describe, HeadIs, Read, SetHead, Topics
from magent2.bus.records import NewRecord, Page, Record, TopicInfo, TopicList
from magent2.errors import ConditionFailed, NameTaken, TopicDeleted
from magent2.models.address import agent_topic, check_name, conversation_topics, stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.models.events import HandoffEvent, SessionEvent
from magent2.sessions.stream import event_payload, payload_record, stream_record

CREATED_ID = "session-created"
TITLE_MAX_CHARS = 80
EVENTS_PAGE = 1000


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation as its head tells it."""

    session_id: str
    last: int
    head: Mapping[str, Any]
    active_ms: int

    @classmethod
    def of(cls, info: TopicInfo) -> Session:
        return cls(info.topic.partition(":")[2], info.last, info.head, info.active_ms)

    @property
    def owner(self) -> str | None:
        return self.head.get("owner")

    @property
    def active_agent(self) -> str | None:
        return self.head.get(ACTIVE_AGENT)


def creating(session_id: str, owner: str, fields: Mapping[str, Any] | None = None) -> Flow[Session]:
    """Create a session, once: a repeat by the same owner finds the first, another owner is refused."""
    check_name(session_id, "session id")
    check_name(owner, "owner")
    topic = stream_topic(session_id)
    event = SessionEvent(conversation_id=session_id, status="created", data=dict(fields or {}))
    record = NewRecord(topic, event_payload(event), id=CREATED_ID, digest=owner)
    head = SetHead(topic, {"owner": owner, **(fields or {})})
    free = (At(topic, 0), At(agent_topic(session_id), 0), HeadIs(topic, "owner", None))
    try:
        yield Append(records=(record,), conditions=free, heads=(head,))
    except ConditionFailed as error:
        raise NameTaken(f"session {session_id!r} exists already, or an agent has that name; take another id") from error
    found: tuple[TopicInfo, ...] = yield Describe((topic,))
    return Session.of(found[0])


def finding(session_id: str) -> Flow[Session | None]:
    """The session, or `None` when nobody has begun it; `TopicDeleted` when it is gone."""
    found: tuple[TopicInfo, ...] = yield Describe((stream_topic(session_id),))
    if found[0].deleted:
        raise TopicDeleted(f"session {session_id!r} was deleted")
    return Session.of(found[0]) if found[0].last or found[0].head else None


def posting(
    envelope: MessageEnvelope, sending: Sending | None = None, guesses: ActiveAgents | None = None
) -> Flow[Delivered]:
    """Deliver mail together with the `user_message` event that shows it, in one append; once per envelope id.

    A command is not part of the conversation and shows only by what it does.
    """
    chosen = sending or Sending()
    if envelope.type == "control":
        return delivering(envelope, chosen, guesses)
    head = SetHead(stream_topic(envelope.conversation_id), {"last_text": title_of(envelope.content)})
    return delivering(
        envelope,
        replace(
            chosen,
            with_records=(*chosen.with_records, user_message(envelope)),
            with_heads=(*chosen.with_heads, head),
        ),
        guesses,
    )


def user_message(envelope: MessageEnvelope) -> NewRecord:
    """The event, built as JSON at once: every message has one. It is `UserMessageEvent`, as a test sees to."""
    return payload_record(
        {
            "id": str(uuid.uuid4()),
            "conversation_id": envelope.conversation_id,
            "created_at": envelope.created_at.isoformat().replace("+00:00", "Z"),
            "event": "user_message",
            "message_id": envelope.id,
            "sender": envelope.sender,
            "recipient": envelope.recipient,
            "text": envelope.content,
        }
    )


def title_of(text: str | None) -> str:
    """The first line, short enough for a list."""
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= TITLE_MAX_CHARS else line[: TITLE_MAX_CHARS - 1] + "…"


def switching(session_id: str, agent: str, reason: str) -> Flow[bool]:
    """Make another agent active and say so; whether that changed anything."""
    check_name(agent, "agent name")
    topic = stream_topic(session_id)
    while True:
        session = yield from finding(session_id)
        active = session.active_agent if session else None
        if active == agent:
            return False
        event = HandoffEvent(conversation_id=session_id, source=active, target=agent, reason=reason)
        try:
            yield Append(
                records=(stream_record(event),),
                conditions=(HeadIs(topic, ACTIVE_AGENT, active),),
                heads=(SetHead(topic, {ACTIVE_AGENT: agent}),),
            )
        except ConditionFailed:
            continue  # somebody else switched at the same moment
        return True


class SessionStore:
    """Sessions on an event loop. Everything is on the bus; any number of stores may share one."""

    def __init__(self, bus: Engine) -> None:
        self.bus = bus
        self._guesses = ActiveAgents()

    async def create(self, session_id: str, owner: str, fields: Mapping[str, Any] | None = None) -> Session:
        return await arun(self.bus, creating(session_id, owner, fields))

    async def get(self, session_id: str) -> Session | None:
        return await arun(self.bus, finding(session_id))

    async def post(self, envelope: MessageEnvelope, sending: Sending | None = None) -> Delivered:
        return await arun(self.bus, posting(envelope, sending, self._guesses))

    async def set_active_agent(self, session_id: str, agent: str, reason: str = "manual_switch") -> bool:
        return await arun(self.bus, switching(session_id, agent, reason))

    async def events(self, session_id: str, since: int = 0, limit: int = EVENTS_PAGE) -> tuple[Record, ...]:
        """Events after `since`, in order; `UnknownCursor` when they are no longer there."""
        page: Page = await self.bus.acall(Read(stream_topic(session_id), since, limit))
        return page.records

    async def sessions(
        self, owner: str | None = None, before: tuple[int, str] | None = None, limit: int = 100
    ) -> tuple[tuple[Session, ...], tuple[int, str] | None]:
        """Sessions, most recently active first, and where to go on."""
        page: TopicList = await self.bus.acall(Topics("stream:", owner, before, limit))
        return tuple(Session.of(info) for info in page.topics), page.next

    async def delete(self, session_id: str) -> None:
        """Delete the conversation: its logs, its copies elsewhere, its lanes."""
        await self.bus.acall(Delete(conversation_topics(session_id), conversation=session_id))


class InMemorySessionStore(SessionStore):
    """The same on the memory engine, for tests and for trying things out."""

    def __init__(self) -> None:
        from magent2.bus.memory import MemoryBus

        super().__init__(MemoryBus())
