"""Request heads that are too large, too many, too slow or not HTTP, sent to a gateway process by raw sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.gateway_process import GatewayProcess, gateway_process

CONNECTIONS = 10
SENT_MAX_BYTES = 16 << 20  # per connection; a gateway without a limit would take all of it
GROWTH_MAX_MIB = 60.0  # generous: ten heads of 64 KiB take less than one
CHUNK = b"x" * 65_536
SMALL_HEADERS = b"".join(b"h%d: v\r\n" % number for number in range(6_000))
HOST = "host: localhost"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with gateway_process(tmp_path_factory.mktemp("heads")) as running:
        yield running


def flood(gateway: GatewayProcess, start: bytes, more: bytes) -> list[tuple[int, str]]:
    """Send endless heads on several connections at once. Return the status and code of each refusal."""
    clients = [gateway.connect() for _ in range(CONNECTIONS)]
    for client in clients:
        client.send(start)
    for _ in range(SENT_MAX_BYTES // len(more)):
        taken = [client.send(more) for client in clients]
        if not any(taken):
            break
    for client in clients:
        client.send(b"\r\n\r\n")
    answers = [client.answer() for client in clients]
    return [(answer.status, answer.code if answer.status >= 400 else "") for answer in answers if answer.head]


@pytest.mark.parametrize(
    ("start", "more"),
    [
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\n", SMALL_HEADERS),
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\nlong: ", CHUNK),
        (b"GET /health HTTP/1.1\r\nhost: localhost\r\n", CHUNK),
    ],
    ids=["many headers", "a long value", "a long name"],
)
def test_endless_heads_are_refused_before_they_take_memory(gateway: GatewayProcess, start: bytes, more: bytes) -> None:
    before = gateway.memory_mib()

    refusals = flood(gateway, start, more)

    assert gateway.memory_mib() - before < GROWTH_MAX_MIB
    assert set(refusals) <= {(431, "head_too_large")}
    assert refusals  # a client that is still sending may see only a closed connection
    assert gateway.health() == 200


def test_a_long_request_target_is_refused(gateway: GatewayProcess) -> None:
    short = gateway.ask(f"GET /health?q={'x' * 20_000} HTTP/1.1\n{HOST}")
    long = gateway.ask(f"GET /health?q={'x' * 40_000} HTTP/1.1\n{HOST}")

    assert short.status == 200
    assert (long.status, long.code) == (414, "target_too_long")


def test_a_head_of_allowed_size_and_number_is_answered(gateway: GatewayProcess) -> None:
    lines = "\n".join(f"h{number}: {'v' * 400}" for number in range(99))
    too_many = "\n".join(f"h{number}: v" for number in range(100))

    assert gateway.ask(f"GET /health HTTP/1.1\n{HOST}\n{lines}").status == 200
    refused = gateway.ask(f"GET /health HTTP/1.1\n{HOST}\n{too_many}")
    assert (refused.status, refused.code) == (431, "head_too_large")


@pytest.mark.parametrize("trailer", [SMALL_HEADERS, b"long: " + CHUNK], ids=["many", "long"])
def test_endless_trailers_are_refused_before_they_take_memory(gateway: GatewayProcess, trailer: bytes) -> None:
    before = gateway.memory_mib()
    start = (
        b"POST /send HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
    )

    flood(gateway, start, trailer)

    assert gateway.memory_mib() - before < GROWTH_MAX_MIB
    assert gateway.health() == 200


def test_trailers_never_become_headers(gateway: GatewayProcess) -> None:
    """A trailer would otherwise pass a proxy that checks headers only."""
    body = b'{"conversation_id":"one","sender":"user:me","recipient":"agent:general","content":"hello"}'
    chunked = b"%x\r\n%b\r\n0\r\nauthorization: Bearer 0123456789abcdefghij\r\n\r\n" % (len(body), body)

    refused = gateway.ask(
        f"POST /send HTTP/1.1\n{HOST}\ncontent-type: application/json\ntransfer-encoding: chunked", chunked
    )

    assert (refused.status, refused.code) == (401, "unauthorized")


def test_thousands_of_pipelined_requests_take_little_memory(gateway: GatewayProcess) -> None:
    before = gateway.memory_mib()
    clients = [gateway.connect() for _ in range(CONNECTIONS)]
    request = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    for client in clients:
        client.send(request * 6_000)
    for client in clients:
        client.read_to_end()

    assert gateway.memory_mib() - before < GROWTH_MAX_MIB
    assert gateway.health() == 200


def test_heads_that_drip_are_ended_by_time_with_a_problem(tmp_path: Path) -> None:
    # A connection without the first byte of a head is closed after the same time, without an answer.
    with gateway_process(tmp_path, headers_max_s=3) as gateway:
        dripping, blank = gateway.connect(), gateway.connect()
        dripping.send(b"GET /health HTTP/1.1\r\nhost: local")
        blank.send(b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n")
        silent = gateway.connect()
        assert blank.answer().status == 200
        blank.send(b"\r\n")  # llhttp skips blank lines, and uvicorn then forgets its own timer

        late = dripping.answer()

        assert (late.status, late.code) == (408, "head_too_slow")
        assert silent.read_to_end() == b""
        assert blank.answer().status in (0, 408)


@pytest.mark.parametrize("nonsense", [b"\0\0\0\0", b"HELLO WORLD\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01"])
def test_what_is_not_http_is_refused_with_a_problem(gateway: GatewayProcess, nonsense: bytes) -> None:
    client = gateway.connect()
    client.send(nonsense)

    answer = client.answer()

    assert (answer.status, answer.code) == (400, "bad_request")


@pytest.mark.parametrize("path", ["/health", "/ready", "/", "/openapi.json"])
def test_head_has_the_headers_of_get_and_no_body(gateway: GatewayProcess, path: str) -> None:
    got = gateway.ask(f"GET {path} HTTP/1.1\n{HOST}")
    client = gateway.connect()
    client.send(f"HEAD {path} HTTP/1.1\r\n{HOST}\r\nconnection: close\r\n\r\n".encode())
    head = client.read_to_end().decode()

    assert head.startswith("HTTP/1.1 200")
    assert head.endswith("\r\n\r\n")
    assert f"content-length: {len(got.body)}\r\n" in head
