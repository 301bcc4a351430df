"""What a block's end means for the messages that it held: the status line, and the event that says so in numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from magent2.models.events import BlockEvent
from magent2.sandbox.interface import BlockFailure, BlockResult
from magent2.tools.interface import CallOutcome, CallScope, FailedSend, HeldSend

NOTHING_PRINTED = "(nothing was printed)"


def sent_text(sent: int, failures: Sequence[FailedSend] = ()) -> str:
    """The status line of a block that ended well; nothing when it held nothing."""
    if not sent and not failures:
        return ""
    if not failures:
        return f"\n\n[Messages: {sent} sent]"
    lines = "".join(f"\n- {line}" for line in failure_lines(failures))
    return f"\n\n[Messages: {sent} sent, {len(failures)} failed]{lines}"


def not_sent_text(held: int) -> str:
    """The status line of a block that did not end well."""
    return f"\n\n[Messages: {held} NOT sent (script failed)]" if held else ""


def failure_lines(failures: Sequence[FailedSend]) -> list[str]:
    return [f"{failure.send.prepared.tool} to {failure.send.prepared.target}: {failure.reason}" for failure in failures]


@dataclass(frozen=True, slots=True)
class BlockOutcome:
    """How a block is told, once it is known what became of what it held. `held` is what it held when it ended."""

    conversation_id: str
    code: str
    ended: BlockResult
    held: int
    duration_ms: int

    def told(self, sends: Sequence[HeldSend], failures: Sequence[FailedSend]) -> CallOutcome:
        failure = self.ended.failure
        if failure is not None:
            text = self._said(failure.text) + not_sent_text(self.held)
            return CallOutcome(text, f"{failure.kind}: {_last_line(failure.text)}", self._event(text, 0, ()))
        text = self._said() + sent_text(len(sends), failures)
        return CallOutcome(text, None, self._event(text, len(sends), failures))

    def _said(self, error: str = "") -> str:
        parts = (self.ended.output.rstrip("\n"), self.ended.value or "", error)
        return "\n".join(part for part in parts if part) or NOTHING_PRINTED

    def _event(self, text: str, sent: int, failures: Sequence[FailedSend]) -> BlockEvent:
        failure = self.ended.failure
        return BlockEvent(
            conversation_id=self.conversation_id,
            code=self.code,
            output=text,
            status="success" if failure is None else "error",
            reason=None if failure is None else failure.kind,
            held=self.held,
            sent=sent,
            failed=len(failures),
            failures=failure_lines(failures),
            duration_ms=self.duration_ms,
        )


@dataclass(frozen=True, slots=True)
class InterruptedBlock:
    """How a block is told that is still at work when its run is stopped."""

    code: str
    scope: CallScope

    def told(self, sends: Sequence[HeldSend], failures: Sequence[FailedSend]) -> CallOutcome:
        ended = BlockResult("", failure=BlockFailure("stopped", "the run was stopped before the block had ended"))
        closing = BlockOutcome(self.scope.run.conversation_id, self.code, ended, len(self.scope.held), 0)
        return closing.told((), ())


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
