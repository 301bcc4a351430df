from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import orjson
import pytest

from magent2.background import log_error
from magent2.telemetry import setup_logging
from magent2.telemetry.logs import CLIENT_LOGGERS, QUIET_LOGGERS
from magent2.telemetry.tracing import add_trace_ids_to_logs
from tests.support.spans import recorded_spans


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    for name in (*QUIET_LOGGERS, *CLIENT_LOGGERS):
        logging.getLogger(name).setLevel(logging.NOTSET)


def told(log_format: str, **extra: object) -> str:
    place = io.StringIO()
    setup_logging(log_format, "info", place)
    logging.getLogger("magent2.test").warning("a fact", extra=extra)
    return place.getvalue()


def test_text_shows_the_fields_after_the_fact_on_one_line() -> None:
    line = told("text", topic="stream:one", error="two\nlines", empty="")

    assert line.endswith("WARNING magent2.test: a fact topic=stream:one error='two\\nlines' empty=''\n")
    assert line.count("\n") == 1


def test_json_is_one_object_per_line_with_the_fields() -> None:
    line = orjson.loads(told("json", topic="stream:one", odd=object()))

    assert (line["level"], line["logger"], line["text"], line["topic"]) == (
        "WARNING",
        "magent2.test",
        "a fact",
        "stream:one",
    )
    assert line["at"].endswith("Z")
    assert line["odd"].startswith("<object")


def test_json_keeps_the_trace_of_an_error_in_its_line() -> None:
    place = io.StringIO()
    setup_logging("json", "info", place)
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("magent2.test").exception("it failed")

    assert "ValueError: broken" in orjson.loads(place.getvalue())["trace"]


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_line_says_which_trace_it_belongs_to(log_format: str) -> None:
    place = io.StringIO()
    setup_logging(log_format, "info", place)
    add_trace_ids_to_logs()
    with recorded_spans() as spans:
        span = spans.tracer.begin("something")
        with span.current():
            logging.getLogger("magent2.test").warning("inside")
        logging.getLogger("magent2.test").warning("outside")
        span.end()

    inside, outside = place.getvalue().splitlines()
    assert span.traceparent is not None
    assert span.traceparent.split("-")[1] in inside
    assert span.traceparent.split("-")[2] in inside
    assert "trace_id" not in outside


def failure_lines(level: str) -> list[str]:
    place = io.StringIO()
    setup_logging("text", level, place)
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        log_error("it failed", error, logging.getLogger("magent2.test"), run_id="run-1")
    return place.getvalue().splitlines()


def test_a_failure_is_one_line_with_its_cause() -> None:
    (line,) = failure_lines("info")

    assert line.endswith("ERROR magent2.test: it failed run_id=run-1 error='ValueError: two\\nlines'")


def test_the_traceback_of_a_failure_is_logged_at_debug() -> None:
    assert any("Traceback" in line for line in failure_lines("debug"))
