"""Progress of a message, folded from the history: accepted, seen, answered, or dead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from magent2.bus.log import Log
from magent2.mail.headers import COPIES
from magent2.models.address import chat_topic
from magent2.sessions.history import History, HistoryReader, RunRecord, read_history

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


def receipts_of(history: History, envelope_id: str) -> Iterator[RunReceipt]:
    for run in history.runs.values():
        if run.envelope.get("id") == envelope_id:
            yield RunReceipt(run.agent, run.run, None, *_status_of(run))
        for turn in run.answers:
            if any(steer["id"] == envelope_id for steer in run.steers(turn)):
                yield RunReceipt(run.agent, run.run, turn, *_status_of(run))


def _status_of(run: RunRecord) -> tuple[ProgressStatus, str | None]:
    return ("seen", None) if run.end is None else _ENDS[str(run.end["status"])]


async def find_message_progress(
    log: Log, conversation: str, envelope_id: str, history_reader: HistoryReader = read_history
) -> MessageProgress | None:
    """The progress of a message of the conversation; `None` if the conversation has no message of this id."""
    record = await log.find(chat_topic(conversation), envelope_id)
    if record is None or record.erased:
        return None
    history = await history_reader(log, conversation)
    receipts = tuple(receipts_of(history, envelope_id))
    copies = record.headers.get(COPIES)
    waiting = max(0, (copies if isinstance(copies, int) else 1) - len(receipts))
    status = max((receipt.status for receipt in receipts), key=STATUS_RANK.index, default=STATUS_RANK[0])
    return MessageProgress(status, waiting, receipts, str(record.payload.get("sender", "")), dict(record.headers))
