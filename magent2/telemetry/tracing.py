"""Trace spans, and whether this process makes any.

Spans are made through the API of OpenTelemetry. Without the SDK, or with traces off (the default), `Tracer` hands out
one span that records nothing, so that callers need not ask whether traces are on. `otel_sdk.py` is loaded only where
traces are on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context, attach
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from magent2.settings import Settings

log = logging.getLogger(__name__)

SERVICE = "magent2"
EXPORTERS = ("otlp", "console")
PROTOCOL = "http/protobuf"
FLUSH_MAX_S = 5.0  # time for sending the remaining spans when the process ends
SDK_MISSING = (
    "traces are requested but the OpenTelemetry SDK is not installed;"
    " pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http, continuing without traces"
)

AttributeValue: TypeAlias = str | int | float | bool | list[str]
Attributes: TypeAlias = Mapping[str, AttributeValue | None]  # an attribute that is None is left out

_SPAN_KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
    "producer": trace.SpanKind.PRODUCER,
}
_HEADER = "traceparent"
_propagator = TraceContextTextMapPropagator()


class Span:
    """An operation with a start and an end. It ends once; changes after its end are ignored."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str | None:
        """The W3C `traceparent` with which another process continues the trace; `None` with traces off."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, self.context)
        return carrier.get(_HEADER)

    @property
    def context(self) -> Context:
        return trace.set_span_in_context(self._span, Context())

    def set_name(self, name: str) -> None:
        if self._span.is_recording():
            self._span.update_name(name)

    def set_attributes(self, attributes: Attributes) -> None:
        if self._span.is_recording():
            self._span.set_attributes({name: value for name, value in attributes.items() if value is not None})

    def set_error(self, error_type: str) -> None:
        """Mark the span as failed. `error_type` is the kind of error, never its message: that may quote people."""
        if self._span.is_recording():
            self._span.set_attribute("error.type", error_type)
            self._span.set_status(trace.StatusCode.ERROR)

    def end(self) -> None:
        if self._span.is_recording():
            self._span.end()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Make this span the parent of all spans that code in this block starts, also of spans of other libraries."""
        if self is NO_SPAN:  # with traces off, a current span of the embedding program stays the current one
            yield
            return
        with trace.use_span(self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield

    def stay_current(self) -> None:
        """Do the same for the rest of this task and for the tasks that it starts."""
        if self is not NO_SPAN:
            attach(trace.set_span_in_context(self._span))


NO_SPAN = Span(trace.INVALID_SPAN)


class Tracer:
    """Starts spans. Without a provider traces are off, and every span is `NO_SPAN`.

    `content`: whether spans may hold what people and models wrote. `close` sends the remaining spans.
    """

    def __init__(
        self,
        provider: trace.TracerProvider | None = None,
        content: bool = False,
        *,
        version: str = "0",
        shut_down: Callable[[], None] | None = None,
    ) -> None:
        self.enabled = provider is not None
        self.content = content
        self._provider = provider or trace.NoOpTracerProvider()
        self._tracer = self._provider.get_tracer(SERVICE, version)
        self._shut_down = shut_down

    def begin(
        self,
        name: str,
        kind: str = "internal",
        *,
        parent: Span | str | None = None,
        link: str | None = None,
        attributes: Attributes | None = None,
    ) -> Span:
        """Start a span. `parent` is a span or a `traceparent` ("" starts a new trace); `None` is the current span."""
        if not self.enabled:
            return NO_SPAN
        context = parent.context if isinstance(parent, Span) else None if parent is None else _remote_context(parent)
        linked = trace.get_current_span(_remote_context(link)).get_span_context() if link else None
        links = [trace.Link(linked)] if linked is not None and linked.is_valid else None
        known = {name: value for name, value in (attributes or {}).items() if value is not None}
        return Span(self._tracer.start_span(name, context, _SPAN_KINDS[kind], known, links))

    def install(self) -> None:
        """Make this the provider of the process, so that spans of other code, such as a tool, are exported too."""
        trace.set_tracer_provider(self._provider)

    def close(self, timeout_s: float = FLUSH_MAX_S) -> None:
        """Send the remaining spans, but wait no longer than this: a collector that hangs must not keep the process."""
        if self._shut_down is None:
            return
        closing = threading.Thread(target=self._shut_down, name="magent2-trace-flush", daemon=True)
        closing.start()
        closing.join(timeout_s)
        if closing.is_alive():
            log.warning("not all traces were sent before the process ended", extra={"waited_s": timeout_s})


NO_TRACER = Tracer()


def _remote_context(traceparent: str) -> Context:
    """The context that a `traceparent` names; an empty one if the text is malformed, because clients send it."""
    return _propagator.extract({_HEADER: traceparent}, Context())


def start_tracing(settings: Settings) -> Tracer:
    """Make the tracer that the settings ask for.

    If traces are requested and cannot be had, one log line says why and traces are off.
    """
    if settings.traces is None:
        return NO_TRACER
    problem = _settings_problem(settings)
    if problem is not None:
        log.warning(problem[0], extra=problem[1])
        return NO_TRACER
    try:
        from magent2.telemetry.otel_sdk import open_tracer

        return open_tracer(settings.traces, settings.trace_content)
    except ImportError as error:
        log.warning(SDK_MISSING, extra={"error": str(error)})
    except ValueError as error:
        log.warning("traces are off: invalid value in an OTEL_* variable", extra={"error": str(error)})
    return NO_TRACER


def _settings_problem(settings: Settings) -> tuple[str, dict[str, str]] | None:
    if settings.traces not in EXPORTERS:
        problem = "traces are off: OTEL_TRACES_EXPORTER must be otlp, console or none"
        return problem, {"value": str(settings.traces)[:40]}
    if settings.traces == "otlp" and settings.trace_protocol not in (None, PROTOCOL):
        problem = f"traces are off: OTEL_EXPORTER_OTLP_PROTOCOL must be {PROTOCOL}; collectors accept it on port 4318"
        return problem, {"value": str(settings.trace_protocol)[:40]}
    return None


@contextmanager
def traced_process(settings: Settings | None = None) -> Iterator[Tracer]:
    """Provide the tracer of a command from start to end. With traces on, log lines also carry their trace id."""
    tracer = start_tracing(settings or Settings.read())
    if not tracer.enabled:
        yield tracer
        return
    tracer.install()
    add_trace_ids_to_logs()
    try:
        yield tracer
    finally:
        tracer.close()


def add_trace_ids_to_logs() -> None:
    """Add the fields `trace_id` and `span_id` to log lines that are written inside a span."""

    def add(record: logging.LogRecord) -> bool:
        found = trace.get_current_span().get_span_context()
        if found.is_valid:
            record.trace_id, record.span_id = f"{found.trace_id:032x}", f"{found.span_id:016x}"
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(add)
