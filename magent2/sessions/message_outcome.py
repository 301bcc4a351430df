"""What became of one message: its outcome, folded from the stream, and its progress, folded from the history."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from magent2.bus.log import Log
from magent2.bus.records import Record
from magent2.mail.delivery import find_mail
from magent2.mail.headers import COPIES
from magent2.models.address import chat_topic
from magent2.models.json_types import JsonMapping
from magent2.sessions.history import History, HistoryReader, RunRecord, find_runs, read_history

# --- The outcome: the run that answers the message, folded while the stream is read. Pure.

ENDS = ("finished", "failed", "stopped")
EVENTS_MAX = 5000  # records kept per message; further tokens are left out, because the final text contains them


class MessageOutcome:
    """Takes the records of a stream in order and keeps the message and everything of the run that answers it.

    The run of a retried message has several ends; the last one counts. A steer is answered by the run that has seen it.
    """

    def __init__(self, envelope_id: str) -> None:
        self.envelope_id = envelope_id
        self.records: list[Record] = []
        self.run_id: str | None = None
        self.status: str | None = None  # of the run, once it has ended
        self.reason: str | None = None
        self.output: Mapping[str, object] | None = None

    def take(self, record: Record) -> None:
        payload = record.payload
        kind = payload.get("event")
        if kind == "run" and (payload.get("envelope_id") == self.envelope_id or self._is_of_run(payload)):
            self._note_run(payload)
        elif kind == "message_received" and self.run_id is None and was_seen(payload, self.envelope_id):
            self.run_id = payload.get("run_id")
        elif kind == "output" and self._is_of_run(payload):
            self.output = payload
        is_question = kind == "user_message" and payload.get("message_id") == self.envelope_id
        if (is_question or self._is_of_run(payload)) and (kind != "token" or len(self.records) < EVENTS_MAX):
            self.records.append(record)

    def _note_run(self, payload: Mapping[str, object]) -> None:
        status = str(payload.get("status"))
        run_id, reason = payload.get("run_id"), payload.get("reason")
        self.run_id = run_id if isinstance(run_id, str) else None
        self.status = status if status in ENDS else None
        self.reason = reason if isinstance(reason, str) else None

    def _is_of_run(self, payload: Mapping[str, object]) -> bool:
        return self.run_id is not None and payload.get("run_id") == self.run_id

    @property
    def text(self) -> str:
        return "" if self.output is None else str(self.output.get("text", ""))

    @property
    def usage(self) -> Mapping[str, object] | None:
        usage = None if self.output is None else self.output.get("usage")
        return usage if isinstance(usage, Mapping) else None

    @property
    def message_id(self) -> str | None:
        """The id of the answer, not of the question."""
        found = None if self.output is None else self.output.get("message_id")
        return found if isinstance(found, str) else None

    def tool_calls(self) -> list[dict[str, object]]:
        """Each tool call once, in the order of their starts, with its result."""
        calls: dict[str, dict[str, object]] = {}
        for record in self.records:
            payload = record.payload
            if payload.get("event") == "tool_step":
                name = f"{payload.get('turn')}/{payload.get('tool_call_id') or record.seq}"
                calls.setdefault(name, _empty_call(payload)).update(_step_fields(payload))
        return list(calls.values())


def was_seen(receipt: Mapping[str, object], envelope_id: str) -> bool:
    """Whether a `message_received` event says that a turn of its run has seen this steer."""
    messages = receipt.get("messages")
    found = messages if isinstance(messages, list) else []
    return any(one.get("id") == envelope_id and one.get("outcome") == "seen" for one in found)


def _empty_call(payload: Mapping[str, object]) -> dict[str, object]:
    return {
        "tool_call_id": payload.get("tool_call_id"),
        "name": payload.get("name"),
        "agent_id": payload.get("agent"),
        "args": {},
        "status": "start",
        "result": None,
        "error": None,
        "duration_ms": None,
    }


def _step_fields(payload: Mapping[str, object]) -> dict[str, object]:
    """The fields that this step adds to its call."""
    names = {
        "args": "args",
        "status": "status",
        "result_summary": "result",
        "error": "error",
        "duration_ms": "duration_ms",
    }
    return {own: payload[name] for name, own in names.items() if payload.get(name)}


# --- The progress: accepted, seen, answered, or dead

ProgressStatus: TypeAlias = Literal["accepted", "seen", "answered", "dead"]
STATUS_RANK: Sequence[ProgressStatus] = (
    "accepted",
    "seen",
    "dead",
    "answered",
)  # of several agents the furthest counts

_ENDS: dict[str, tuple[ProgressStatus, str | None]] = {
    "finished": ("answered", None),
    "failed": ("dead", "the run failed"),
    "stopped": ("dead", "the run was stopped"),
}


@dataclass(frozen=True, slots=True)
class RunReceipt:
    """One run has the message: as a steer seen in `turn`, or, without a turn, as the message that it answers."""

    agent: str
    run_id: str
    turn: int | None
    status: ProgressStatus
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class MessageProgress:
    """The progress of a message. `waiting`: the number of its recipients that have not seen it."""

    status: ProgressStatus
    waiting: int
    receipts: tuple[RunReceipt, ...] = ()
    sender: str = ""
    headers: dict[str, object] = field(default_factory=dict)


def receipts_of(runs: Iterable[RunRecord], envelope_id: str) -> Iterator[RunReceipt]:
    for run in runs:
        if run.envelope.get("id") == envelope_id:
            yield RunReceipt(run.agent, run.run, None, *_status_of(run))
        for turn in run.answers:
            if any(steer["id"] == envelope_id for steer in run.steers(turn)):
                yield RunReceipt(run.agent, run.run, turn, *_status_of(run))


def _status_of(run: RunRecord) -> tuple[ProgressStatus, str | None]:
    if run.superseded:
        return "dead", f"its answer was replaced by that to {run.superseded}"
    return ("seen", None) if run.end is None else _ENDS[str(run.end["status"])]


async def find_message_progress(
    log: Log, conversation: str, envelope_id: str, history_reader: HistoryReader = read_history
) -> MessageProgress | None:
    """The progress of a message of the conversation; `None` if the conversation has no message of this id."""
    record = await log.find(chat_topic(conversation), envelope_id)
    if record is None or record.erased:
        return None
    history = await history_reader(log, conversation)
    receipts = tuple(receipts_of(history.runs.values(), envelope_id))
    copies = record.headers.get(COPIES)
    recipients = copies if isinstance(copies, int) else 1
    if len(receipts) < recipients and await _may_be_dropped(log, history, conversation, envelope_id):
        runs = await find_runs(log, conversation, lambda payload: _has_message(payload, envelope_id))
        receipts = tuple(receipts_of(runs, envelope_id))
    waiting = max(0, recipients - len(receipts))
    status = max((receipt.status for receipt in receipts), key=STATUS_RANK.index, default=STATUS_RANK[0])
    return MessageProgress(status, waiting, receipts, str(record.payload.get("sender", "")), dict(record.headers))


async def _may_be_dropped(log: Log, history: History, conversation: str, envelope_id: str) -> bool:
    """Whether a run that the history has dropped may have received the message.

    An agent gets the mail of a conversation in the order of its inbox, so no dropped run has received mail behind the
    last that any of them has. Where that is unknown, the mail of the agent's newest run is the limit. A message that is
    not in the inbox any more was removed by retention, after it was read.
    """
    newest = {run.agent: run.mail for run in history.runs.values()}
    for agent, received in history.dropped.received.items():
        inbox, limit = chat_topic(agent), newest.get(agent, 0) if received is None else received
        copy = await find_mail(log, inbox, conversation, envelope_id)
        if copy is None and not (await log.describe(inbox))[0].floor:
            continue
        if copy is None or not limit or copy.seq <= limit:
            return True
    return False


def _has_message(payload: JsonMapping, envelope_id: str) -> bool:
    """Whether a record of the history says that a run has received the message."""
    if payload["kind"] == "start":
        return bool(payload["envelope"].get("id") == envelope_id)
    return any(steer["id"] == envelope_id for steer in payload.get("steers", ()))
