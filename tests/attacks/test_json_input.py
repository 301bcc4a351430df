"""JSON that is not JSON, or that the log cannot store as it is, sent to a gateway process by raw sockets."""

from __future__ import annotations

from collections.abc import Iterator

import orjson
import pytest

from tests.support.gateway_process import Answer, GatewayProcess, gateway_process

ENVELOPE = b'{"conversation_id":"one","recipient":"agent:general","content":"hello","metadata":{"value":%b}}'
# What Python's and pydantic's parsers take as numbers, and JSON or the log does not have.
NOT_JSON = {
    "NaN": b"NaN",
    "infinity": b"-Infinity",
    "an overflow": b"1e400",
    "a negative overflow": b"[-1.5E+999]",
    "an overflow of digits": b"1" * 400 + b".5",
    "a lone surrogate": b'"\\ud800"',
    "a lone surrogate as a name": b'{"\\udfff":1}',
    "a byte that is not UTF-8": b'"\xff"',
}
HUGE_INT = b"1" + b"0" * 30


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway_process(tmp_path_factory.mktemp("json")) as running:
        assert running.post("/api/sdk/session/create", b'{"session_id":"s"}').status == 200
        yield running


def refused(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.code


@pytest.mark.parametrize("value", NOT_JSON.values(), ids=NOT_JSON.keys())
@pytest.mark.parametrize("sender", [b"", b'"sender":"user:me",'])
def test_an_envelope_with_a_value_that_json_does_not_have_is_refused(
    gateway: GatewayProcess, value: bytes, sender: bytes
) -> None:
    body = (ENVELOPE % value).replace(b"{", b"{" + sender, 1)

    assert refused(gateway.post("/send", body)) == (400, "bad_json")


@pytest.mark.parametrize("value", NOT_JSON.values(), ids=NOT_JSON.keys())
def test_a_body_of_the_api_with_a_value_that_json_does_not_have_is_refused(
    gateway: GatewayProcess, value: bytes
) -> None:
    bodies = {
        "/api/tools/execute": b'{"session_id":"s","tool":"weather","args":{"value":%b}}' % value,
        "/api/connectors": b'{"id":"hook","kind":"webhook","config":{"value":%b}}' % value,
        "/api/sdk/session/create": b'{"session_id":"s","unknown":%b}' % value,
    }

    assert {path: refused(gateway.post(path, body)) for path, body in bodies.items()} == dict.fromkeys(
        bodies, (400, "bad_json")
    )


def test_a_whole_number_beyond_64_bits_is_refused_by_name(gateway: GatewayProcess) -> None:
    sent = gateway.post("/send", ENVELOPE % HUGE_INT)
    called = gateway.post("/api/tools/execute", b'{"session_id":"s","tool":"weather","args":{"value":%b}}' % HUGE_INT)

    assert (sent.status, "64" in sent.body.decode()) == (422, True)
    assert called.status in (403, 422)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e400"])
def test_a_number_in_a_query_is_finite(gateway: GatewayProcess, value: str) -> None:
    answer = gateway.post(f"/api/sdk/session/s/receipts/m?wait_s={value}", b"", method="GET")

    assert refused(answer) == (422, "bad_parameter")


def test_numbers_that_json_has_are_stored_as_they_are(gateway: GatewayProcess) -> None:
    value = b'[1e308,-0.5,9223372036854775807,"NaN","1e400","\\ud83d\\ude00"]'
    body = (ENVELOPE % value).replace(b'"one"', b'"kept"').replace(b"{", b'{"id":"m1","sender":"user:me",', 1)

    first, again = gateway.post("/send", body), gateway.post("/send", body)

    assert (first.status, first.body) == (200, again.body)
    stored = gateway.post("/api/sdk/session/kept/events?format=record", b"", method="GET")
    assert orjson.loads(stored.body)["events"][0]["text"] == "hello"


def test_of_two_values_with_one_name_the_last_counts(gateway: GatewayProcess) -> None:
    body = b'{"conversation_id":"a","conversation_id":"last","recipient":"agent:general","content":"hello"}'

    assert orjson.loads(gateway.post("/send", body).body)["topic"] == "chat:last"
