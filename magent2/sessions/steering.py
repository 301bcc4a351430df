"""Steering: messages for runs in progress.

A steer to an agent (`agent:X`) goes into that agent's inbox. A steer to the conversation (`chat:C`) goes to every agent
with a run in progress there, after a handoff too; if there is none, to the active agent. It never goes to its sender.
The append is conditional on the head fields of the last run, so no run can start or end between the choice of the
inboxes and the delivery.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from magent2.bus.log import Log
from magent2.bus.operations import Append
from magent2.bus.records import Record
from magent2.bus.retry import retry_on_conflict
from magent2.errors import InvalidInput, NoActiveRun, QueueFull, TextTooLong, UnknownCursor
from magent2.mail.addressing import addressed_agent, check_envelope
from magent2.mail.conversation_state import ConversationState, read_state
from magent2.mail.delivery import DeliveryResult, SendOptions, attempt_delivery, plan_append
from magent2.mail.headers import RUN_AGENT, RUN_ENVELOPE, RUN_STATUS, RUNNING, STEER
from magent2.models.address import Address, chat_topic
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.busy import run_unchanged
from magent2.sessions.history import History, HistoryReader, RunRecord, read_history

STEER_MAX_CHARS = 20_000
STEERS_WAITING_MAX = 64  # steers that may wait for one run
MESSAGES_READ_MAX = 256  # messages read to count the waiting steers

NON_CHAT_KINDS = ("tool", "route")  # kinds of runs that call no model in turns


async def steer(
    log: Log,
    envelope: MessageEnvelope,
    options: SendOptions | None = None,
    *,
    require_active: bool = False,
    history_reader: HistoryReader = read_history,
) -> DeliveryResult:
    """Deliver a steer, once per envelope id. A repeat returns the first result, also when the run has ended since.

    Raises `NoActiveRun` if no run is in progress and `require_active` is set or no agent would start one, and
    `QueueFull` if too many steers wait for the run.
    """
    recipient = check_steer(envelope)
    chosen = options or SendOptions()

    async def attempt() -> DeliveryResult:
        state, aimed = await _aim(log, envelope, recipient, chosen, require_active, history_reader)
        return await attempt_delivery(log, envelope, recipient, state, aimed)

    return await retry_on_conflict(attempt, f"the set of active runs in {envelope.conversation_id!r}", "send again")


async def plan_steer(log: Log, envelope: MessageEnvelope, options: SendOptions | None = None) -> Append:
    """Return the append that would deliver a steer now, without running it. Raises what `steer` raises."""
    recipient = check_steer(envelope)
    state, aimed = await _aim(log, envelope, recipient, options or SendOptions(), False, read_history)
    _, append = await plan_append(log, envelope, recipient, state, aimed)
    return append


async def _aim(
    log: Log,
    envelope: MessageEnvelope,
    recipient: Address,
    options: SendOptions,
    require_active: bool,
    history_reader: HistoryReader,
) -> tuple[ConversationState, SendOptions]:
    """Read the conversation's state, and add the inboxes of its active runs to the options."""
    state = await read_state(log, envelope, options.principal)
    history = await history_reader(log, envelope.conversation_id)
    runs = active_runs(history, state.head or {})
    chosen = options._replace(steer=True)
    return state, await _find_targets(log, envelope, recipient, chosen, state, runs, require_active)


def check_steer(envelope: MessageEnvelope) -> Address:
    text = envelope.content or ""
    if not text.strip():
        raise InvalidInput("a steer needs some text")
    if len(text) > STEER_MAX_CHARS:
        raise TextTooLong(
            f"a steer has at most {STEER_MAX_CHARS} characters, not {len(text)}; send a message of its own instead"
        )
    return check_envelope(envelope)


def active_runs(history: History, head: Mapping[str, object]) -> dict[str, RunRecord]:
    """The runs in progress that call a model, by agent.

    A failed run whose dead letter was retried has an `end` in the history although it is in progress again. Only the
    head says so.
    """
    talk = [run for run in history.runs.values() if run.spec.get("kind") not in NON_CHAT_KINDS]
    again = (head.get(RUN_AGENT), head.get(RUN_ENVELOPE)) if head.get(RUN_STATUS) == RUNNING else None
    return {run.agent: run for run in talk if run.end is None or (run.agent, run.envelope.get("id")) == again}


async def _find_targets(
    log: Log,
    envelope: MessageEnvelope,
    recipient: Address,
    options: SendOptions,
    state: ConversationState,
    runs: dict[str, RunRecord],
    require_active: bool,
) -> SendOptions:
    """Add the inboxes to the options. A refusal is raised unless the steer is a repeat of one delivered before."""
    targets = steer_targets(envelope, recipient, options, state, runs)
    try:
        if not targets:
            raise NoActiveRun(
                f"no agent besides the sender is active in {envelope.conversation_id!r}; steer 'agent:NAME'"
            )
        if require_active and not any(agent in runs for agent in targets):
            raise NoActiveRun(f"no run is in progress in {envelope.conversation_id!r}; send a message to start one")
        for agent in targets:
            if agent in runs:
                await _check_capacity(log, envelope.conversation_id, runs[agent])
    except (NoActiveRun, QueueFull):
        known = await log.find(chat_topic(envelope.conversation_id), envelope.id)
        if known is None:
            raise
    return options._replace(inboxes=targets, only_if=run_unchanged(envelope.conversation_id, state))


def steer_targets(
    envelope: MessageEnvelope,
    recipient: Address,
    options: SendOptions,
    state: ConversationState,
    runs: dict[str, RunRecord],
) -> tuple[str, ...]:
    """The agents whose inboxes a steer goes to. Pure."""
    if recipient.kind == "agent":
        return (recipient.name,)
    at_work = tuple(agent for agent in runs if envelope.sender != f"agent:{agent}")
    if at_work:
        return at_work
    agent = addressed_agent(recipient, envelope, state.active, options.default_agent)
    return () if agent is None else (agent,)


async def _check_capacity(log: Log, conversation: str, run: RunRecord) -> None:
    """Check that the run can take another steer.

    Runs see steers in order, so all steers after the last one seen, or after the run's own message, are waiting.
    """
    last = last_seen_message(run)
    try:
        page = await log.read(chat_topic(conversation), last, MESSAGES_READ_MAX)
    except UnknownCursor:  # retention removed it, or the run was not started by delivered mail
        return
    waiting = sum(is_waiting_steer(run.agent, record) for record in page.records)
    if waiting >= STEERS_WAITING_MAX:
        raise QueueFull(
            f"{waiting} messages already wait for the run of {run.agent!r}, the limit is {STEERS_WAITING_MAX};"
            " wait until it has seen some"
        )


def last_seen_message(run: RunRecord) -> str:
    seen: Sequence[str] = [steer["id"] for turn in sorted(run.answers) for steer in run.steers(turn)]
    return seen[-1] if seen else str(run.envelope.get("id"))


def is_waiting_steer(agent: str, record: Record) -> bool:
    """Whether a record of the conversation's log is a steer that may have gone to this agent."""
    recipient = str(record.payload.get("recipient", ""))
    return bool(record.headers.get(STEER)) and recipient in (f"agent:{agent}", f"chat:{record.topic.partition(':')[2]}")
