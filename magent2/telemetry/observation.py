"""Metrics and spans of deliveries, runs, model calls and tool calls.

    send → run → turn → chat (the model call)
                      → tool → send → run of another agent …

Attributes follow OpenTelemetry's conventions for generative AI where these have a name; ours begin with `magent2.`.
With traces off all spans are `NO_SPAN`, so nothing here asks whether traces are on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeAlias

import orjson

from magent2.telemetry.metrics import RunMetrics
from magent2.telemetry.tracing import NO_SPAN, NO_TRACER, Attributes, Span, Tracer

ABANDONED = "abandoned"  # the attempt ended without an outcome
FAILED_OUTCOMES = frozenset({"buried", "retried", "parked", "fenced", ABANDONED})
NAME_MAX_CHARS = 80  # of a tool name that a model may have invented


class DeliveryObserver:
    """Observes the messages that a gateway delivers: the time the bus took, and a span for each."""

    def __init__(self, observe_latency: Callable[[float], None], tracer: Tracer) -> None:
        self._observe_latency = observe_latency
        self._tracer = tracer

    @contextmanager
    def delivery(self, envelope_id: str, recipient: str, conversation: str) -> Iterator[str | None]:
        """Wrap one delivery; gives the `traceparent` to send along with the message. Only successes are timed."""
        begun = time.perf_counter()
        span = NO_SPAN
        if self._tracer.enabled:
            attributes = _send_attributes(envelope_id, recipient, conversation)
            span = self._tracer.begin("send", "producer", attributes=attributes)
        try:
            yield span.traceparent if self._tracer.enabled else None
        except BaseException as error:
            span.set_error(type(error).__name__)
            raise
        finally:
            span.end()
        self._observe_latency(time.perf_counter() - begun)


@dataclass(frozen=True, slots=True)
class RunAttributes:
    """Identifies one attempt at one run.

    `cause` is the `traceparent` of the message that the run answers, `first` that of the run's first attempt.
    """

    agent: str
    conversation: str
    run_id: str
    attempt: int
    envelope_id: str
    kind: str
    cause: str | None = None
    first: str | None = None

    @property
    def span_attributes(self) -> dict[str, str | int]:
        return {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": self.agent,
            "gen_ai.conversation.id": self.conversation,
            "magent2.run.id": self.run_id,
            "magent2.run.attempt": self.attempt,
            "magent2.run.kind": self.kind,
            "magent2.envelope.id": self.envelope_id,
        }


class RunObserver:
    """Observes the runs of one worker."""

    def __init__(self, metrics: RunMetrics | None = None, tracer: Tracer = NO_TRACER) -> None:
        self.metrics = metrics
        self.tracer = tracer

    @classmethod
    def if_needed(cls, metrics: RunMetrics | None, tracer: Tracer) -> RunObserver | None:
        """An observer, or `None` when neither metrics nor traces are on, so that runs skip all of this."""
        return cls(metrics, tracer) if metrics is not None or tracer.enabled else None

    def start_run(self, attributes: RunAttributes, mail_at_ms: int) -> ObservedRun:
        return ObservedRun(self, attributes, mail_at_ms)


class ObservedRun:
    """Metrics and spans of one attempt at a run, from its start to its end."""

    def __init__(self, observer: RunObserver, attributes: RunAttributes, mail_at_ms: int) -> None:
        self.attributes = attributes
        self.metrics = observer.metrics
        self.tracer = observer.tracer
        self._begun = time.perf_counter()
        self._turn = NO_SPAN
        self._turn_number = -1
        self._model_call: ObservedModelCall | None = None
        self._tool_calls: list[ObservedToolCall] = []
        self._has_token = False
        if self.metrics is not None:
            self.metrics.running.inc()
            if attributes.attempt == 1:
                self.metrics.observe_mail_wait(attributes.agent, max(0.0, time.time() - mail_at_ms / 1000))
        self._span = self.tracer.begin(
            f"invoke_agent {attributes.agent}",
            parent=attributes.cause or "",
            link=attributes.first if attributes.attempt > 1 else None,
            attributes=attributes.span_attributes,
        )
        self._span.stay_current()

    @property
    def traceparent(self) -> str | None:
        return self._span.traceparent if self.tracer.enabled else None

    def token_received(self) -> None:
        """Record the time of the first token; later ones change nothing."""
        if not self._has_token:
            self._has_token = True
            if self.metrics is not None:
                self.metrics.observe_first_token(self.attributes.agent, time.perf_counter() - self._begun)

    def start_model_call(
        self, turn: int, speaker: str, model: str, provider: str, request: object
    ) -> ObservedModelCall:
        """Observe a model call. An earlier one without an answer has failed and was retried."""
        if self._model_call is not None:
            self._model_call.fail("retried")
        self._model_call = ObservedModelCall(self, self.turn(turn), speaker, model, provider, request)
        return self._model_call

    def end_model_call(self, response: object) -> None:
        if self._model_call is not None:
            self._model_call.end(response)
            self._model_call = None

    def start_tool_call(self, turn: int, call_id: str, name: str, arguments: str, known: bool) -> ObservedToolCall:
        """Observe a tool call. `known`: a tool of this name exists."""
        call = ObservedToolCall(self, self.turn(turn), call_id, name, arguments, known)
        self._tool_calls.append(call)
        return call

    def turn(self, number: int) -> Span:
        """The span of a turn. It ends when the next turn begins, because tool calls of one turn run in parallel."""
        if self._turn_number != number:
            self._turn.end()
            self._turn_number = number
            self._turn = self.tracer.begin(
                "turn", parent=self._span, attributes={"magent2.turn": number, "magent2.run.id": self.attributes.run_id}
            )
        return self._turn

    def end(self, outcome: str, error: str | None = None) -> None:
        if self._model_call is not None:
            self._model_call.fail(error or outcome)
        for call in self._tool_calls:
            call.end(f"{ABANDONED}:")
        self._turn.end()
        if self.metrics is not None:
            self.metrics.running.dec()
            self.metrics.count_run(self.attributes.agent, outcome, time.perf_counter() - self._begun)
        self._span.set_attributes({"magent2.run.outcome": outcome})
        if outcome in FAILED_OUTCOMES:
            self._span.set_error(error or outcome)
        self._span.end()


class ObservedModelCall:
    """One call of a model."""

    def __init__(self, run: ObservedRun, turn: Span, speaker: str, model: str, provider: str, request: object) -> None:
        self._run = run
        self._begun = time.perf_counter()
        self._has_chunk = False
        self._span = run.tracer.begin(
            f"chat {model}",
            "client",
            parent=turn,
            attributes={
                "gen_ai.operation.name": "chat",
                "gen_ai.provider.name": provider,
                "gen_ai.request.model": model,
                "gen_ai.agent.name": speaker,
                "gen_ai.conversation.id": run.attributes.conversation,
                "gen_ai.input.messages": input_messages(request) if run.tracer.content else None,
            },
        )

    def chunk_received(self) -> None:
        """Record the time of the first chunk of the answer; later ones change nothing."""
        if not self._has_chunk:
            self._has_chunk = True
            self._span.set_attributes({"gen_ai.response.time_to_first_chunk": time.perf_counter() - self._begun})

    def end(self, response: object) -> None:
        usage = getattr(response, "usage", None)
        input_tokens, output_tokens = _token_count(usage, "input_tokens"), _token_count(usage, "output_tokens")
        if self._run.metrics is not None:
            self._run.metrics.count_turn(input_tokens, output_tokens)
        if not self._run.tracer.enabled:
            return  # building the attributes walks the whole answer
        output = getattr(response, "output", None)
        self._span.set_attributes(
            {
                "gen_ai.response.id": _text_field(response, "id"),
                "gen_ai.response.model": _text_field(response, "model"),
                "gen_ai.usage.input_tokens": input_tokens,
                "gen_ai.usage.output_tokens": output_tokens,
                "gen_ai.response.finish_reasons": [finish_reason(output)],
                "gen_ai.output.messages": output_messages(output) if self._run.tracer.content else None,
            }
        )
        self._span.end()

    def fail(self, error_type: str) -> None:
        self._span.set_error(error_type)
        self._span.end()


class ObservedToolCall:
    """One tool call, and the messages that it sends."""

    def __init__(self, run: ObservedRun, turn: Span, call_id: str, name: str, arguments: str, known: bool) -> None:
        self._run = run
        self._name = name[:NAME_MAX_CHARS]
        self._known = known
        self._sends: dict[str, Span] = {}  # by the id of the message, until it is sent
        self._ended = False
        self._span = run.tracer.begin(
            f"execute_tool {self._name}",
            parent=turn,
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": self._name,
                "gen_ai.tool.type": "function",
                "gen_ai.tool.call.id": call_id,
                "gen_ai.conversation.id": run.attributes.conversation,
                "gen_ai.agent.name": run.attributes.agent,
                "magent2.run.id": run.attributes.run_id,
                "gen_ai.tool.call.arguments": content_text(arguments) if run.tracer.content else None,
            },
        )

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this call the parent of all spans that code in this block starts."""
        with self._span.current():
            yield

    def send(self, envelope_id: str, recipient: str, conversation: str) -> str | None:
        """Observe a message of the call; gives the `traceparent` to send along with it.

        It is sent with the result of the call, or before (`sent_now`), or not at all.
        """
        if not self._run.tracer.enabled:
            return None
        attributes = _send_attributes(envelope_id, recipient, conversation)
        span = self._run.tracer.begin("send", "producer", parent=self._span, attributes=attributes)
        self._sends[envelope_id] = span
        return span.traceparent

    def sent_now(self, envelope_id: str) -> None:
        """Count a message that was sent before the call has ended."""
        if self._run.metrics is not None:
            self._run.metrics.sends.inc()
        self._sends.pop(envelope_id, NO_SPAN).end()

    def end(self, failure: str | None, result: object = None, sent: Collection[str] = ()) -> None:
        """End the call, once. `sent` are the ids of the messages that were sent with its result.

        `failure` is the error as text; the span gets only its type.
        """
        if self._ended:
            return
        self._ended = True
        metrics, tracer = self._run.metrics, self._run.tracer
        if metrics is not None:
            metrics.count_tool_call(self._name, self._known, failure is not None)
            metrics.sends.inc(len(sent))
        for envelope_id, span in self._sends.items():
            if envelope_id not in sent:
                span.set_error("not_sent")
            span.end()
        if tracer.content and result is not None:
            self._span.set_attributes({"gen_ai.tool.call.result": content_text(result)})
        if failure is not None:
            self._span.set_error(_error_type(failure))
        self._span.end()


def _send_attributes(envelope_id: str, recipient: str, conversation: str) -> Attributes:
    return {
        "messaging.system": "magent2",
        "messaging.operation.type": "send",
        "messaging.operation.name": "send",
        "messaging.destination.name": recipient,
        "messaging.message.id": envelope_id,
        "messaging.message.conversation_id": conversation,
        "gen_ai.conversation.id": conversation,
    }


def _error_type(failure: str) -> str:
    """`ValueError: no such city` → `ValueError`; a text without such a prefix → `tool_error`."""
    name, colon, _ = failure.partition(":")
    return name if colon and name.isidentifier() else "tool_error"


def _token_count(usage: object, name: str) -> int | None:
    value = usage.get(name) if isinstance(usage, Mapping) else getattr(usage, name, None)
    return value if isinstance(value, int) else None


def _text_field(response: object, name: str) -> str | None:
    value = getattr(response, name, None)
    return value if isinstance(value, str) and value else None


# --- Message content as JSON for span attributes, in the form of OpenTelemetry's conventions for generative AI. Pure.
#
# A message is `{"role", "parts"}`. A part is text, a `tool_call` or a `tool_call_response`; of any other item only
# the type is kept.

CONTENT_MAX_CHARS = 20_000  # of one attribute

Part: TypeAlias = dict[str, object]


def input_messages(request: object) -> str:
    """The input of a model call: a text, or items of the Responses API."""
    if isinstance(request, str):
        return _json([{"role": "user", "parts": [_text(request)]}])
    items = request if isinstance(request, Sequence) else ()
    return _json([{"role": role, "parts": parts} for role, parts in map(_message, map(_as_mapping, items))])


def output_messages(output: object) -> str:
    """The answer of a model as one message, however many items it consists of."""
    items = [_as_mapping(item) for item in output] if isinstance(output, Sequence) else []
    parts = [part for item in items for part in _message(item)[1]]
    return _json([{"role": "assistant", "parts": parts, "finish_reason": finish_reason(output)}])


def finish_reason(output: object) -> str:
    items = output if isinstance(output, Sequence) else ()
    return "tool_call" if any(_as_mapping(item).get("type") == "function_call" for item in items) else "stop"


def content_text(value: object) -> str:
    """Arguments or result of a tool: a text as it is, anything else as JSON."""
    return value[:CONTENT_MAX_CHARS] if isinstance(value, str) else _json(value)


def _message(item: Mapping[str, object]) -> tuple[object, list[Part]]:
    """Role and parts of one item."""
    kind = item.get("type", "message")
    if kind == "function_call":
        call: Part = {"type": "tool_call", "id": item.get("call_id"), "name": item.get("name")}
        return "assistant", [{**call, "arguments": item.get("arguments")}]
    if kind == "function_call_output":
        return "tool", [{"type": "tool_call_response", "id": item.get("call_id"), "response": item.get("output")}]
    if kind != "message":
        return "assistant", [{"type": str(kind)}]
    content = item.get("content")
    pieces: Sequence[object] = [content] if isinstance(content, str) else ()
    if isinstance(content, Sequence) and not isinstance(content, str):
        pieces = content
    return item.get("role", "assistant"), [_part(piece) for piece in pieces]


def _part(piece: object) -> Part:
    if isinstance(piece, str):
        return _text(piece)
    found = _as_mapping(piece)
    return _text(found["text"]) if "text" in found else {"type": str(found.get("type", "unknown"))}


def _text(text: object) -> Part:
    return {"type": "text", "content": text}


def _as_mapping(value: object) -> Mapping[str, object]:
    if isinstance(value, Mapping):
        return value
    dump = getattr(value, "model_dump", None)
    return dump(mode="json", exclude_none=True) if callable(dump) else {"type": type(value).__name__}


def _json(value: object) -> str:
    return orjson.dumps(value, default=str).decode()[:CONTENT_MAX_CHARS]
