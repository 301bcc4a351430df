"""Replace the last answer of a conversation: answer its message again, or a changed one.

One append holds the new message, a `superseded` record in the history that names the run, and the event that shows it.
Nothing is removed: the run and what it has sent stay on the log, and its usage counts. Model input and views leave it
out. Only the last run of an idle conversation can be superseded, so no other run has it in its input.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from magent2.bus.log import Log
from magent2.bus.operations import SetHead
from magent2.bus.records import NewRecord, Record
from magent2.bus.retry import retry_on_conflict
from magent2.errors import ConditionFailed, IdConflict, NotSupersedable
from magent2.mail.conversation_state import ConversationState, read_state
from magent2.mail.delivery import DeliveryResult, SendOptions, attempt_delivery
from magent2.mail.headers import ACTIVE_AGENT, FIRST_TEXT, LAST_TEXT
from magent2.models.address import Address, chat_topic, stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.models.events import HandoffEvent, SentByRun, SupersededEvent
from magent2.models.json_types import JsonMapping, JsonObject
from magent2.models.run_options import FILE_PARTS, RUN_OPTIONS
from magent2.sessions.busy import busy_error, read_busy
from magent2.sessions.history import History, HistoryReader, RunKey, RunRecord, read_history
from magent2.sessions.steering import NON_CHAT_KINDS
from magent2.sessions.store import CLIENT_MESSAGE_ID, message_title, user_message_record
from magent2.sessions.stream import stream_record

SUPERSEDES = "supersedes"  # metadata field of mail: the message whose answer it replaces


@dataclass(frozen=True, slots=True)
class Replacement:
    """A request to replace the last answer.

    Without a `text`, the message is answered again as it is. `message_id` names the message, if the caller knows it.
    `envelope_id` is the id of the new message, `key` the client's id for it.
    """

    conversation: str
    envelope_id: str
    sender: str
    text: str | None = None
    message_id: str | None = None
    key: str | None = None


async def replace_answer(
    log: Log, wanted: Replacement, options: SendOptions, history_reader: HistoryReader = read_history
) -> DeliveryResult:
    """Supersede the last run and send its message again, once per envelope id. A repeat returns the first result.

    Raises `ConversationBusy` while a message waits or is being answered, `NotSupersedable` if there is no such run or
    another message was named, `IdConflict` if the id was used for something else, and what `read_state` raises.
    """
    conversation = wanted.conversation
    place = MessageEnvelope(conversation_id=conversation, sender=wanted.sender, recipient=f"chat:{conversation}")

    async def attempt() -> DeliveryResult:
        state = await read_state(log, place, options.principal)
        busy, unchanged = await read_busy(log, conversation, state)
        history = await history_reader(log, conversation)
        # After the history: a repeat that is accepted meanwhile must find the run that the first request has replaced.
        known = await log.find(chat_topic(conversation), wanted.envelope_id)
        if known is not None:
            first = _accepted_before(wanted, known)
            return await attempt_delivery(log, first, Address.parse(first.recipient), state, options)
        if busy:
            raise busy_error(conversation)
        try:
            run = supersedable_run(history, wanted.message_id)
        except NotSupersedable:
            # The history is newer than the conditions. If they no longer hold, another request may have replaced the
            # answer, and the conversation is busy with it.
            if (await read_busy(log, conversation, state))[1] != unchanged:
                raise ConditionFailed(f"{conversation!r} has changed") from None
            raise
        envelope = new_message(wanted, run)
        records, head = _replacing(envelope, run, history, state)
        aimed = options._replace(
            inboxes=(run.agent,),
            only_if=(*options.only_if, *unchanged),
            with_records=(*options.with_records, *records),
            with_heads=(head,),
        )
        return await attempt_delivery(log, envelope, Address.parse(envelope.recipient), state, aimed)

    return await retry_on_conflict(attempt, f"the last answer of {conversation!r}", "read it again")


def supersedable_run(history: History, message_id: str | None = None) -> RunRecord:
    """The last run, if it answers a message of a person, and the named one. Pure. Raises `NotSupersedable`."""
    talk = [run for run in visible_runs(history) if run.end is not None]
    if not talk:
        raise NotSupersedable("there is no answer to replace; send a message first")
    run = talk[-1]
    if message_id is not None and message_id.partition("/")[0] not in (run.run, run.envelope.get("id")):
        raise NotSupersedable(
            f"message {message_id[:80]!r} is not the one that was answered last; only that one can be replaced"
        )
    if str(run.envelope.get("sender", "")).startswith("agent:"):
        raise NotSupersedable("the last run answers another agent; only an answer to a person can be replaced")
    return run


def visible_runs(history: History) -> list[RunRecord]:
    """The runs of the dialogue that no other run has replaced."""
    return [run for run in history.runs.values() if not run.superseded and run.spec.get("kind") not in NON_CHAT_KINDS]


def new_message(wanted: Replacement, run: RunRecord) -> MessageEnvelope:
    """The message that replaces the one of the run. It keeps what the sender had added to it. Pure."""
    before: JsonMapping = run.envelope
    metadata = {name: value for name, value in dict(before.get("metadata") or {}).items() if name != CLIENT_MESSAGE_ID}
    if wanted.text is not None and RUN_OPTIONS in metadata:
        metadata[RUN_OPTIONS] = _with_text(metadata[RUN_OPTIONS], wanted.text)
    key = {} if wanted.key is None else {CLIENT_MESSAGE_ID: wanted.key}
    return MessageEnvelope(
        id=wanted.envelope_id,
        conversation_id=wanted.conversation,
        sender=wanted.sender,
        recipient=str(before.get("recipient") or f"agent:{run.agent}"),
        content=before.get("content") if wanted.text is None else wanted.text,
        metadata={**metadata, **key, SUPERSEDES: before.get("id")},
    )


def _with_text(options: JsonMapping, text: str) -> JsonObject:
    """The options of the message. Of the items that take its place in the model's input, the last text is replaced.

    Files beside that text stay.
    """
    items = [dict(item) for item in options.get("input") or ()]
    for item in reversed(items):
        if item.get("role") == "user":
            item["content"] = _content_with(text, item.get("content"))
            break
    return {**options, **({"input": items} if items else {})}


def _content_with(text: str, before: object) -> str | list[JsonObject]:
    files = [part for part in before if part.get("type") in FILE_PARTS] if isinstance(before, list) else []
    return [{"type": "input_text", "text": text}, *files] if files else text


def _accepted_before(wanted: Replacement, known: Record) -> MessageEnvelope:
    """The message that was accepted under this id, with the fields that its digest is made of."""
    payload = known.payload
    replaced = dict(payload.get("metadata") or {}).get(SUPERSEDES)
    same_text = wanted.text is None or payload.get("content") == wanted.text
    if known.erased or replaced is None or not same_text or wanted.message_id not in (None, replaced):
        raise IdConflict(f"id {wanted.envelope_id!r} was used for another message; use a new id")
    fields = ("id", "conversation_id", "sender", "recipient", "content", "metadata")
    return MessageEnvelope(**{name: payload[name] for name in fields})


def _replacing(
    envelope: MessageEnvelope, run: RunRecord, history: History, state: ConversationState
) -> tuple[tuple[NewRecord, ...], SetHead]:
    """What is written with the new message. The event that shows the message is last: its seq is that of the message.

    The agent that was active before the run is active again: a handoff of the superseded run does not count.
    """
    conversation, topic = envelope.conversation_id, stream_topic(envelope.conversation_id)
    question = str(run.envelope.get("id"))
    event = stream_record(superseded_event(envelope, run))
    records = [RunKey(conversation, run.run, run.agent).superseded(envelope.id)]
    # One digest for all requests: of two at a time, the second fails by its conditions, and looks again.
    records.append(replace(event, id=superseded_id(question), digest=question))
    fields: dict[str, object] = {LAST_TEXT: message_title(envelope)}
    if state.active not in (None, run.agent) and envelope.recipient.startswith("chat:"):
        handoff = HandoffEvent(conversation_id=conversation, source=state.active, target=run.agent, reason="superseded")
        records.append(stream_record(handoff))
        fields[ACTIVE_AGENT] = run.agent
    if len(visible_runs(history)) == 1 and not history.dropped.groups and FIRST_TEXT in (state.head or {}):
        fields[FIRST_TEXT] = fields[LAST_TEXT]
    return (*records, user_message_record(envelope)), SetHead(topic, fields)


def superseded_event(envelope: MessageEnvelope, run: RunRecord) -> SupersededEvent:
    """The event that a run was superseded: by which message, which messages go with it, and what stays sent. Pure."""
    steers = [steer["id"] for turn in sorted(run.answers) for steer in run.steers(turn)]
    sends = {name: tool["name"] for tool in run.tools.values() for name in tool["sends"]}
    sends.update({sent["id"]: sent["tool"] for sent in run.sent.values()})
    question = str(run.envelope.get("id"))
    return SupersededEvent(
        conversation_id=envelope.conversation_id,
        run_id=run.run,
        agent=run.agent,
        envelope_id=question,
        replaced_by=envelope.id,
        messages=[question, *steers],
        sends=[SentByRun(id=name, tool=tool) for name, tool in sends.items()],
    )


def superseded_id(message_id: str) -> str:
    """The id of the event that the run of this message was superseded, under which readers find it."""
    return f"superseded:{message_id}"


async def find_replacement(log: Log, conversation: str, message_id: str) -> str | None:
    """The message that replaced this one, if its answer was replaced."""
    found = await log.find(stream_topic(conversation), superseded_id(message_id))
    replaced_by = None if found is None or found.erased else found.payload.get("replaced_by")
    return replaced_by if isinstance(replaced_by, str) else None
