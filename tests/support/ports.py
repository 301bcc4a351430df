"""Ports for servers of tests."""

from __future__ import annotations

import random
import socket

PORTS = range(20_000, 32_000)  # below the ephemeral ports, so that no other program takes one while its server is down


def quiet_port() -> int:
    """A port that stays free, also between the end of a server and the start of the next."""
    chance = random.SystemRandom()
    while True:
        port = chance.choice(PORTS)
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
