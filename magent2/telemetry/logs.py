"""Log output: one line per fact, with a constant text and the data as fields."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Mapping
from typing import TextIO

import orjson

from magent2.failures import MASK, is_secret_name, mask_secrets
from magent2.settings import LOG_FORMATS, Settings
from magent2.terminal import clean_json, clean_text

QUIET_LOGGERS = ("uvicorn.access",)  # requests are counted in metrics instead
# Clients of models: a line for each request and each try. The run that fails is logged once, with the cause.
CLIENT_LOGGERS = ("httpx", "httpx2", "openai")
# The SDK logs these and raises the error, which is then logged with the run.
SDK_LOGGER = "openai.agents"
SDK_REPEATS = ("Error streaming response", "Error getting response")

_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", "color_message"}


def setup_logging(
    log_format: str = "text", level: str | None = None, stream: TextIO | None = None, process: str = ""
) -> None:
    """Write all logs to one stream (stderr by default) as text or as JSON lines.

    The level is `MAGENT2_LOG_LEVEL` unless one is given. `process` is the name of a process under a supervisor, which
    JSON lines have as a field. The supervisor puts it before lines of text.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(process) if log_format == LOG_FORMATS[1] else TextLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel((level or Settings.read().log_level).upper())
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    if not root.isEnabledFor(logging.DEBUG):
        handler.addFilter(
            lambda record: not (record.name == SDK_LOGGER and record.getMessage().startswith(SDK_REPEATS))
        )
        for name in CLIENT_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """The fields that the caller passed as `extra`."""
    return {name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS}


class TextLines(logging.Formatter):
    """Formats lines like `12:03:04 WARNING magent2.bus: waiting for the bus who=worker-1`, with secrets masked.

    Control characters are escaped. The lines of a traceback are indented: otherwise the message of an exception could
    look like a line of the log.
    """

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s", "%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        line = super().formatMessage(record)
        fields = "".join(f" {name}={_quoted(value)}" for name, value in fields_of(record).items())
        return line.replace("\n", "\\n") + fields

    def format(self, record: logging.LogRecord) -> str:
        return clean_text(mask_secrets(super().format(record))).replace("\n", "\n  ")


def _quoted(value: object) -> str:
    text = str(value)
    return repr(text) if not text or any(char.isspace() for char in text) else text


class JsonLines(logging.Formatter):
    """Formats one JSON object per line: `at`, `level`, `logger`, `text`, the fields, and `trace` for exceptions.

    Secrets are masked in every text, before it becomes JSON.
    """

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._fixed: dict[str, object] = {"process_name": process} if process else {}

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "at": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z",
            "level": record.levelname,
            "logger": record.name,
            "text": record.getMessage(),
            **self._fixed,
            **fields_of(record),
        }
        if record.exc_info or record.exc_text:
            line["trace"] = record.exc_text or self.formatException(record.exc_info)  # type: ignore[arg-type]
        shown = orjson.dumps(_masked(line), default=_masked_text, option=orjson.OPT_NON_STR_KEYS)
        return clean_json(shown.decode())


def _masked(value: object) -> object:
    """The value of a field with all its texts masked."""
    if isinstance(value, str):
        return mask_secrets(value)
    if isinstance(value, Mapping):
        return {name: MASK if is_secret_name(name) else _masked(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_masked(inner) for inner in value]
    return value


def _masked_text(value: object) -> str:
    return mask_secrets(str(value))
