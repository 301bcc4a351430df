"""What can be seen of a run from outside while it goes on: its figures, and its spans.

    send → run → turn → chat (the model call)
                      → tool → send → run of another agent …

The names are those of OpenTelemetry's conventions for generative AI, where they have one; ours begin with `magent2.`.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from magent2.telemetry.run_metrics import RunMetrics
from magent2.telemetry.turns import ObservedCall, ObservedChat

if TYPE_CHECKING:
    from magent2.telemetry.otel import Span, Tracer

ABANDONED = "abandoned"  # nobody said how it ended
BAD_ENDS = frozenset({"buried", "retried", "parked", "fenced", ABANDONED})


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Which attempt at which run. `cause` is the span that its mail came from, `first` that of the first attempt."""

    agent: str
    conversation: str
    run_id: str
    attempt: int
    envelope_id: str
    kind: str
    cause: str | None = None
    first: str | None = None

    @property
    def attributes(self) -> dict[str, str | int]:
        return {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self.agent,
            "gen_ai.conversation.id": self.conversation,
            "magent2.run.id": self.run_id,
            "magent2.run.attempt": self.attempt,
            "magent2.run.kind": self.kind,
            "magent2.envelope.id": self.envelope_id,
        }


class Observer:
    """Sees the runs of one worker."""

    def __init__(self, metrics: RunMetrics | None = None, tracer: Tracer | None = None) -> None:
        self.metrics = metrics
        self.tracer = tracer

    @classmethod
    def of(cls, metrics: RunMetrics | None, tracer: Tracer | None) -> Observer | None:
        """Nobody, when nobody looks."""
        return None if metrics is None and tracer is None else cls(metrics, tracer)

    def run(self, facts: RunFacts, mail_at_ms: int) -> ObservedRun:
        return ObservedRun(self, facts, mail_at_ms)


class ObservedRun:
    """One attempt at a run, from its start to its end."""

    def __init__(self, observer: Observer, facts: RunFacts, mail_at_ms: int) -> None:
        self.facts = facts
        self.metrics = observer.metrics
        self.tracer = tracer = observer.tracer
        self._begun = time.perf_counter()
        self._span: Span | None = None
        self._turn: Span | None = None
        self._turn_number = -1
        self._chat: ObservedChat | None = None
        self._calls: list[ObservedCall] = []
        self._spoke = False
        if self.metrics is not None:
            self.metrics.running.inc()
            if facts.attempt == 1:
                self.metrics.waited(facts.agent, max(0.0, time.time() - mail_at_ms / 1000))
        if tracer is not None:
            link = facts.first if facts.attempt > 1 else None
            name = f"invoke_agent {facts.agent}"
            self._span = tracer.begin(name, parent=facts.cause or "", link=link, facts=facts.attributes)
            self._span.stay_current()

    @property
    def traceparent(self) -> str | None:
        return None if self._span is None else self._span.traceparent

    def spoke(self) -> None:
        """A token came; only the first counts."""
        if not self._spoke:
            self._spoke = True
            if self.metrics is not None:
                self.metrics.said_first_token(self.facts.agent, time.perf_counter() - self._begun)

    def asked(self, turn: int, speaker: str, model: str, provider: str, given: object) -> ObservedChat:
        """A model is asked. One that was asked before and did not answer has failed."""
        if self._chat is not None:
            self._chat.end("retried")
        self._chat = ObservedChat(self, self.turn(turn), speaker, model, provider, given)
        return self._chat

    def answered(self, response: Any) -> None:
        if self._chat is not None:
            self._chat.answered(response)
            self._chat = None

    def call(self, turn: int, call_id: str, name: str, arguments: str, known: bool) -> ObservedCall:
        """A tool is called. `known`: the name is that of a tool which exists."""
        call = ObservedCall(self, self.turn(turn), call_id, name, arguments, known)
        self._calls.append(call)
        return call

    def turn(self, number: int) -> Span | None:
        """The span of a turn. It ends when the next one begins; calls of one turn run side by side."""
        if self.tracer is not None and self._turn_number != number:
            self._end_turn()
            self._turn_number = number
            self._turn = self.tracer.begin(
                "turn", parent=self._span, facts={"magent2.turn": number, "magent2.run.id": self.facts.run_id}
            )
        return self._turn

    def end(self, outcome: str, error: str | None = None) -> None:
        if self._chat is not None:
            self._chat.end(error or outcome)
        for call in self._calls:
            call.end(f"{ABANDONED}:")
        self._end_turn()
        if self.metrics is not None:
            self.metrics.running.dec()
            self.metrics.ended(self.facts.agent, outcome, time.perf_counter() - self._begun)
        if self._span is not None:
            self._span.note({"magent2.run.outcome": outcome})
            if outcome in BAD_ENDS:
                self._span.fail(error or outcome)
            self._span.end()

    def _end_turn(self) -> None:
        if self._turn is not None:
            self._turn.end()
            self._turn = None
