"""Delivery: append an envelope to its conversation and to the inbox of the agent that is to answer it.

Mail to `agent:X` goes to the conversation (`chat:{conversation}`) and to X's inbox; mail to `chat:C` goes to the
conversation and to the inbox of its active agent. Both records are one append. Its conditions make sure that the active
agent has not changed since it was read, so that the right agent answers. Mail with a principal is also conditional on
the owner: it goes into a conversation that the principal owns, or starts a new one.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from magent2.bus.log import Log
from magent2.bus.operations import Append, Condition, HeadIs, LastSeqIs, SetHead
from magent2.bus.records import AppendResult, NewRecord, Record
from magent2.bus.retry import retry_on_conflict
from magent2.errors import ConditionFailed, HopsExceeded, IdConflict, TopicDeleted
from magent2.mail.addressing import addressed_agent, check_envelope, inbox_id, mail_records, name_taken_error
from magent2.mail.conversation_state import ActiveAgentCache, ConversationState, read_state
from magent2.mail.headers import (
    ACTIVE_AGENT,
    AWAITED,
    BUDGET,
    COPIES,
    FIRST_TEXT,
    HOPS,
    KIND,
    LAST_TEXT,
    MAIL_SEEN,
    OWNER,
    PAUSED,
    PRINCIPAL,
    ROOT_CONVERSATION,
    ROOT_RUN,
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
from magent2.mail.registration import is_registered, no_conversation, not_registered
from magent2.models.address import Address, agent_topic, chat_topic, control_topic, stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.models.json_types import JsonMapping, JsonScalar

HOPS_MAX = 16


class SendOptions(NamedTuple):
    """How to send an envelope. A named tuple, because every message makes several of them.

    `principal`: the user or program it is sent for; it must own the conversation. `None` is trusted code, which may
    write anywhere.
    `stream_seen`: the last seq of the conversation's stream before the send; results appear after it.
    `with_records`, `with_heads`: written in the same append, for example the event that shows the message.
    `inboxes`: the agents it goes to, if the sender has determined them; `only_if` are the conditions under which they
    are right. By default the recipient of the envelope decides.
    `activates`: the first agent that a conversation is addressed to becomes its active agent. False for an agent that
    is not known, whose mail only waits. `None`: the log decides; the agent is known if it is registered.
    `whole`: a stop applies to all mail that waits in the lane, not only to the current run.
    `target`: a stop is for the run of this envelope, also if it has not begun.
    """

    principal: str | None = None
    steer: bool = False
    hops: int = 0  # how many agents have passed on the message that this one answers
    default_agent: str | None = None
    kind: str | None = None
    trace: str | None = None  # `traceparent` of the send's span
    root_run: str | None = None  # run and conversation at the root of the tree of subagents that the mail belongs to
    root_conversation: str | None = None
    stream_seen: int | None = None
    with_records: tuple[NewRecord, ...] = ()
    with_heads: tuple[SetHead, ...] = ()
    inboxes: tuple[str, ...] | None = None
    only_if: tuple[Condition, ...] = ()
    whole: bool = False
    activates: bool | None = True
    target: str | None = None

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
            ROOT_RUN: self.root_run,
            ROOT_CONVERSATION: self.root_conversation,
            STREAM_SEEN: self.stream_seen,
            COPIES: len(self.inboxes) if self.inboxes and len(self.inboxes) > 1 else None,
        }
        return {name: value for name, value in headers.items() if value is not None}


@dataclass(frozen=True, slots=True)
class DeliveryResult:
    """Where an envelope went.

    `agent` is the agent that will answer it, if any. `paused`: its run waits for an approval, so the answer will too.
    `needs_budget`: the same for a run that waits for more budget.
    """

    envelope_id: str
    topics: tuple[str, ...]
    agent: str | None
    appended: AppendResult
    paused: bool = False
    needs_budget: bool = False


# Completes the options of one attempt, from the state that the attempt has read. What it raises ends the delivery.
Aim: TypeAlias = Callable[[ConversationState, SendOptions], Awaitable[SendOptions]]


async def deliver(
    log: Log,
    envelope: MessageEnvelope,
    options: SendOptions | None = None,
    active_agents: ActiveAgentCache | None = None,
    aim: Aim | None = None,
) -> DeliveryResult:
    """Append an envelope to its conversation and to its recipient's inbox, once per envelope id.

    A repeat returns the result of the first delivery. With `active_agents`, the first attempt uses the agent in that
    cache instead of reading the log, unless `aim` needs the state. Raises `ConditionFailed` when the active agent keeps
    changing, `AddressError` for a bad recipient, and what `read_state`, `is_registered` and `aim` raise.
    """
    chosen = options or SendOptions()
    recipient = check_envelope(envelope)
    if active_agents is not None and aim is None and envelope.type == "message":
        guessed = await _deliver_by_guess(log, envelope, recipient, chosen, active_agents)
        if guessed is not None:
            return guessed

    async def attempt() -> DeliveryResult:
        state = await read_state(log, envelope, chosen.principal)
        aimed = chosen if aim is None else await aim(state, chosen)
        known = await is_registered(log, recipient.name) if chosen.activates is None else chosen.activates
        try:
            delivered = await attempt_delivery(log, envelope, recipient, state, aimed._replace(activates=known))
        except ConditionFailed:
            await _check_conversation_name(log, envelope.conversation_id)
            raise
        if active_agents is not None and envelope.type == "message":
            active_agents.set(envelope.conversation_id, state.active or (delivered.agent if known else None))
        return delivered

    return await retry_on_conflict(attempt, f"the active agent of {envelope.conversation_id!r}", "send again")


async def _deliver_by_guess(
    log: Log, envelope: MessageEnvelope, recipient: Address, options: SendOptions, active_agents: ActiveAgentCache
) -> DeliveryResult | None:
    """Try once with the cached active agent. An agent of which it is not known whether it is registered counts as not.

    Returns `None` if the guess was wrong, or if the envelope is a repeat to `chat:C`: only the log says which agent
    got the first one.
    """
    conversation = envelope.conversation_id
    state = ConversationState(active_agents.get(conversation), new=conversation not in active_agents)
    try:
        delivered = await attempt_delivery(log, envelope, recipient, state, options)
    except ConditionFailed:
        return None
    except TopicDeleted:
        if options.activates is not None:
            raise
        return None  # the inbox may be that of a deleted conversation: then there is no such agent
    except IdConflict:
        if options.principal is None:
            raise
        return None  # only a principal that may write there may learn that the id exists: check that first
    if delivered.appended.repeat and recipient.kind == "chat":
        return None
    active_agents.set(conversation, state.active or (delivered.agent if options.activates else None))
    return delivered


async def attempt_delivery(
    log: Log, envelope: MessageEnvelope, recipient: Address, state: ConversationState, options: SendOptions
) -> DeliveryResult:
    """Try once. Raises `ConditionFailed` if the conversation is no longer in this state."""
    agent, append = await plan_append(log, envelope, recipient, state, options)
    appended = await log.append(append)
    topics = tuple(record.topic for record in append.records[: len(append.records) - len(options.with_records)])
    head = state.head or {}
    of_agent = head.get(RUN_AGENT) == agent
    paused, needs_budget = bool(head.get(PAUSED)) and of_agent, bool(head.get(BUDGET)) and of_agent
    return DeliveryResult(envelope.id, topics, agent, appended, paused, needs_budget)


async def plan_append(
    log: Log, envelope: MessageEnvelope, recipient: Address, state: ConversationState, options: SendOptions
) -> tuple[str | None, Append]:
    """Return the agent whose inbox the envelope goes to, and the append that delivers it."""
    agents = options.inboxes
    if agents is None:
        addressed = addressed_agent(recipient, envelope, state.active, options.default_agent)
        agents = () if addressed is None else (addressed,)
    agent = agents[0] if agents else None
    if envelope.type != "control" or agent is None:
        return agent, mail_append(envelope, agents, state, options)
    headers = await _command_headers(log, agent, state.head or {}, options)
    # The conversation does not keep its commands. So the inbox has to tell whether release 0.2 accepted this one.
    inboxes = [control_topic(name) for name in agents]
    known = [inbox for inbox in inboxes if await _find_under_own_id(log, inbox, envelope.conversation_id, envelope.id)]
    return agent, mail_append(envelope, agents, state, options, headers, known)


async def find_mail(log: Log, inbox: str, conversation: str, envelope_id: str) -> Record | None:
    """Find the mail of a conversation in an inbox by the id of its envelope."""
    found = await log.find(inbox, inbox_id(conversation, envelope_id))
    return found or await _find_under_own_id(log, inbox, conversation, envelope_id)


async def _find_under_own_id(log: Log, inbox: str, conversation: str, envelope_id: str) -> Record | None:
    """Find mail that release 0.2 or earlier delivered: its record in the inbox has the id of its envelope."""
    found = await log.find(inbox, envelope_id)
    return found if found is not None and found.payload.get("conversation_id") == conversation else None


async def plan_delivery(
    log: Log, envelope: MessageEnvelope, options: SendOptions | None = None, aim: Aim | None = None
) -> Append:
    """Return the append that would deliver the envelope now, without running it. Raises what `deliver` raises."""
    chosen, recipient = options or SendOptions(), check_envelope(envelope)
    if chosen.principal is None:
        topics = stream_topic(envelope.conversation_id), agent_topic(envelope.conversation_id)
        stream, agent = await log.describe(*topics)
        if agent.last:
            raise name_taken_error(envelope.conversation_id)
        state = ConversationState(stream.head.get(ACTIVE_AGENT), head=stream.head)
    else:
        state = await read_state(log, envelope, chosen.principal)
    aimed = chosen if aim is None else await aim(state, chosen)
    _, append = await plan_append(log, envelope, recipient, state, aimed)
    return append


async def _command_headers(log: Log, agent: str, head: JsonMapping, options: SendOptions) -> Mapping[str, JsonScalar]:
    """Headers of a command: the mail and the run that existed when it was sent.

    A command that arrives late must not stop mail or a run that its sender could not know of.
    """
    if options.whole:
        return {**await stop_headers(log, agent), WHOLE_LANE: True}
    if options.target is not None:
        return {**await stop_headers(log, agent, options.target), AWAITED: True}
    running = head.get(RUN_STATUS) == RUNNING and head.get(RUN_AGENT) == agent
    return await stop_headers(log, agent, head.get(RUN_ENVELOPE) if running else None)


async def stop_headers(log: Log, agent: str, target: str | None = None) -> dict[str, JsonScalar]:
    """Headers of a stop: the envelope whose run its sender saw, if any, and how far the agent's inbox reached."""
    inbox = await log.describe(chat_topic(agent))
    return {MAIL_SEEN: inbox[0].last, **({TARGET_ENVELOPE: target} if target else {})}


def mail_append(
    envelope: MessageEnvelope,
    agents: Sequence[str],
    state: ConversationState,
    options: SendOptions,
    more_headers: Mapping[str, JsonScalar] | None = None,
    under_own_id: Sequence[str] = (),
) -> Append:
    """Build the delivering append. If the conversation has no active agent, the first of `agents` becomes active.

    `under_own_id`: inboxes in which the record has the id of the envelope.
    """
    agent = agents[0] if agents else None
    conversation = envelope.conversation_id
    stream_name = stream_topic(conversation)
    conditions: list[Condition] = [LastSeqIs(agent_topic(conversation), 0), *options.only_if]
    fields: dict[str, object] = {}
    if agent is not None or state.guessed:
        conditions.append(HeadIs(stream_name, ACTIVE_AGENT, state.active))
    if state.guessed:
        # If its run is paused, the head must be read to report it.
        conditions += (HeadIs(stream_name, PAUSED, None), HeadIs(stream_name, BUDGET, None))
    if options.activates is None and agent is not None:
        # An active agent was known once, so it need not be looked up. A conversation may have taken its name since.
        conditions += no_conversation(agent) if agent == state.active else not_registered(agent)
    if agent is not None and state.active is None and envelope.type == "message" and options.activates:
        fields[ACTIVE_AGENT] = agent
    if options.principal is not None:
        conditions += _ownership(conversation, options.principal, state)
        if state.new:
            fields[OWNER] = options.principal
    first = _first_text(options.with_heads, stream_name, state)
    if first is not None:
        fields[FIRST_TEXT] = first
        conditions.append(HeadIs(stream_name, LAST_TEXT, None))
    headers = {**options.headers(), **(more_headers or {})}
    return Append(
        records=(*mail_records(envelope, agents, headers, under_own_id), *options.with_records),
        conditions=tuple(conditions),
        heads=tuple(_with_fields(options.with_heads, stream_name, fields)),
    )


def _ownership(conversation: str, principal: str, state: ConversationState) -> list[Condition]:
    """Conditions that the principal owns the conversation, or that it is still new: no record and no owner."""
    stream_name = stream_topic(conversation)
    if not state.new:
        return [HeadIs(stream_name, OWNER, principal)]
    return [LastSeqIs(stream_name, 0), LastSeqIs(chat_topic(conversation), 0), HeadIs(stream_name, OWNER, None)]


def _first_text(heads: Sequence[SetHead], topic: str, state: ConversationState) -> str | None:
    """The text of the first message of a conversation, which lists show; `None` if there was one before."""
    begun = not state.new if state.head is None else LAST_TEXT in state.head
    texts = (head.fields.get(LAST_TEXT) for head in heads if head.topic == topic)
    return None if begun else next((text for text in texts if isinstance(text, str)), None)


def _with_fields(heads: Sequence[SetHead], topic: str, fields: dict[str, object]) -> list[SetHead]:
    """The heads with more fields for one topic. An append sets the head of a topic once."""
    others = [head for head in heads if head.topic != topic]
    if not fields and len(heads) - len(others) < 2:
        return list(heads)
    for head in heads:
        if head.topic == topic:
            fields = {**fields, **head.fields}
    return [*others, SetHead(topic, fields)]


async def _check_conversation_name(log: Log, conversation: str) -> None:
    (agent,) = await log.describe(agent_topic(conversation))
    if agent.last:
        raise name_taken_error(conversation)
