"""What can be seen of a turn: the call of the model, and the calls of tools that came of it."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from magent2.telemetry.content import answered_message, asked_messages, finish_reason, shown

if TYPE_CHECKING:
    from magent2.telemetry.otel import Span
    from magent2.telemetry.runs import ObservedRun

NAME_MAX_CHARS = 80  # of a name that a model has made up


class ObservedChat:
    """One call of a model."""

    def __init__(
        self, run: ObservedRun, turn: Span | None, speaker: str, model: str, provider: str, given: object
    ) -> None:
        self._run = run
        self._begun = time.perf_counter()
        self._heard = False
        self._span: Span | None = None
        if run.tracer is not None:
            facts: dict[str, str | int | list[str] | None] = {
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": provider,
                "gen_ai.request.model": model,
                "gen_ai.agent.name": speaker,
                "gen_ai.conversation.id": run.facts.conversation,
                "gen_ai.input.messages": asked_messages(given) if run.tracer.content else None,
            }
            self._span = run.tracer.begin(f"chat {model}", "client", parent=turn, facts=facts)

    def hear(self) -> None:
        """A piece of the answer came; only the first counts."""
        if not self._heard:
            self._heard = True
            if self._span is not None:
                self._span.note({"gen_ai.response.time_to_first_chunk": time.perf_counter() - self._begun})

    def answered(self, response: Any) -> None:
        usage = getattr(response, "usage", None)
        tokens_in, tokens_out = _count(usage, "input_tokens"), _count(usage, "output_tokens")
        if self._run.metrics is not None:
            self._run.metrics.answered(tokens_in, tokens_out)
        if self._span is not None and self._run.tracer is not None:
            output = getattr(response, "output", None)
            facts: dict[str, str | int | list[str] | None] = {
                "gen_ai.response.id": _text(response, "id"),
                "gen_ai.response.model": _text(response, "model"),
                "gen_ai.usage.input_tokens": tokens_in,
                "gen_ai.usage.output_tokens": tokens_out,
                "gen_ai.response.finish_reasons": [finish_reason(output)],
                "gen_ai.output.messages": answered_message(output) if self._run.tracer.content else None,
            }
            self._span.note(facts)
            self._span.end()

    def end(self, error: str) -> None:
        if self._span is not None:
            self._span.fail(error)
            self._span.end()


class ObservedCall:
    """One call of a tool, and what it sends."""

    def __init__(
        self, run: ObservedRun, turn: Span | None, call_id: str, name: str, arguments: str, known: bool
    ) -> None:
        self._run = run
        self._name = name[:NAME_MAX_CHARS]
        self._known = known
        self._sends: list[Span] = []
        self._span: Span | None = None
        self._ended = False
        if run.tracer is not None:
            facts: dict[str, str | int | list[str] | None] = {
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": self._name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": call_id,
                "gen_ai.conversation.id": run.facts.conversation,
                "gen_ai.agent.name": run.facts.agent,
                "magent2.run.id": run.facts.run_id,
                "gen_ai.tool.call.arguments": shown(arguments) if run.tracer.content else None,
            }
            self._span = run.tracer.begin(f"execute_tool {self._name}", parent=turn, facts=facts)

    @contextmanager
    def current(self) -> Iterator[None]:
        """What code in here makes spans of belongs to this call."""
        if self._span is None:
            yield
        else:
            with self._span.current():
                yield

    def send(self, envelope_id: str, recipient: str, conversation: str) -> str | None:
        """A message is to leave with the call's result; what names the send to whoever gets it."""
        if self._run.tracer is None:
            return None
        facts = send_facts(envelope_id, recipient, conversation)
        span = self._run.tracer.begin("send", "producer", parent=self._span, facts=facts)
        self._sends.append(span)
        return span.traceparent

    def end(self, failure: str | None, result: object = None, sent: int = 0) -> None:
        """`failure` is why it failed, in words; a span is told the kind alone. Ended once."""
        if self._ended:
            return
        self._ended = True
        metrics, tracer = self._run.metrics, self._run.tracer
        if metrics is not None:
            metrics.called(self._name, self._known, failure is not None)
            metrics.sends.inc(sent)
        for span in self._sends:
            if not sent:
                span.fail("not_sent")
            span.end()
        if self._span is not None and tracer is not None:
            if tracer.content and result is not None:
                self._span.note({"gen_ai.tool.call.result": shown(result)})
            if failure is not None:
                self._span.fail(_kind(failure))
            self._span.end()


def send_facts(envelope_id: str, recipient: str, conversation: str) -> Mapping[str, str]:
    return {
        "messaging.system": "magent2",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.destination.name": recipient,
        "messaging.message.id": envelope_id,
        "messaging.message.conversation_id": conversation,
        "gen_ai.conversation.id": conversation,
    }


def _kind(failure: str) -> str:
    """`ValueError: no such city` → `ValueError`; words that begin otherwise are no kind."""
    name, colon, _ = failure.partition(":")
    return name if colon and name.isidentifier() else "tool_error"


def _count(usage: object, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, Mapping) else getattr(usage, name, None)
    return value if isinstance(value, int) else None


def _text(response: object, name: str) -> str | None:
    value = getattr(response, name, None)
    return value if isinstance(value, str) and value else None
