"""Spans of this process, recorded by the in-memory exporter of OpenTelemetry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from magent2.telemetry.tracing import Tracer


class Spans:
    """A tracer and its finished spans."""

    def __init__(self, content: bool = False) -> None:
        self._kept = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._kept))
        self.tracer = Tracer(self.provider, content)

    @property
    def all(self) -> tuple[ReadableSpan, ...]:
        return self._kept.get_finished_spans()

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.all]

    def of(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.all if span.name == name]

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.of(name)
        return found


@contextmanager
def recorded_spans(content: bool = False) -> Iterator[Spans]:
    spans = Spans(content)
    yield spans
    spans.provider.shutdown()


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id
