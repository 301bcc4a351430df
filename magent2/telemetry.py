"""Logs and metrics: one line per fact, constant text, data as fields. Ids go into logs, never into labels."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, TextIO

import orjson
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from magent2.settings import LOG_FORMATS, Settings

METRICS_MEDIA_TYPE = CONTENT_TYPE_LATEST
LATENCY_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
QUIET = ("uvicorn.access",)  # requests are counted, not told one by one

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def setup_logging(log_format: str = "text", level: str | None = None, stream: TextIO | None = None) -> None:
    """Send all logs to one place, as text or as lines of JSON; the level is `MAGENT2_LOG_LEVEL` unless told."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if log_format == LOG_FORMATS[1] else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel((level or Settings.read().log_level).upper())
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """What the caller gave as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _PLAIN}


class TextLines(logging.Formatter):
    """`12:03:04 WARNING magent2.bus: waiting for the bus who=worker-1`"""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = super().formatMessage(record)
        fields = "".join(f" {name}={_shown(value)}" for name, value in fields_of(record).items())
        return line.replace("\n", "\\n") + fields


def _shown(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(sign.isspace() for sign in text) else text


class JsonLines(logging.Formatter):
    """One JSON object per line: `at`, `level`, `logger`, `text`, `error` where there is one, and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname,
            "logger": record.name,
            "text": record.getMessage(),
            **fields_of(record),
        }
        if record.exc_info:
            line["trace"] = self.formatException(record.exc_info)
        return orjson.dumps(line, default=str, option=orjson.OPT_NON_STR_KEYS).decode()


class Metrics:
    """The figures of one gateway, in a registry of its own. Labels are never what a client sent."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._children: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._requests = Counter(
            "magent2_requests", "Requests answered", ("route", "method", "status"), registry=self._registry
        )
        self._latency = Histogram(
            "magent2_request_seconds",
            "Time to the head of the answer",
            ("route",),
            buckets=LATENCY_BUCKETS_S,
            registry=self._registry,
        )
        self.streams_open = Gauge("magent2_streams_open", "Streams that are open now", registry=self._registry)
        self.events_sent = Counter("magent2_events_sent", "Events sent to readers of streams", registry=self._registry)
        sends = Counter("magent2_sends", "Messages accepted", ("outcome",), registry=self._registry)
        self.accepted, self.repeated = sends.labels("accepted"), sends.labels("repeated")
        self.cut_off = Counter(
            "magent2_readers_cut_off", "Readers that were too slow for their stream", registry=self._registry
        )
        ProcessCollector(registry=self._registry)

    def answered(self, route: str, method: str, status: int, taken_s: float) -> None:
        """Count a request. Looking a label up costs more than counting, so each is looked up once."""
        key = (route, method, status)
        found = self._children.get(key)
        if found is None:
            counter = self._requests.labels(route, method, str(status))
            found = self._children[key] = (counter, self._latency.labels(route))
        found[0].inc()
        found[1].observe(taken_s)

    def text(self) -> bytes:
        return generate_latest(self._registry)
