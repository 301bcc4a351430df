"""Which gateway accepts a connection from a socket that several share."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from magent2.gateway import shared_listener
from magent2.gateway.limits.open_counts import LimitShare, OpenCounts
from magent2.gateway.server import listen
from magent2.gateway.shared_listener import CONNECTIONS_AHEAD_MAX, SharedListener
from tests.support.waiting import until


class AllCounts(OpenCounts):
    """The counts of a gateway beside others that have `others` open."""

    others = 0

    @property
    def total(self) -> int:
        return self.own + self.others


class Counted(asyncio.Protocol):
    def __init__(self, counts: OpenCounts) -> None:
        self._counts = counts

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._counts.add(None)
        transport.close()


class Exhausted(socket.socket):
    """A listening socket of a process that has no file descriptor left, once."""

    has_failed = False

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.has_failed:
            self.has_failed = True
            raise OSError(errno.EMFILE, "too many open files")
        return super().accept()


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with listen("127.0.0.1", 0) as made:
        yield made


def gateway(listener: socket.socket, own: int, others: int) -> tuple[SharedListener, AllCounts]:
    counts = AllCounts()
    counts.own, counts.others = own, others
    return SharedListener(listener, LimitShare(2, counts), lambda: Counted(counts)), counts


def connect(listener: socket.socket, count: int) -> list[socket.socket]:
    return [socket.create_connection(listener.getsockname()) for _ in range(count)]


async def test_a_gateway_accepts_while_it_has_its_share(listener: socket.socket) -> None:
    accepting, counts = gateway(listener, own=CONNECTIONS_AHEAD_MAX, others=0)
    clients = connect(listener, 3)

    await until(lambda: counts.own == CONNECTIONS_AHEAD_MAX + 3)

    accepting.close()
    for client in clients:
        client.close()


async def test_a_gateway_that_is_ahead_leaves_a_connection_to_the_others(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_listener, "OTHERS_FIRST_S", 3600.0)
    ahead, counts = gateway(listener, own=10, others=4)
    same = listener.dup()
    same.setblocking(False)
    behind, other_counts = gateway(same, own=4, others=10)
    clients = connect(listener, 3)

    await until(lambda: other_counts.own == 7)

    assert counts.own == 10
    ahead.close()
    behind.close()
    same.close()
    for client in clients:
        client.close()


async def test_a_gateway_that_is_ahead_takes_what_the_others_leave(listener: socket.socket) -> None:
    accepting, counts = gateway(listener, own=100, others=0)
    clients = connect(listener, 10)

    await until(lambda: counts.own == 110)

    accepting.close()
    for client in clients:
        client.close()


async def test_a_gateway_that_was_closed_accepts_nothing(listener: socket.socket) -> None:
    accepting, counts = gateway(listener, own=0, others=0)
    accepting.close()
    accepting.close()
    (client,) = connect(listener, 1)
    second, second_counts = gateway(listener, own=0, others=0)

    await until(lambda: second_counts.own == 1)

    assert counts.own == 0
    second.close()
    client.close()


async def test_an_error_of_accept_is_logged_and_it_is_tried_again(
    listener: socket.socket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(shared_listener, "ACCEPT_RETRY_S", 0.01)
    exhausted = Exhausted(listener.family, listener.type, listener.proto, listener.detach())
    accepting, counts = gateway(exhausted, own=0, others=0)
    (client,) = connect(exhausted, 1)

    await until(lambda: counts.own == 1)

    assert [record.message for record in caplog.records] == ["cannot accept a connection"]
    accepting.close()
    client.close()
    exhausted.close()
