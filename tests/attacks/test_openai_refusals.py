"""Refusals of requests to `/v1` before a route sees them. OpenAI's clients read their own shape of errors only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

from tests.support.gateway_process import TOKEN, Answer, GatewayProcess, gateway_process
from tests.support.openai_shapes import check_error

HEAD = f"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n".encode()
MANY_HEADERS = b"".join(b"h%d: v\r\n" % number for number in range(200))


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    # A head has the usual time: on a busy machine, this process may need more than a second to send one.
    with gateway_process(tmp_path_factory.mktemp("refusals"), body_max_s=1) as running:
        yield running


def refusal(answer: Answer) -> tuple[int, str]:
    """The status and the code of an error in OpenAI's shape."""
    assert "content-type: application/json" in answer.head.lower(), answer.head
    body = orjson.loads(answer.body)
    check_error(body)
    return answer.status, body["error"]["code"]


@pytest.mark.parametrize(
    ("sent", "status", "code"),
    [
        (b"GET /v1/models?q=" + b"x" * 40_000 + b" HTTP/1.1\r\n", 414, "target_too_long"),
        (HEAD + MANY_HEADERS + b"\r\n", 431, "head_too_large"),
        (HEAD + b"long: " + b"x" * 70_000, 431, "head_too_large"),
        (HEAD + b"no colon\r\n\r\n", 400, "bad_request"),
        (HEAD + b"content-type: application/json\r\ncontent-length: 9\r\n\r\n{", 408, "body_too_slow"),
        (HEAD + b"content-type: application/json\r\ncontent-length: 999999999\r\n\r\n{", 413, "too_large"),
    ],
    ids=["target", "headers", "head", "not http", "slow body", "large body"],
)
def test_requests_to_v1_are_refused_in_the_shape_of_openai(
    gateway: GatewayProcess, sent: bytes, status: int, code: str
) -> None:
    client = gateway.connect()
    client.send(sent)

    assert refusal(client.answer()) == (status, code)


def test_a_slow_head_is_refused_in_the_shape_of_openai(tmp_path: Path) -> None:
    with gateway_process(tmp_path, headers_max_s=3) as gateway:
        client = gateway.connect()
        client.send(HEAD + b"long: ")

        assert refusal(client.answer()) == (408, "head_too_slow")


def test_connections_beyond_the_limit_are_refused_in_the_shape_of_openai(tmp_path: Path) -> None:
    with gateway_process(tmp_path, connections_max=1) as gateway:
        gateway.connect().send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        assert gateway.clients[0].answer().status == 200

        refused = gateway.post("/v1/responses", b"{}")
        elsewhere = gateway.post("/send", b"{}")

        assert refusal(refused) == (503, "too_many_connections")
        assert elsewhere.code == "too_many_connections"  # a problem document
