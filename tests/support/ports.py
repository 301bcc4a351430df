"""Ports for servers of tests."""

from __future__ import annotations

import atexit
import os
import random
import socket
from collections.abc import Iterator
from functools import cache
from itertools import cycle, islice

PORTS = range(20_000, 32_000)  # below the ephemeral ports, so that no other program takes one while its server is down
BLOCK = 200  # ports of one test process


def quiet_port() -> int:
    """A port that stays free, also until its server starts, and between its end and the start of the next.

    Each test process has ports of its own and takes them in turn. Ports chosen at random from all would now and then be
    those that another test process has chosen for a server that does not run yet.
    """
    for port in islice(_own_ports(os.getpid()), BLOCK):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError("all ports of this test process are in use")


@cache
def _own_ports(pid: int) -> Iterator[int]:
    """The ports of this process, again and again. A socket at the first of its block keeps other processes away."""
    blocks = range(PORTS.start, PORTS.stop, BLOCK)
    for first in random.SystemRandom().sample(blocks, len(blocks)):
        reservation = socket.socket()
        try:
            reservation.bind(("127.0.0.1", first))
        except OSError:
            reservation.close()
            continue
        atexit.register(reservation.close)
        return cycle(range(first + 1, first + BLOCK))
    raise AssertionError("other processes have reserved all ports for tests")
