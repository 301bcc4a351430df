"""Traces, on or off. Off, the default, costs nothing: nothing of OpenTelemetry is even imported."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from magent2.settings import Settings

if TYPE_CHECKING:
    from magent2.telemetry.otel import Tracer

log = logging.getLogger(__name__)

MISSING = "traces are wanted and OpenTelemetry is not installed; pip install 'magent2-runtime[otel]', going on without"
EXPORTERS = ("otlp", "console")
PROTOCOL = "http/protobuf"


def start_tracing(settings: Settings) -> Tracer | None:
    """What makes spans, if the variables want any. What cannot be had is told in one line, and work goes on."""
    wanted = settings.traces
    if wanted is None:
        return None
    refusal = _refusal(settings)
    if refusal is not None:
        log.warning(refusal[0], extra=refusal[1])
        return None
    try:
        from magent2.telemetry.otel import open_tracer

        return open_tracer(wanted, settings.trace_content)
    except ImportError as error:
        log.warning(MISSING, extra={"error": str(error)})
    except ValueError as error:
        log.warning("traces are off: a variable of OpenTelemetry cannot be used", extra={"error": str(error)})
    return None


def _refusal(settings: Settings) -> tuple[str, dict[str, str]] | None:
    if settings.traces not in EXPORTERS:
        told = "traces are off: OTEL_TRACES_EXPORTER must be otlp, console or none"
        return told, {"value": str(settings.traces)[:40]}
    if settings.traces == "otlp" and settings.trace_protocol not in (None, PROTOCOL):
        told = f"traces are off: OTEL_EXPORTER_OTLP_PROTOCOL must be {PROTOCOL}, which port 4318 of a collector takes"
        return told, {"value": str(settings.trace_protocol)[:40]}
    return None


@contextmanager
def traced_process(settings: Settings | None = None) -> Iterator[Tracer | None]:
    """Traces for a command, from its start to its end: lines of the log then say which trace they belong to."""
    tracer = start_tracing(settings or Settings.read())
    if tracer is None:
        yield None
        return
    tracer.serve_process()
    name_traces_in_logs()
    try:
        yield tracer
    finally:
        tracer.close()


def name_traces_in_logs() -> None:
    """Lines written inside a span name it, and its trace."""
    from magent2.telemetry.otel import current_trace

    def name(record: logging.LogRecord) -> bool:
        found = current_trace()
        if found is not None:
            record.trace_id, record.span_id = found
        return True

    for handler in logging.getLogger().handlers:
        handler.addFilter(name)
