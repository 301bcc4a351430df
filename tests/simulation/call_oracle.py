"""An oracle that outlives every process: it checks model requests and tool calls against the log."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from magent2.runner.context import RunContext
from magent2.tools.subagents import MESSAGE, RESULT, START
from tests.simulation.calls import BLOCK, PAY, PICK, SEND, TELL, WORK, has_bug, kind_of, result_of, start_of, task_of
from tests.simulation.engine_recorder import EngineRecorder
from tests.support.small_context import orphans_in

NOT_MADE = "The call was not made:"  # start of the result of a call that was not approved
NO_OUTPUT = "The call has no result: the client did not send its output in time."

TOOL_FAILED = " failed; the operator's log has the cause (failure id "  # in the result of a call whose tool raised


class CallOracle:
    def __init__(self, recorder: EngineRecorder) -> None:
        self.findings: list[str] = []
        self._recorder = recorder

    def check_call(self, context: RunContext, turn: int, call: str = "") -> None:
        """Check a model request or a tool call. Only a run that has lost its lane may repeat what is recorded."""
        what = "a call" if call else "an answer"
        counts, recorded = self._recorder.counts, self._recorder.recorded
        counts[f"{what} was asked for"] += 1
        if not self._recorder.holds(context.writer.owner):
            counts["a fenced run asked"] += 1
        elif (context.run_id, turn, call) in recorded:
            self.findings.append(f"{what} of {context.envelope.id} ({turn} {call}) was recorded and asked for again")
        if call and (context.run_id, turn, "") not in recorded:
            self.findings.append(f"{call} was run before its answer was on the log")
        if kind_of(call) == PAY and self._recorder.decided.get((context.run_id, turn, call)) != "approved":
            self.findings.append(f"{call} was run without approval")
        counts["an answer was replayed"] += not call and turn > 0 and turn - 1 in context.run.answers

    def check_steers(self, context: RunContext, said: list[str]) -> None:
        """Check that every steer which a recorded answer has seen is shown again in later requests."""
        own = context.run
        recorded = [steer["text"] for turn in own.answers for steer in own.steers(turn)]
        missing = Counter(recorded) - Counter(said)
        if missing:
            self.findings.append(f"the model of {context.envelope.id} was not shown {list(missing)} again")
        self._recorder.counts["a steer was shown"] += len(said)

    def check_request(self, context: RunContext, items: Sequence[Mapping[str, Any]]) -> None:
        """Check that a request has the message that it answers, and of each call its result too."""
        orphans = orphans_in(items)
        if orphans:
            self.findings.append(f"a request of {context.envelope.id} has the orphans {orphans}")
        said = [str(item.get("content")) for item in items if item.get("role") == "user"]
        if not any((context.envelope.content or "") in text for text in said):
            self.findings.append(f"a request of {context.envelope.id} does not have its message")

    def check_results(self, context: RunContext, shown: Mapping[str, Any]) -> None:
        """Check that the model is shown the results which the tools have returned."""
        for call, result in shown.items():
            if not self._is_right(call, str(result)):
                self.findings.append(f"the model of {context.envelope.id} was shown {result!r} for {call}")

    def _is_right(self, call: str, result: str) -> bool:
        kind, counts = kind_of(call), self._recorder.counts
        if kind == BLOCK:
            counts["a block has sent" if "[Messages: 2 sent]" in result else "a block has failed"] += 1
            return True
        if kind == PICK:
            counts["a client's output was shown"] += result != NO_OUTPUT
            return result == self._recorder.outputs.get(call, NO_OUTPUT)
        if has_bug(call) and kind in (WORK, TELL, PAY):
            return TOOL_FAILED in result or result.startswith(NOT_MADE)
        if kind == PAY:
            return result == result_of(call) or result.startswith(NOT_MADE)
        if kind in (START, MESSAGE, SEND):
            return True
        if kind == RESULT:
            return self._is_answer(start_of(call), result)
        return result == result_of(call)

    def _is_answer(self, start: str, result: str) -> bool:
        """Whether a result of a subagent is there in time and equals what the subagent has answered."""
        told = json.loads(result) if result.startswith("{") else {}
        if told.get("status") == "finished":
            self._recorder.counts["a subagent's result was shown"] += 1
            return bool(told["text"] == task_of(start))
        return told.get("status") != "pending"
