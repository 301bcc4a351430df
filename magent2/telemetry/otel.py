"""Spans by OpenTelemetry: the one module that names it. Loaded only where traces are on.

Which exporter, where to, how often and how many is what the usual `OTEL_*` variables say; the library reads them.
Spans wait in a bounded queue, and a thread of their own sends them: when nobody takes them they are dropped.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import metadata
from typing import TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context, attach
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

log = logging.getLogger(__name__)

SERVICE = "magent2"
DISTRIBUTION = "magent2-runtime"
FLUSH_MAX_S = 5.0  # what is left to send when the process ends has so long

Value: TypeAlias = str | int | float | bool | list[str]

_KINDS = {
    "internal": trace.SpanKind.INTERNAL,
    "server": trace.SpanKind.SERVER,
    "client": trace.SpanKind.CLIENT,
    "producer": trace.SpanKind.PRODUCER,
}
_HEADER = "traceparent"
_propagator = TraceContextTextMapPropagator()


class Span:
    """Something that takes time. Ended once; what is said of it later is lost."""

    def __init__(self, span: trace.Span) -> None:
        self._span = span

    @property
    def traceparent(self) -> str:
        """Names this span to whoever goes on with its trace, in another process as well."""
        carrier: dict[str, str] = {}
        _propagator.inject(carrier, self._context)
        return carrier.get(_HEADER, "")

    @property
    def _context(self) -> Context:
        return trace.set_span_in_context(self._span, Context())

    def name(self, name: str) -> None:
        if self._span.is_recording():
            self._span.update_name(name)

    def note(self, facts: Mapping[str, Value | None]) -> None:
        """Attributes; what is not known is left out."""
        if self._span.is_recording():
            self._span.set_attributes({name: value for name, value in facts.items() if value is not None})

    def fail(self, error: str) -> None:
        """It went wrong; `error` is the kind of error, never its words."""
        if self._span.is_recording():
            self._span.set_attribute("error.type", error)
            self._span.set_status(trace.StatusCode.ERROR)

    def end(self) -> None:
        if self._span.is_recording():
            self._span.end()

    @contextmanager
    def current(self) -> Iterator[None]:
        """Spans that code in here makes, ours or its own, are parts of this one."""
        with trace.use_span(self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False):
            yield

    def stay_current(self) -> None:
        """The same for the rest of this task, and for the tasks that it starts."""
        attach(trace.set_span_in_context(self._span))


class Tracer:
    """Makes spans. `content`: whether they may hold what was said."""

    def __init__(self, provider: TracerProvider, content: bool = False) -> None:
        self.content = content
        self._provider = provider
        self._tracer = provider.get_tracer(SERVICE, _version())

    def begin(
        self,
        name: str,
        kind: str = "internal",
        *,
        parent: Span | str | None = None,
        link: str | None = None,
        facts: Mapping[str, Value | None] | None = None,
    ) -> Span:
        """A span that begins now, as part of `parent`: a span, the name of one, or whichever is current."""
        context = parent._context if isinstance(parent, Span) else None if parent is None else _remote(parent)
        linked = trace.get_current_span(_remote(link)).get_span_context() if link else None
        links = [trace.Link(linked)] if linked is not None and linked.is_valid else None
        known = {name: value for name, value in (facts or {}).items() if value is not None}
        return Span(self._tracer.start_span(name, context, _KINDS[kind], known, links))

    def serve_process(self) -> None:
        """Let code of this process that makes spans of its own, in a tool for one, do so with this one."""
        trace.set_tracer_provider(self._provider)

    def close(self, timeout_s: float = FLUSH_MAX_S) -> None:
        """Send what is left, but do not wait longer than this for whoever should take it."""
        closing = threading.Thread(target=self._provider.shutdown, name="magent2-trace-flush", daemon=True)
        closing.start()
        closing.join(timeout_s)
        if closing.is_alive():
            log.warning("not all traces were sent before the end", extra={"waited_s": timeout_s})


def open_tracer(exporter: str, content: bool) -> Tracer:
    """`ValueError` for a variable that cannot be used."""
    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter(exporter)))
    return Tracer(provider, content)


def current_trace() -> tuple[str, str] | None:
    """Trace and span that the calling code is part of, in hexadecimal digits."""
    found = trace.get_current_span().get_span_context()
    return (f"{found.trace_id:032x}", f"{found.span_id:016x}") if found.is_valid else None


def _exporter(name: str) -> SpanExporter:
    if name == "console":
        import sys

        return ConsoleSpanExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _resource() -> Resource:
    """What the variables say of this service, and our name where they give none."""
    found = Resource.create()
    named = {SERVICE_VERSION: _version()}
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        named[SERVICE_NAME] = SERVICE
    return Resource({**found.attributes, **named})


def _version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:  # from a folder of sources
        return "0"


def _remote(traceparent: str) -> Context:
    """A context of that span; an empty one when it is none, as it comes from outside."""
    return _propagator.extract({_HEADER: traceparent}, Context())
