"""What a message does to a conversation in which another message waits or is being answered (`when_busy`).

`queue` delivers it behind the others. `steer` adds it to the runs in progress. `interrupt` stops the run in progress
and delivers the message in the same append. `reject` delivers it only to an idle conversation.

A conversation is busy while mail of it is in the lane of any agent, or in an inbox on the way to a lane. A message that
no worker has read yet counts, and so does a run that waits for an approval. What was seen is a condition of the append:
the head fields of the last run, and where an idle conversation was seen also the last seqs of the conversation and its
stream. So no message can be accepted, and no run can start or end, between the look and the append.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Literal, NamedTuple

from magent2.bus.log import Log
from magent2.bus.operations import Append, Condition, HeadIs, LastSeqIs
from magent2.bus.records import NewRecord
from magent2.errors import ConversationBusy, InvalidInput
from magent2.mail.addressing import addressed_agent, check_envelope, mail_records
from magent2.mail.conversation_state import ConversationState, has_mail
from magent2.mail.delivery import Aim, DeliveryResult, SendOptions, deliver, plan_delivery, stop_headers
from magent2.mail.headers import PRINCIPAL, RUN_AGENT, RUN_ENVELOPE, RUN_STATUS, RUNNING, STOP
from magent2.models.address import Address, chat_topic, stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.history import History, HistoryReader, read_history


class StopTarget(NamedTuple):
    """Whose run an interrupt stops. Without `envelope_id` no run was seen: it stops the message that is first."""

    agent: str
    envelope_id: str | None = None


async def post_if_allowed(
    log: Log,
    envelope: MessageEnvelope,
    options: SendOptions,
    when_busy: Literal["interrupt", "reject"],
    history_reader: HistoryReader = read_history,
) -> DeliveryResult:
    """Deliver a message to a conversation that may be busy, once per envelope id.

    A repeat returns the first result, also while the conversation is busy, and stops nothing. Raises
    `ConversationBusy` for a new message that `reject` refuses, and what `deliver` raises.
    """
    return await deliver(log, envelope, options, aim=_busy_aim(log, envelope, when_busy, history_reader))


async def plan_if_allowed(
    log: Log,
    envelope: MessageEnvelope,
    options: SendOptions,
    when_busy: Literal["interrupt", "reject"],
    history_reader: HistoryReader = read_history,
) -> Append:
    """Return the append of `post_if_allowed`, without running it. Raises what that raises."""
    return await plan_delivery(log, envelope, options, _busy_aim(log, envelope, when_busy, history_reader))


def _busy_aim(
    log: Log, envelope: MessageEnvelope, when_busy: Literal["interrupt", "reject"], history_reader: HistoryReader
) -> Aim:
    """Return what completes the options of a delivery: its conditions, and the command that stops a run."""
    if envelope.type != "message":
        raise InvalidInput("when_busy is for messages; send a command without it")
    conversation, recipient = envelope.conversation_id, check_envelope(envelope)

    async def reject(state: ConversationState, chosen: SendOptions) -> SendOptions:
        busy, unchanged = await read_busy(log, conversation, state)
        if busy and not await log.find(chat_topic(conversation), envelope.id):
            raise busy_error(conversation)
        return chosen._replace(only_if=(*chosen.only_if, *unchanged))

    async def interrupt(state: ConversationState, chosen: SendOptions) -> SendOptions:
        busy, unchanged = await read_busy(log, conversation, state)
        history = await history_reader(log, conversation)
        addressed = addressed_agent(recipient, envelope, state.active, chosen.default_agent)
        target = stop_target(history, state.head or {}, recipient, addressed) if busy else None
        if target is not None and target.envelope_id is not None:
            unchanged = run_unchanged(conversation, state)  # what else was accepted does not matter
        stops = () if target is None else await _stop_records(log, envelope, target, chosen.principal)
        # Before the event that shows the message: the seq of the last record is that of the message.
        return chosen._replace(only_if=(*chosen.only_if, *unchanged), with_records=(*stops, *chosen.with_records))

    return interrupt if when_busy == "interrupt" else reject


def busy_error(conversation: str) -> ConversationBusy:
    return ConversationBusy(
        f"{conversation!r} is busy: a message waits there or is being answered; wait for its end, or stop it first"
    )


async def read_busy(log: Log, conversation: str, state: ConversationState) -> tuple[bool, tuple[Condition, ...]]:
    """Whether the conversation is busy, and conditions that hold until a message is accepted or a run starts or ends.

    `state` was read before. The seqs are read before the mail: what is accepted after them makes a condition fail.
    """
    last = await log.describe(stream_topic(conversation), chat_topic(conversation))
    seqs = tuple(LastSeqIs(info.topic, info.last) for info in last)
    return await has_mail(log, conversation), (*run_unchanged(conversation, state), *seqs)


def run_unchanged(conversation: str, state: ConversationState) -> tuple[Condition, ...]:
    """Conditions that no run has started or ended in the conversation: both write its head."""
    head, topic = state.head or {}, stream_topic(conversation)
    return tuple(HeadIs(topic, name, head.get(name)) for name in (RUN_STATUS, RUN_AGENT, RUN_ENVELOPE))


def stop_target(
    history: History, head: Mapping[str, object], recipient: Address, addressed: str | None
) -> StopTarget | None:
    """What an interrupt stops in a busy conversation. Pure.

    For `agent:X` it is the run of X; for the conversation it is the run that its head shows, or else the last one that
    has not ended. If no run has started, it is the first message that waits for the `addressed` agent.
    """
    shown = (head.get(RUN_AGENT), head.get(RUN_ENVELOPE)) if head.get(RUN_STATUS) == RUNNING else None
    if shown is not None and (recipient.kind == "chat" or recipient.name == shown[0]):
        return StopTarget(str(shown[0]), str(shown[1]))
    runs = [run for run in history.runs.values() if run.end is None]
    if recipient.kind == "agent":
        runs = [run for run in runs if run.agent == recipient.name]
    if runs:
        return StopTarget(runs[-1].agent, str(runs[-1].envelope.get("id")))
    return None if addressed is None else StopTarget(addressed)


async def _stop_records(
    log: Log, envelope: MessageEnvelope, target: StopTarget, principal: str | None
) -> tuple[NewRecord, ...]:
    """The command that stops the run which the sender saw."""
    stop = MessageEnvelope(
        id=interrupt_id(envelope.conversation_id, envelope.id),
        conversation_id=envelope.conversation_id,
        sender=envelope.sender,
        recipient=f"agent:{target.agent}",
        type="control",
        content=STOP,
    )
    headers = await stop_headers(log, target.agent, target.envelope_id)
    return mail_records(stop, (target.agent,), {**headers, **({PRINCIPAL: principal} if principal else {})})


def interrupt_id(conversation: str, envelope_id: str) -> str:
    """The id of the stop that an interrupting message brings, under which its receipt is found."""
    text = "\x1f".join((conversation, envelope_id))
    return "stop-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
