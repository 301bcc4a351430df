"""Trace export with the OpenTelemetry SDK. Loaded only where traces are on; the extra `otel` installs it.

The SDK reads the usual `OTEL_*` variables for the exporter's address, batch sizes and sampling. Spans wait in a bounded
queue that a background thread sends; if the collector does not accept them, they are dropped.
"""

from __future__ import annotations

import sys
from importlib import metadata

from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter, SpanExporter

from magent2.telemetry.tracing import SERVICE, Tracer

DISTRIBUTION = "magent2-runtime"


def open_tracer(exporter: str, content: bool) -> Tracer:
    """Make a tracer that exports. Raises `ValueError` for an invalid `OTEL_*` variable."""
    version = _version()
    provider = TracerProvider(resource=_resource(version), shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_exporter(exporter)))
    return Tracer(provider, content, version=version, shut_down=provider.shutdown)


def _exporter(name: str) -> SpanExporter:
    if name == "console":
        return ConsoleSpanExporter(out=sys.stderr)
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    return OTLPSpanExporter()


def _resource(version: str) -> Resource:
    """The resource that the `OTEL_*` variables describe; the service name defaults to `magent2`."""
    found = Resource.create()
    named = {SERVICE_VERSION: version}
    if str(found.attributes.get(SERVICE_NAME, "")).startswith("unknown_service"):
        named[SERVICE_NAME] = SERVICE
    return Resource({**found.attributes, **named})


def _version() -> str:
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:  # run from a source folder
        return "0"
