"""When traces are on, when they are off, and that neither is anybody's trouble."""

from __future__ import annotations

import logging
import socket
import sys
import threading

import pytest

from magent2.settings import Settings
from magent2.telemetry.tracing import start_tracing
from tests.support.otlp import OtlpReceiver
from tests.support.spans import recorded_spans
from tests.support.waiting import eventually

EXPORTER_THREADS = ("Otel", "magent2-trace-flush")


def settings(**variables: str) -> Settings:
    return Settings.read({"MAGENT2_DATA_DIR": "nowhere", **variables})


@pytest.mark.parametrize(
    ("variables", "wanted"),
    [
        ({}, None),
        ({"OTEL_SERVICE_NAME": "mine"}, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:4318"}, "otlp"),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://host:4318/v1/traces"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, "otlp"),
        ({"OTEL_TRACES_EXPORTER": "console"}, "console"),
        ({"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:4318"}, None),
        ({"OTEL_SDK_DISABLED": "true", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://host:4318"}, None),
    ],
)
def test_the_usual_variables_say_whether_there_are_traces(variables: dict[str, str], wanted: str | None) -> None:
    assert settings(**variables).traces == wanted


@pytest.mark.parametrize(("text", "may"), [("", False), ("false", False), ("true", True), ("SPAN_ONLY", True)])
def test_spans_hold_message_text_only_if_the_settings_allow_it(text: str, may: bool) -> None:
    assert settings(OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=text).trace_content is may


def test_without_the_package_one_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delitem(sys.modules, "magent2.telemetry.otel_sdk", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)

    assert not start_tracing(settings(OTEL_TRACES_EXPORTER="otlp")).enabled

    (line,) = caplog.records
    assert "pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http" in line.getMessage()


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER must be otlp, console or none"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "http/protobuf"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "99999"}, "invalid value"),
    ],
)
def test_a_variable_that_cannot_be_used_turns_traces_off_and_says_so(
    variables: dict[str, str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    assert not start_tracing(settings(**variables)).enabled

    (line,) = [record for record in caplog.records if record.name.startswith("magent2")]
    assert told in line.getMessage()


def test_spans_reach_the_collector_under_the_name_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        tracer = start_tracing(Settings.read())
        assert tracer.enabled

        tracer.begin("something").end()
        tracer.close()

        assert receiver.one("something").resource["service.name"] == "magent2"


def test_the_service_can_be_given_another_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with OtlpReceiver() as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "front-desk")
        tracer = start_tracing(Settings.read())
        assert tracer.enabled

        tracer.begin("something").end()
        tracer.close()

        assert receiver.one("something").resource["service.name"] == "front-desk"


def test_a_collector_that_does_not_answer_does_not_delay_the_exit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with OtlpReceiver(stall=True) as receiver:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
        tracer = start_tracing(Settings.read())
        assert tracer.enabled
        tracer.begin("something").end()

        tracer.close(timeout_s=0.2)

        eventually(receiver.asked.is_set)  # the exporter goes on in its thread
        assert not receiver.spans
        assert "not all traces were sent before the process ended" in caplog.messages
    eventually(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith(EXPORTER_THREADS)])


def test_a_collector_that_is_not_there_is_a_line_in_the_log_and_no_error(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{unheard.getsockname()[1]}")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
        tracer = start_tracing(Settings.read())
        assert tracer.enabled

        tracer.begin("something").end()
        tracer.close()

    assert any(record.levelno >= logging.WARNING for record in caplog.records)


@pytest.mark.parametrize("nonsense", ["", "00-zz-zz-01", "x" * 500, "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_a_trace_context_that_is_none_begins_a_new_trace(nonsense: str) -> None:
    with recorded_spans() as spans:
        spans.tracer.begin("something", parent=nonsense, link=nonsense).end()

        span = spans.one("something")
        assert span.parent is None
        assert not span.links


def test_a_span_is_ended_once_and_what_comes_later_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    with recorded_spans() as spans:
        span = spans.tracer.begin("something")
        span.end()

        span.set_attributes({"late": 1})
        span.set_error("late")
        span.end()

        assert spans.names == ["something"]
        assert not caplog.records
