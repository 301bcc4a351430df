"""A small OTLP/HTTP receiver on a real socket that records spans as a collector would."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from tests.support.waiting import eventually

PATH = "/v1/traces"
STALL_MAX_S = 60.0  # a test that never ends fails, it does not hang


@dataclass(frozen=True)
class ReceivedSpan:
    """A span as it was received."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    facts: Mapping[str, Any]
    failed: bool
    links: tuple[str, ...]
    resource: Mapping[str, Any]


class OtlpReceiver:
    """Records spans; with `stall` it accepts connections and does not answer before it closes.

    It then answers what waits. An exporter that got no answer would go on trying in its thread, after the test.
    """

    def __init__(self, *, stall: bool = False) -> None:
        self.spans: list[ReceivedSpan] = []
        self.asked = threading.Event()
        self._stall = stall
        self._over = threading.Event()
        self._http = _Server(("127.0.0.1", 0), _Handler)
        self._http.receiver = self
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.01,), name="otlp", daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables of a process that exports its spans to this receiver without delay."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": self.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}

    def take(self, body: bytes) -> None:
        """Record the spans of a request, or with `stall` wait until the receiver closes."""
        self.asked.set()
        if self._stall:
            self._over.wait(STALL_MAX_S)
            return
        request = ExportTraceServiceRequest.FromString(body)
        for group in request.resource_spans:
            about = _facts(group.resource.attributes)
            self.spans += [_seen(span, about) for scope in group.scope_spans for span in scope.spans]

    def one(self, name: str, which: Callable[[ReceivedSpan], bool] = lambda span: True) -> ReceivedSpan:
        """The only span of this name, once it has come."""
        (found,) = eventually(lambda: [span for span in self.spans if span.name == name and which(span)])
        return found

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    receiver: OtlpReceiver
    daemon_threads = False  # `server_close` waits for the requests that are being answered


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        if self.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if self.path != PATH or self.headers["content-type"] != "application/x-protobuf":
            self.send_error(404)
            return
        self.server.receiver.take(body)
        answer = ExportTraceServiceResponse().SerializeToString()
        self.send_response(200)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the standard library's name for it
        """Do not log requests."""


def _seen(span: trace_pb2.Span, resource: Mapping[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        name=span.name,
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        facts=_facts(span.attributes),
        failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        links=tuple(link.span_id.hex() for link in span.links),
        resource=resource,
    )


def _facts(attributes: Any) -> dict[str, Any]:
    found: list[KeyValue] = list(attributes)
    return {item.key: _value(item.value) for item in found}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return None if kind is None else getattr(value, kind)
