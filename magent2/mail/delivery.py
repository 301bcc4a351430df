"""The door for mail: what a sender says, and the append that brings it to whom it is for.

Mail to `agent:X` goes to the conversation's log and to X's inbox; mail to `chat:C` to the conversation's log and to the
inbox of its active agent. Both are one append, conditional on who is active, so nobody answers mail meant for another.
Mail with a principal is also conditional on the owner: it goes into a conversation of the principal's, or begins one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from magent2.bus.log import Log
from magent2.bus.operations import Append, Condition, HeadIs, LastSeqIs, SetHead
from magent2.bus.records import AppendResult, NewRecord
from magent2.bus.retry import retry_on_conflict
from magent2.errors import ConditionFailed, HopsExceeded, IdConflict
from magent2.mail.addressing import addressed_agent, check_envelope, mail_records, name_taken_error
from magent2.mail.conversation_state import ActiveAgentCache, ConversationState, read_state
from magent2.mail.headers import (
    ACTIVE_AGENT,
    COPIES,
    FIRST_TEXT,
    HOPS,
    KIND,
    LAST_TEXT,
    MAIL_SEEN,
    OWNER,
    PAUSED,
    PRINCIPAL,
    RUN_AGENT,
    RUN_ENVELOPE,
    RUN_STATUS,
    RUNNING,
    STEER,
    STREAM_SEEN,
    TARGET_ENVELOPE,
    TRACE,
    WHOLE_LANE,
)
from magent2.models.address import Address, agent_topic, chat_topic, stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.models.json_types import JsonScalar

HOPS_MAX = 16


@dataclass(slots=True)
class SendOptions:
    """What a sender says besides the envelope. Read only.

    `principal`: for whom it is sent, which decides where it may go; `None` is trusted code, and may go anywhere.
    `stream_seen`: what becomes of the mail stands in the conversation's stream after this seq.
    `with_records` and `with_heads` ride in the same append: an event for the stream, for one.
    `inboxes`: the agents it goes to, where the sender has found out; else whoever is addressed. `only_if` holds then.
    `whole`: a stop of all that waits in the lane, and not of the run under way alone.
    """

    principal: str | None = None
    steer: bool = False
    hops: int = 0  # how often what this message answers was passed on already
    default_agent: str | None = None
    kind: str | None = None
    trace: str | None = None  # names the span of the send
    stream_seen: int | None = None
    with_records: tuple[NewRecord, ...] = ()
    with_heads: tuple[SetHead, ...] = ()
    inboxes: tuple[str, ...] | None = None
    only_if: tuple[Condition, ...] = ()
    whole: bool = False

    def headers(self) -> dict[str, JsonScalar]:
        if self.hops > HOPS_MAX:
            raise HopsExceeded(
                f"this message was passed on {self.hops} times, the limit is {HOPS_MAX};"
                " two agents may be answering each other"
            )
        headers: dict[str, JsonScalar] = {
            PRINCIPAL: self.principal,
            STEER: self.steer or None,
            HOPS: self.hops or None,
            KIND: self.kind,
            TRACE: self.trace,
            STREAM_SEEN: self.stream_seen,
            COPIES: len(self.inboxes) if self.inboxes and len(self.inboxes) > 1 else None,
        }
        return {name: value for name, value in headers.items() if value is not None}


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """Where an envelope went. `agent` is whoever will answer it, if anybody; `paused`: once a person has decided."""

    envelope_id: str
    topics: tuple[str, ...]
    agent: str | None
    appended: AppendResult
    paused: bool = False


async def deliver(
    log: Log, envelope: MessageEnvelope, options: SendOptions | None = None, guesses: ActiveAgentCache | None = None
) -> DeliveryResult:
    """Deliver an envelope once: under the same id a repeat answers as the first time did.

    With `guesses` the first try is made without looking who is active.
    """
    chosen = options or SendOptions()
    recipient = check_envelope(envelope)
    if guesses is not None and envelope.type == "message":
        guessed = await _deliver_by_guess(log, envelope, recipient, chosen, guesses)
        if guessed is not None:
            return guessed

    async def attempt() -> DeliveryResult:
        state = await read_state(log, envelope, chosen.principal)
        try:
            delivered = await attempt_delivery(log, envelope, recipient, state, chosen)
        except ConditionFailed:
            await _check_conversation_name(log, envelope.conversation_id)
            raise
        if guesses is not None and envelope.type == "message":
            guesses.note(envelope.conversation_id, state.active or delivered.agent)
        return delivered

    return await retry_on_conflict(attempt, f"the active agent of {envelope.conversation_id!r}", "send again")


async def _deliver_by_guess(
    log: Log, envelope: MessageEnvelope, recipient: Address, options: SendOptions, guesses: ActiveAgentCache
) -> DeliveryResult | None:
    """One try on a guess; `None` when it was wrong, or when a repeat leaves open who was meant the first time."""
    conversation = envelope.conversation_id
    state = ConversationState(guesses.guess(conversation), new=conversation not in guesses)
    try:
        delivered = await attempt_delivery(log, envelope, recipient, state, options)
    except ConditionFailed:
        return None
    except IdConflict:
        if options.principal is None:
            raise
        return None  # whether the id is known is told only to whoever may write there
    if delivered.appended.repeat and recipient.kind == "chat":
        return None
    guesses.note(conversation, state.active or delivered.agent)
    return delivered


async def attempt_delivery(
    log: Log, envelope: MessageEnvelope, recipient: Address, state: ConversationState, options: SendOptions
) -> DeliveryResult:
    """One try. `ConditionFailed`: things do not stand so any more."""
    agent, append = await plan_append(log, envelope, recipient, state, options)
    appended = await log.append(append)
    topics = tuple(record.topic for record in append.records[: len(append.records) - len(options.with_records)])
    head = state.head or {}
    paused = bool(head.get(PAUSED)) and head.get(RUN_AGENT) == agent
    return DeliveryResult(envelope.id, topics, agent, appended, paused)


async def plan_append(
    log: Log, envelope: MessageEnvelope, recipient: Address, state: ConversationState, options: SendOptions
) -> tuple[str | None, Append]:
    """Whose inbox it goes to, and the append that brings it there."""
    agents = options.inboxes
    if agents is None:
        addressed = addressed_agent(recipient, envelope, state.active, options.default_agent)
        agents = () if addressed is None else (addressed,)
    agent = agents[0] if agents else None
    headers: Mapping[str, JsonScalar] = {}
    if envelope.type == "control" and agent is not None:
        headers = await _command_headers(log, agent, state.head or {}, options.whole)
    return agent, mail_append(envelope, agents, state, options, headers)


async def plan_delivery(log: Log, envelope: MessageEnvelope, options: SendOptions | None = None) -> Append:
    """The append that would deliver the envelope as things stand; what a delivery would refuse is refused."""
    chosen, recipient = options or SendOptions(), check_envelope(envelope)
    if chosen.principal is None:
        topics = stream_topic(envelope.conversation_id), agent_topic(envelope.conversation_id)
        stream, agent = await log.describe(*topics)
        if agent.last:
            raise name_taken_error(envelope.conversation_id)
        state = ConversationState(stream.head.get(ACTIVE_AGENT), head=stream.head)
    else:
        state = await read_state(log, envelope, chosen.principal)
    _, append = await plan_append(log, envelope, recipient, state, chosen)
    return append


async def _command_headers(log: Log, agent: str, head: Mapping[str, Any], whole: bool) -> Mapping[str, JsonScalar]:
    """For a command: which mail its sender can have meant, and which run."""
    inbox = await log.describe(chat_topic(agent))
    if whole:
        return {MAIL_SEEN: inbox[0].last, WHOLE_LANE: True}
    running = head.get(RUN_STATUS) == RUNNING and head.get(RUN_AGENT) == agent
    meant = {TARGET_ENVELOPE: head.get(RUN_ENVELOPE)} if running and head.get(RUN_ENVELOPE) else {}
    return {MAIL_SEEN: inbox[0].last, **meant}


def mail_append(
    envelope: MessageEnvelope,
    agents: Sequence[str],
    state: ConversationState,
    options: SendOptions,
    more_headers: Mapping[str, JsonScalar],
) -> Append:
    """The append that is the delivery. The first of the agents is the one that becomes active where none is."""
    agent = agents[0] if agents else None
    conversation = envelope.conversation_id
    own_log = stream_topic(conversation)
    conditions: list[Condition] = [LastSeqIs(agent_topic(conversation), 0), *options.only_if]
    fields: dict[str, Any] = {}
    if agent is not None or state.guessed:
        conditions.append(HeadIs(own_log, ACTIVE_AGENT, state.active))
    if state.guessed:
        conditions.append(HeadIs(own_log, PAUSED, None))  # else its sender is to be told
    if agent is not None and state.active is None and envelope.type == "message":
        fields[ACTIVE_AGENT] = agent
    if options.principal is not None:
        conditions += _ownership(conversation, options.principal, state)
        if state.new:
            fields[OWNER] = options.principal
    first = _first_text(options.with_heads, own_log, state)
    if first is not None:
        fields[FIRST_TEXT] = first
        conditions.append(HeadIs(own_log, LAST_TEXT, None))
    return Append(
        records=(*mail_records(envelope, agents, {**options.headers(), **more_headers}), *options.with_records),
        conditions=tuple(conditions),
        heads=tuple(_with_fields(options.with_heads, own_log, fields)),
    )


def _ownership(conversation: str, principal: str, state: ConversationState) -> list[Condition]:
    """That the conversation is the principal's, or that there is none yet: no record, and nobody's name on it."""
    own_log = stream_topic(conversation)
    if not state.new:
        return [HeadIs(own_log, OWNER, principal)]
    return [LastSeqIs(own_log, 0), LastSeqIs(chat_topic(conversation), 0), HeadIs(own_log, OWNER, None)]


def _first_text(heads: Sequence[SetHead], topic: str, state: ConversationState) -> str | None:
    """The text that the delivery shows, where the conversation shows none yet: what a list knows it by."""
    begun = not state.new if state.head is None else LAST_TEXT in state.head
    shown = (head.fields[LAST_TEXT] for head in heads if head.topic == topic and LAST_TEXT in head.fields)
    return None if begun else next(shown, None)


def _with_fields(heads: Sequence[SetHead], topic: str, fields: dict[str, Any]) -> list[SetHead]:
    if not fields:
        return list(heads)
    others = [head for head in heads if head.topic != topic]
    for head in heads:
        if head.topic == topic:
            fields = {**fields, **head.fields}
    return [*others, SetHead(topic, fields)]


async def _check_conversation_name(log: Log, conversation: str) -> None:
    (agent,) = await log.describe(agent_topic(conversation))
    if agent.last:
        raise name_taken_error(conversation)
