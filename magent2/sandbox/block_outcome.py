"""The outcome of a block: its result with the status line about held messages, and the event with the numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magent2.models.events import BlockEvent
from magent2.sandbox.interface import BlockFailure, BlockResult
from magent2.tools.interface import CallOutcome, CallScope, FailedSend, HeldSend

NOTHING_PRINTED = "(nothing was printed)"


def sent_text(sent: int, failures: Sequence[FailedSend] = ()) -> str:
    """The status line of a block that succeeded; empty if it held no messages."""
    if not sent and not failures:
        return ""
    if not failures:
        return f"\n\n[Messages: {sent} sent]"
    lines = "".join(f"\n- {line}" for line in failure_lines(failures))
    return f"\n\n[Messages: {sent} sent, {len(failures)} failed]{lines}"


def not_sent_text(held: int) -> str:
    """The status line of a block that failed; empty if it held no messages."""
    return f"\n\n[Messages: {held} NOT sent (script failed)]" if held else ""


def started_text(agents: Sequence[str]) -> str:
    """The line of a block that failed about agents that it has started; empty if it started none."""
    return f"\n\n[Agents: {len(agents)} started and still working: {', '.join(agents)}]" if agents else ""


def failure_lines(failures: Sequence[FailedSend]) -> list[str]:
    return [f"{failure.send.prepared.tool} to {failure.send.prepared.target}: {failure.reason}" for failure in failures]


@dataclass(frozen=True, slots=True)
class BlockOutcome:
    """An `OutcomeBuilder`: words the result of a block when it is known which of its messages are sent.

    `held` counts the messages that the block held when it ended, also if it failed and they are discarded.
    `started_agents` are the subagents that it started. They go on working if it fails.
    """

    conversation_id: str
    code: str
    result: BlockResult
    held: int
    duration_ms: int
    started_agents: Sequence[str] = ()

    def build(self, sends: Sequence[HeldSend], failures: Sequence[FailedSend]) -> CallOutcome:
        result, failure = self.result, self.result.failure
        if failure is None:
            status, error = sent_text(len(sends), failures), None
        else:
            sends, failures = (), ()
            last_line = failure.text.strip().rpartition("\n")[2]
            status = started_text(self.started_agents) + not_sent_text(self.held)
            error = f"{failure.kind}: {last_line}"
        parts = (result.output.rstrip("\n"), result.value or "", "" if failure is None else failure.text)
        text = ("\n".join(part for part in parts if part) or NOTHING_PRINTED) + status
        event = BlockEvent(
            conversation_id=self.conversation_id,
            code=self.code,
            output=text,
            status="success" if failure is None else "error",
            reason=None if failure is None else failure.kind,
            held=self.held,
            sent=len(sends),
            failed=len(failures),
            failures=failure_lines(failures),
            duration_ms=self.duration_ms,
        )
        return CallOutcome(text, error, event)


@dataclass(frozen=True, slots=True)
class InterruptedBlock:
    """An `OutcomeBuilder` for a block that still runs when its run is stopped."""

    code: str
    scope: CallScope

    def build(self, sends: Sequence[HeldSend], failures: Sequence[FailedSend]) -> CallOutcome:
        scope = self.scope
        stopped = BlockResult("", failure=BlockFailure("stopped", "the run was stopped before the block ended"))
        # A stop of the run reaches the agents that it has started, so they are not reported as working.
        return BlockOutcome(scope.run.conversation_id, self.code, stopped, len(scope.held), 0).build((), ())
