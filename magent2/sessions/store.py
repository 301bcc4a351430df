"""Sessions over the bus. A session is a conversation: its `stream:` topic, whose head holds what lists show."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import Append, Delete, HeadIs, LastSeqIs, Read, SetHead, Topics
from magent2.bus.records import NewRecord, Page, Record, TopicInfo, TopicList
from magent2.bus.retry import retry_on_conflict
from magent2.errors import ConditionFailed, InvalidInput, NameTaken, QueueFull, TopicDeleted, UnknownCursor
from magent2.mail.conversation_state import ActiveAgentCache, read_state
from magent2.mail.delivery import DeliveryResult, SendOptions, deliver
from magent2.mail.headers import ACTIVE_AGENT, LAST_TEXT, OWNER, SCHEDULED, ConversationHead
from magent2.models.address import (
    SWEEPER,
    agent_topic,
    chat_topic,
    check_conversation_id,
    check_name,
    conversation_topics,
    stream_topic,
)
from magent2.models.api.messages import WhenBusy
from magent2.models.envelope import MessageEnvelope
from magent2.models.events import HandoffEvent, SessionEvent
from magent2.models.files import ATTACHMENTS, attachments_of
from magent2.models.principal import Principal
from magent2.models.run_options import RUN_OPTIONS
from magent2.sessions.busy import post_if_allowed
from magent2.sessions.files import delete_files_in
from magent2.sessions.history import HistoryReader, read_history
from magent2.sessions.schedules.store import SESSION_DELETED, end_schedules_in
from magent2.sessions.settings import CREATED_ID, ConfigureResult, SessionChange, configure_session
from magent2.sessions.steering import steer
from magent2.sessions.stream import event_payload, stream_record
from magent2.sessions.subagents import find_subagents

if TYPE_CHECKING:
    from magent2.telemetry.observation import DeliveryObserver

TITLE_MAX_CHARS = 80
EVENTS_PAGE = 1000
CLIENT_MESSAGE_ID = "client_message_id"  # metadata field of mail: the id that the client gave the message
HIDDEN = "hidden"  # head field: lists leave the conversation out
FORGET_AFTER = "forget_after"  # field of mail to the sweeper: the message after whose run the session is deleted


@dataclass(frozen=True, slots=True)
class Session:
    """A conversation, from the head of its stream."""

    session_id: str
    last: int
    head: ConversationHead
    active_ms: int

    @classmethod
    def of(cls, info: TopicInfo) -> Session:
        return cls(info.topic.partition(":")[2], info.last, cast(ConversationHead, info.head), info.active_ms)

    @property
    def owner(self) -> str | None:
        return self.head.get("owner")

    @property
    def active_agent(self) -> str | None:
        return self.head.get(ACTIVE_AGENT)

    @property
    def place(self) -> tuple[int, str]:
        """Its position in the list of sessions, from which the next page continues."""
        return self.active_ms, stream_topic(self.session_id)


async def create_session(log: Log, session_id: str, owner: str, fields: Mapping[str, object] | None = None) -> Session:
    """Create a session, once: a repeat by the same owner returns it. Raises `NameTaken` for another owner."""
    check_conversation_id(session_id, "session id")
    check_name(owner, "owner")
    topic = stream_topic(session_id)
    event = SessionEvent(conversation_id=session_id, status="created", data=dict(fields or {}))
    record = NewRecord(topic, event_payload(event), id=CREATED_ID, digest=owner)
    head = SetHead(topic, {"owner": owner, **(fields or {})})
    free = (LastSeqIs(topic, 0), LastSeqIs(agent_topic(session_id), 0), HeadIs(topic, "owner", None))
    try:
        await log.append(Append(records=(record,), conditions=free, heads=(head,)))
    except ConditionFailed as error:
        raise NameTaken(f"session {session_id!r} exists already, or an agent has that name; take another id") from error
    found = await log.describe(topic)
    return Session.of(found[0])


async def find_session(log: Log, session_id: str) -> Session | None:
    """The session, or `None` if it does not exist. Raises `TopicDeleted` if it was deleted."""
    found = await log.describe(stream_topic(session_id))
    if found[0].deleted:
        raise TopicDeleted(f"session {session_id!r} was deleted")
    return Session.of(found[0]) if found[0].last or found[0].head else None


async def post_message(
    log: Log,
    envelope: MessageEnvelope,
    options: SendOptions | None = None,
    active_agents: ActiveAgentCache | None = None,
) -> DeliveryResult:
    """Deliver mail together with the `user_message` event that shows it, in one append; once per envelope id.

    A command is not part of the conversation, so no event shows it.
    """
    chosen = options or SendOptions()
    if envelope.type == "control":
        return await deliver(log, envelope, chosen, active_agents)
    return await deliver(log, envelope, with_user_message(envelope, chosen), active_agents)


def with_user_message(
    envelope: MessageEnvelope, options: SendOptions, *, steer: bool = False, record_id: str | None = None
) -> SendOptions:
    """The options extended by the event that shows the message in the conversation."""
    head = SetHead(stream_topic(envelope.conversation_id), {LAST_TEXT: message_title(envelope)})
    return options._replace(
        with_records=(*options.with_records, user_message_record(envelope, steer, record_id)),
        with_heads=(*options.with_heads, head),
    )


def user_message_record(envelope: MessageEnvelope, steer: bool = False, record_id: str | None = None) -> NewRecord:
    """The event `UserMessageEvent`, built as JSON because every message has one. A test compares the two.

    Under one `record_id`, all records of the same envelope count as one event.
    """
    key = envelope.metadata.get(CLIENT_MESSAGE_ID)
    files = attachments_of(envelope.metadata)
    return NewRecord(
        stream_topic(envelope.conversation_id),
        {
            "id": str(uuid.uuid4()),
            "conversation_id": envelope.conversation_id,
            "created_at": envelope.created_at.isoformat().replace("+00:00", "Z"),
            "event": "user_message",
            "message_id": envelope.id,
            "sender": envelope.sender,
            "recipient": envelope.recipient,
            "text": envelope.content,
            **({"client_message_id": key} if isinstance(key, str) else {}),
            **({"steer": True} if steer else {}),
            **({ATTACHMENTS: [file.model_dump() for file in files]} if files else {}),
        },
        record_id,
        digest="" if record_id is None else envelope.id,
    )


def message_title(envelope: MessageEnvelope) -> str:
    """The text of a message, shortened for lists, or else the names of its files."""
    return short_title(envelope.content) or short_title(
        ", ".join(file.name for file in attachments_of(envelope.metadata))
    )


def short_title(text: str | None) -> str:
    """The first line of a text, shortened for lists."""
    line = (text or "").strip().partition("\n")[0]
    return line if len(line) <= TITLE_MAX_CHARS else line[: TITLE_MAX_CHARS - 1] + "…"


@dataclass(frozen=True, slots=True)
class SwitchResult:
    """Whether the active agent changed, and the seq of the event that reports it, or else of the last event."""

    changed: bool
    seq: int


async def switch_agent(log: Log, session_id: str, agent: str, reason: str) -> SwitchResult:
    """Make an agent active and append a handoff event."""
    check_name(agent, "agent name")
    topic = stream_topic(session_id)

    async def attempt() -> SwitchResult:
        session = await find_session(log, session_id)
        active = session.active_agent if session else None
        if session is not None and active == agent:
            return SwitchResult(False, session.last)
        event = HandoffEvent(conversation_id=session_id, source=active, target=agent, reason=reason)
        appended = await log.append(
            Append(
                records=(stream_record(event),),
                conditions=(HeadIs(topic, ACTIVE_AGENT, active),),
                heads=(SetHead(topic, {ACTIVE_AGENT: agent}),),
            )
        )
        return SwitchResult(True, appended.seqs[0])

    return await retry_on_conflict(attempt, f"the active agent of {session_id!r}")


async def set_title(log: Log, session_id: str, title: str) -> Session:
    """Set the title of a session, or remove it with an empty one. Appends an event only if the title changes."""
    topic = stream_topic(session_id)
    wanted = title.strip() or None

    async def attempt() -> None:
        session = await _existing_session(log, session_id)
        before = session.head.get("title")
        if before == wanted:
            return
        event = SessionEvent(conversation_id=session_id, status="updated", data={"changed": ["title"], "title": wanted})
        await log.append(
            Append(
                records=(stream_record(event),),
                conditions=(HeadIs(topic, "title", before),),
                heads=(SetHead(topic, {"title": wanted}),),
            )
        )

    await retry_on_conflict(attempt, f"the title of {session_id!r}")
    return await _existing_session(log, session_id)


async def _existing_session(log: Log, session_id: str) -> Session:
    session = await find_session(log, session_id)
    if session is None:
        raise UnknownCursor(f"there is no session {session_id!r}")
    return session


def forget_mail(session_id: str, envelope_id: str) -> NewRecord:
    """Mail that makes the sweeper delete the session after the run of this message, also if the gateway dies."""
    payload = {"conversation_id": session_id, "sender": "system", FORGET_AFTER: envelope_id}
    return NewRecord(chat_topic(SWEEPER), payload, id=f"forget-{envelope_id}", digest=session_id)


def routing_id(session_id: str) -> str:
    """The conversation in which a supervisor routes the messages of this session. It has its own history."""
    return "routing-" + hashlib.blake2b(session_id.encode(), digest_size=16).hexdigest()


async def delete_session(log: Log, session_id: str, *, scrub: bool = True) -> None:
    """Delete a conversation: its topics, its mail in inboxes, its lanes, its subagents, its routing conversation.

    Files that came inside its messages are deleted too. Files that were uploaded stay: they belong to their owner.
    Its schedules end, and the text of their messages is removed.
    For `scrub` see `Delete`: a person's deletion needs it.
    """
    await _delete_subagents(log, session_id, scrub)
    beside = routing_id(session_id)
    (stream,) = await log.describe(stream_topic(session_id))
    found = await log.describe(stream_topic(beside), chat_topic(beside))
    if any(info.last and not info.deleted for info in found):
        await log.run(Delete(conversation_topics(beside), conversation=beside, scrub=scrub))
    await log.run(Delete(conversation_topics(session_id), conversation=session_id, scrub=scrub))
    await delete_files_in(log, session_id, scrub=scrub)
    if stream.head.get(SCHEDULED):
        await end_schedules_in(log, session_id, stream.head.get(OWNER), SESSION_DELETED)
    # One may have been started meanwhile. Now that the conversation is deleted, none can be.
    await _delete_subagents(log, session_id, scrub)


async def _delete_subagents(log: Log, session_id: str, scrub: bool) -> None:
    """Delete the conversations of its subagents: they hold text from this conversation."""
    for info in await find_subagents(log, session_id):
        await delete_session(log, info.topic.partition(":")[2], scrub=scrub)


class SessionStore:
    """Sessions on an event loop. All state is on the bus, so any number of stores may share one.

    `deliveries` observes the messages that are delivered. `admit` gets the conversation of a message before it is
    delivered, and may refuse it with `QueueFull`. Commands and repeats of accepted messages are not refused.
    """

    def __init__(
        self,
        bus: Engine,
        deliveries: DeliveryObserver | None = None,
        admit: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        self.bus = bus
        self._admit = admit
        self._active_agents = ActiveAgentCache()
        self._deliveries = deliveries

    async def create(self, session_id: str, owner: str, fields: Mapping[str, object] | None = None) -> Session:
        return await create_session(Log(self.bus), session_id, owner, fields)

    async def get(self, session_id: str) -> Session | None:
        return await find_session(Log(self.bus), session_id)

    async def post(
        self,
        envelope: MessageEnvelope,
        options: SendOptions | None = None,
        *,
        when_busy: WhenBusy = "queue",
        history_reader: HistoryReader = read_history,
    ) -> DeliveryResult:
        """Deliver a message and show it in the conversation. For `when_busy` see `magent2.sessions.busy`."""
        if when_busy == "steer":
            if RUN_OPTIONS in envelope.metadata:
                raise InvalidInput("run_options are for a run of its own, and a steer joins another one; use 'queue'")
            return await self.steer(envelope, options, history_reader=history_reader)
        if envelope.type == "message":
            await self._check_admission(envelope, options)
        if when_busy != "queue":
            shown = with_user_message(envelope, options or SendOptions())
            return await self._seen(
                lambda log, known: post_if_allowed(log, envelope, known or shown, when_busy, history_reader),
                envelope,
                shown,
            )
        return await self._seen(
            lambda log, known: post_message(log, envelope, known, self._active_agents), envelope, options
        )

    async def deliver(self, envelope: MessageEnvelope, options: SendOptions | None = None) -> DeliveryResult:
        """Deliver mail that is not shown in the conversation, such as a manual tool call or a routing question."""
        await self._check_admission(envelope, options)
        return await self._seen(lambda log, known: deliver(log, envelope, known), envelope, options)

    async def _check_admission(self, envelope: MessageEnvelope, options: SendOptions | None) -> None:
        """Raise `QueueFull` for a new message that `admit` refuses. A repeat adds nothing to the queue and passes.

        Whether the principal may write there is checked first: another user must not learn which ids exist.
        """
        if self._admit is None:
            return
        try:
            await self._admit(envelope.conversation_id)
        except QueueFull:
            log = Log(self.bus)
            await read_state(log, envelope, None if options is None else options.principal)
            if await log.find(chat_topic(envelope.conversation_id), envelope.id) is None:
                raise

    async def _seen(
        self,
        send: Callable[[Log, SendOptions | None], Awaitable[DeliveryResult]],
        envelope: MessageEnvelope,
        options: SendOptions | None,
    ) -> DeliveryResult:
        if self._deliveries is None:
            return await send(Log(self.bus), options)
        with self._deliveries.delivery(envelope.id, envelope.recipient, envelope.conversation_id) as trace:
            if trace is not None:
                options = (options or SendOptions())._replace(trace=trace)
            return await send(Log(self.bus), options)

    async def steer(
        self,
        envelope: MessageEnvelope,
        options: SendOptions | None = None,
        *,
        require_active: bool = False,
        history_reader: HistoryReader = read_history,
    ) -> DeliveryResult:
        """Send a steer to the runs in progress and show it; see `magent2.sessions.steering.steer`."""
        await self._check_admission(envelope, options)
        chosen = with_user_message(envelope, options or SendOptions(), steer=True)
        return await steer(
            Log(self.bus), envelope, chosen, require_active=require_active, history_reader=history_reader
        )

    async def set_active_agent(self, session_id: str, agent: str, reason: str = "manual_switch") -> bool:
        return (await self.switch(session_id, agent, reason)).changed

    async def switch(self, session_id: str, agent: str, reason: str) -> SwitchResult:
        return await switch_agent(Log(self.bus), session_id, agent, reason)

    async def configure(self, session_id: str, principal: Principal, change: SessionChange) -> ConfigureResult:
        return await configure_session(Log(self.bus), session_id, principal, change)

    async def retitle(self, session_id: str, title: str) -> Session:
        return await set_title(Log(self.bus), session_id, title)

    async def events(self, session_id: str, since: int = 0, limit: int = EVENTS_PAGE) -> tuple[Record, ...]:
        """The events after `since`, in order. Raises `UnknownCursor` if retention removed them."""
        page: Page = await self.bus.acall(Read(stream_topic(session_id), since, limit))
        return page.records

    async def sessions(
        self,
        owner: str | None = None,
        before: tuple[int, str] | None = None,
        limit: int = 100,
        *,
        with_hidden: bool = False,
    ) -> tuple[tuple[Session, ...], tuple[int, str] | None]:
        """One page of sessions, most recently active first, and the position of the next page.

        A page may have fewer than `limit` sessions and still not be the last: hidden ones are left out.
        """
        page: TopicList = await self.bus.acall(Topics("stream:", owner, before, limit))
        shown = (info for info in page.topics if with_hidden or not info.head.get(HIDDEN))
        return tuple(Session.of(info) for info in shown), page.next

    async def delete(self, session_id: str, *, scrub: bool = True) -> None:
        await delete_session(Log(self.bus), session_id, scrub=scrub)


class InMemorySessionStore(SessionStore):
    """A store on the memory engine, for tests and experiments."""

    def __init__(self) -> None:
        from magent2.bus.memory import MemoryBus

        super().__init__(MemoryBus())
