"""Approvals: tool calls that wait for a person, and the decisions on them.

A decision is control mail to the agent whose run waits. Its id is derived from the call alone, so the log accepts the
first decision on a call and refuses every other one, including the expiry. The writer therefore knows at once whether
its decision counts.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Literal, TypeAlias

from magent2.bus.log import Log
from magent2.errors import AlreadyDecided, IdConflict, LimitError, UnknownCall
from magent2.mail.delivery import SendOptions, deliver, find_mail
from magent2.models.address import control_topic
from magent2.models.api.messages import DECISION_REASON_MAX_CHARS
from magent2.models.envelope import MessageEnvelope
from magent2.models.json_types import JsonMapping, JsonObject
from magent2.sessions.folds import approvable_calls
from magent2.sessions.history import (
    ApprovalRequest,
    DecisionStatus,
    HistoryReader,
    RunRecord,
    find_runs,
    read_history,
)

APPROVAL_MAX_S = 86_400.0  # how long a call waits for a decision by default
EXPIRY_SENDER = "system"  # sender of the decision `expire`

APPROVE, REJECT, EXPIRE = "approve", "reject", "expire"
DECISIONS = (APPROVE, REJECT, EXPIRE)
CALL = "call"  # metadata field of a decision: `{run, turn, call_id}`
OUTPUT = "output"  # metadata field of a decision: the output of a tool of the client

ApprovalDecision: TypeAlias = Literal["approve", "reject", "expire"]
ApprovalStatus: TypeAlias = Literal["pending"] | DecisionStatus

STATUS_OF: Mapping[str, DecisionStatus] = {APPROVE: "approved", REJECT: "rejected", EXPIRE: "expired"}


@dataclass(frozen=True, slots=True)
class Approval:
    """A tool call that waits, or has waited, for a decision. `client`: it waits for the output of the client's tool."""

    run_id: str
    agent: str  # agent of the run; after a handoff `speaker` is a different one
    turn: int
    call_id: str
    name: str
    speaker: str
    arguments: str  # as the model wrote them
    expires_ms: int
    status: ApprovalStatus = "pending"
    decided_by: str | None = None
    reason: str | None = None
    due_ms: int | None = None  # `expires_ms` by the log clock, which decides
    client: bool = False
    output: object = None

    @property
    def key(self) -> tuple[int, str]:
        return self.turn, self.call_id

    @property
    def expires_at(self) -> datetime:
        return datetime.fromtimestamp(self.expires_ms / 1000, UTC)

    @property
    def args(self) -> JsonObject:
        """The arguments as an object; text that is not a JSON object is put under `text`."""
        try:
            found = json.loads(self.arguments or "{}")
        except (ValueError, RecursionError):  # a model may write anything
            found = None
        return found if isinstance(found, dict) else {"text": self.arguments}

    @property
    def decision_id(self) -> str:
        return decision_id_of(self.run_id, self.turn, self.call_id)


def decision_id_of(run_id: str, turn: int, call_id: str) -> str:
    text = "\x1f".join((run_id, str(turn), call_id))
    return "decision-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def run_approvals(run: RunRecord) -> list[Approval]:
    """The calls of a run that need or needed approval, in order. Pure."""
    return [_approval(run, turn, call) for (turn, _), call in run.asked.items()]


def _approval(run: RunRecord, turn: int, call: ApprovalRequest) -> Approval:
    output = run.answers[turn]["response"].get("output", ()) if turn in run.answers else ()
    _, arguments = approvable_calls(output).get(call["call_id"], ("", ""))
    decision = run.decisions.get((turn, call["call_id"]))
    approval = Approval(
        run.run,
        run.agent,
        turn,
        call["call_id"],
        call["name"],
        call["speaker"],
        arguments,
        call["expires_ms"],
        due_ms=call.get("due_ms"),
        client=call.get("client", False),
    )
    if decision is None:
        return approval
    return replace(
        approval,
        status=decision["status"],
        decided_by=decision["by"],
        reason=decision["reason"],
        output=decision.get("output"),
    )


async def find_approvals(log: Log, conversation: str, history_reader: HistoryReader = read_history) -> list[Approval]:
    """The calls that need or needed approval, oldest first: all that wait, and those of the last runs that asked.

    A decision that lies in the agent's inbox is included before a worker has read it. Calls of a client's tools are not
    for a person to decide on, and are left out.
    """
    history = await history_reader(log, conversation)
    found = await _approvals_of(log, conversation, history.runs.values())
    return [approval for approval in found if not approval.client]


async def find_client_calls(
    log: Log, conversation: str, history_reader: HistoryReader = read_history
) -> list[Approval]:
    """The calls of the client's tools, oldest first: all that wait for their output, and those of the last runs."""
    history = await history_reader(log, conversation)
    found = await _approvals_of(log, conversation, history.runs.values())
    return [approval for approval in found if approval.client]


async def _approvals_of(log: Log, conversation: str, runs: Iterable[RunRecord]) -> list[Approval]:
    found: list[Approval] = []
    for run in runs:
        for approval in run_approvals(run):
            if approval.status == "pending":
                if run.end is not None:
                    continue  # the run was stopped: the call does not wait any more
                found.append(await _with_decision(log, conversation, approval))
            else:
                found.append(approval)
    return found


async def _with_decision(log: Log, conversation: str, approval: Approval) -> Approval:
    """The call with the decision from the agent's inbox, if there is one."""
    record = await find_mail(log, control_topic(approval.agent), conversation, approval.decision_id)
    return approval if record is None or record.erased else apply_decision(approval, record.payload)


def apply_decision(approval: Approval, letter: JsonMapping) -> Approval:
    """The call with the decision in this control mail. Pure."""
    metadata = letter.get("metadata") or {}
    status = STATUS_OF[str(letter.get("content"))]
    by = str(letter.get("sender"))
    return replace(approval, status=status, decided_by=by, reason=metadata.get("reason"), output=metadata.get(OUTPUT))


def decision_envelope(
    conversation: str,
    approval: Approval,
    decision: ApprovalDecision,
    by: str,
    reason: str | None,
    output: object = None,
) -> MessageEnvelope:
    call = {"run": approval.run_id, "turn": approval.turn, "call_id": approval.call_id}
    return MessageEnvelope(
        id=approval.decision_id,
        conversation_id=conversation,
        sender=by,
        recipient=f"agent:{approval.agent}",
        type="control",
        content=decision,
        metadata={
            CALL: call,
            **({"reason": reason} if reason else {}),
            **({} if output is None else {OUTPUT: output}),
        },
    )


async def decide_approval(
    log: Log,
    conversation: str,
    call_id: str,
    decision: ApprovalDecision,
    by: str,
    reason: str | None = None,
    *,
    options: SendOptions | None = None,
    history_reader: HistoryReader = read_history,
) -> Approval:
    """Decide on a call, once. The same decision again changes nothing.

    Raises `AlreadyDecided` for a different one, `UnknownCall` if no such call exists.
    """
    if reason is not None and len(reason) > DECISION_REASON_MAX_CHARS:
        raise LimitError(
            f"a reason has at most {DECISION_REASON_MAX_CHARS} characters, this one has {len(reason)}; shorten it"
        )
    approval = await _find_call(log, conversation, call_id, history_reader)
    if approval.client:
        raise UnknownCall(f"call {call_id[:80]!r} waits for the output of its client's tool, not for approval")
    if approval.status == "pending":
        letter = decision_envelope(conversation, approval, decision, by, reason)
        try:
            await deliver(log, letter, options)
            return apply_decision(approval, letter.model_dump())
        except IdConflict:
            approval = await _with_decision(log, conversation, approval)
    if approval.status != STATUS_OF[decision]:
        raise AlreadyDecided(f"call {call_id!r} is {approval.status} already, by {approval.decided_by}")
    return approval


async def answer_call(
    log: Log, conversation: str, call: Approval, output: object, by: str, options: SendOptions | None = None
) -> Approval:
    """Send the output of a client's tool to the run that waits for it, once. The same output again changes nothing.

    Raises `AlreadyDecided` if the call has another output, or has expired.
    """
    if call.status == "pending":
        letter = decision_envelope(conversation, call, "approve", by, None, output)
        try:
            await deliver(log, letter, options)
            return apply_decision(call, letter.model_dump())
        except IdConflict:
            call = await _with_decision(log, conversation, call)
    if call.status != "approved" or call.output != output:
        what = "has expired" if call.status == "expired" else "has another output already"
        raise AlreadyDecided(f"call {call.call_id[:80]!r} {what}")
    return call


async def find_output(log: Log, conversation: str, agent: str, run_id: str, turn: int, call_id: str) -> object | None:
    """The output of a client's tool in the inbox of the agent, if it is there."""
    decision_id = decision_id_of(run_id, turn, call_id)
    record = await find_mail(log, control_topic(agent), conversation, decision_id)
    return None if record is None or record.erased else (record.payload.get("metadata") or {}).get(OUTPUT)


async def expire_approval(log: Log, conversation: str, approval: Approval) -> JsonMapping:
    """Expire a call and return the decision that counts: an earlier one, if a person decided at the last moment."""
    letter = decision_envelope(conversation, approval, "expire", EXPIRY_SENDER, None)
    try:
        await deliver(log, letter)
    except IdConflict:
        record = await find_mail(log, control_topic(approval.agent), conversation, approval.decision_id)
        if record is not None and not record.erased:
            return record.payload
    return letter.model_dump()


async def _find_call(log: Log, conversation: str, call_id: str, history_reader: HistoryReader) -> Approval:
    """The call of that id: a pending one if there is one, else the last."""
    history = await history_reader(log, conversation)
    found = await _approvals_of(log, conversation, history.runs.values())
    named = [approval for approval in found if approval.call_id == call_id]
    if not named and history.dropped.asked:
        runs = await find_runs(log, conversation, lambda payload: _asks_for(payload, call_id))
        named = [approval for approval in await _approvals_of(log, conversation, runs) if approval.call_id == call_id]
    if not named:
        raise UnknownCall(f"no call {call_id[:80]!r} waits for approval in {conversation!r}; list those that do")
    return next((approval for approval in named if approval.status == "pending"), named[-1])


def _asks_for(payload: JsonMapping, call_id: str) -> bool:
    """Whether a record of the history asks for approval of the call."""
    return payload["kind"] == "pause" and any(call["call_id"] == call_id for call in payload["calls"])
