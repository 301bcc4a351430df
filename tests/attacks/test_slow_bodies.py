"""Bodies that drip, connections that fill every slot, and responses that are not read, on a gateway process."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.support.gateway_process import GatewayProcess, RawClient, gateway_process
from tests.support.waiting import eventually

REFUSED = b"POST /send HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 1000\r\n\r\n{"
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
SLOTS = 50


def is_closed(client: RawClient) -> bool:
    """Whether the other end has closed the connection; drips one byte to find out."""
    return not client.send(b" ")


def test_a_body_that_drips_behind_a_401_is_ended(tmp_path: Path) -> None:
    with gateway_process(tmp_path) as gateway:
        client = gateway.connect()
        client.send(REFUSED)

        answer = client.answer()

        assert (answer.status, answer.code) == (401, "unauthorized")
        assert "connection: close" in answer.head
        eventually(lambda: is_closed(client))


def test_a_client_that_is_still_sending_gets_the_early_answer(tmp_path: Path) -> None:
    # The gateway discards the rest for two seconds. A client on a busy machine may need longer.
    with gateway_process(tmp_path, "tests.support.lingering_gateway") as gateway:
        client = gateway.connect()
        client.plain.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16_384)  # so that most of the body is sent late
        head = REFUSED.replace(b"1000", b"900000")[:-1]

        is_sent = client.send(head + b"x" * 900_000)

        assert is_sent  # a connection that is closed at once would be reset
        assert client.answer().status == 401


def test_dripping_bodies_do_not_keep_probes_and_users_out(tmp_path: Path) -> None:
    with gateway_process(tmp_path, connections_max=SLOTS) as gateway:
        clients = [gateway.connect() for _ in range(SLOTS)]
        for client in clients:
            client.send(REFUSED)

        assert gateway.health() == 200
        eventually(lambda: all(is_closed(client) for client in clients))
        assert gateway.post("/send", b"{}").status == 422


def test_probes_are_answered_while_all_connections_are_in_use(tmp_path: Path) -> None:
    with gateway_process(tmp_path, connections_max=SLOTS) as gateway:
        fill(gateway, SLOTS)
        silent = [gateway.connect() for _ in range(40)]  # more than the connections that are kept for probes

        assert [gateway.health() for _ in range(5)] == [200] * 5
        ready = gateway.ask("GET /ready HTTP/1.1\nhost: localhost")
        refused = gateway.post("/send", b"{}")

        assert (ready.status, "connection: close" in ready.head) == (200, True)
        assert (refused.status, refused.code) == (503, "too_many_connections")
        assert [client.answer().code for client in silent] == ["too_many_connections"] * 40


def test_one_address_cannot_take_all_connections(tmp_path: Path) -> None:
    with gateway_process(tmp_path, connections_max=SLOTS, connections_per_address_max=10) as gateway:
        held = fill(gateway, 10)
        refused = gateway.post("/send", b"{}")
        other = RawClient(socket.create_connection(("127.0.0.1", gateway.port), source_address=("127.0.0.2", 0)))
        gateway.clients.append(other)
        other.send(b"POST /send HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n")

        assert (refused.status, refused.code) == (503, "too_many_connections")
        assert "your address" in refused.body.decode()
        assert other.answer().status == 401
        held[0].close()
        eventually(lambda: gateway.post("/send", b"{}").status == 422)


def fill(gateway: GatewayProcess, count: int) -> list[RawClient]:
    """Take connections with valid requests, and keep them open."""
    clients = [gateway.connect() for _ in range(count)]
    for client in clients:
        client.send(HEALTH)
        assert client.answer().status == 200
    return clients


def test_a_body_behind_an_open_stream_is_ended_by_time(tmp_path: Path) -> None:
    # The time begins with the request, so the stream must open before it is over.
    with gateway_process(tmp_path, body_max_s=3) as gateway:
        client = gateway.connect()
        client.send(
            b"GET /stream/one HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer 0123456789abcdefghij\r\n"
            b"content-length: 100000\r\n\r\n{"
        )
        assert client.answer().status == 200

        eventually(lambda: is_closed(client))


def test_a_body_that_is_awaited_is_ended_by_time_with_a_problem(tmp_path: Path) -> None:
    with gateway_process(tmp_path, body_max_s=0.3) as gateway:
        client = gateway.connect()
        client.send(REFUSED.replace(b"\r\n\r\n", b"\r\nauthorization: Bearer 0123456789abcdefghij\r\n\r\n"))

        answer = client.answer()

        assert (answer.status, answer.code) == (408, "body_too_slow")
        eventually(lambda: is_closed(client))


def test_a_client_that_does_not_read_its_responses_is_disconnected(tmp_path: Path) -> None:
    with gateway_process(tmp_path, send_max_s=0.3) as gateway:
        plain = socket.socket()
        plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        plain.connect(("127.0.0.1", gateway.port))
        client = RawClient(plain)
        gateway.clients.append(client)
        eventually(lambda: gateway.holds(client))  # before the first request: afterwards it holds it only for a while
        # More than the buffers of both ends hold: the responses must wait in the gateway.
        client.send(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 30)

        eventually(lambda: not gateway.holds(client))
