"""The receivers that tests of webhooks use."""

from __future__ import annotations

import socket

from tests.support.fake_receivers import webhook_server

HALF = b"POST /hook HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf"


def test_a_post_whose_client_dies_before_it_has_sent_all_has_not_arrived() -> None:
    with webhook_server() as receiver, socket.create_connection(("127.0.0.1", receiver.port)) as client:
        client.sendall(HALF)
        client.shutdown(socket.SHUT_WR)

        assert client.recv(1) == b""
    assert receiver.posts == []
