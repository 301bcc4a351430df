"""Logs: one line per fact, constant text, data as fields."""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, TextIO

import orjson

from magent2.settings import LOG_FORMATS, Settings

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
