"""The channel between a supervisor and one of its processes: a pair of connected sockets.

The supervisor sends the settings of the process, then commands. The process reports that it is ready, or why it cannot
start. The channel closes when one of the two ends, so each notices the death of the other, whatever killed it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal, TypeAlias

from pydantic import TypeAdapter

from magent2.cli.options import ListenOptions

Kind: TypeAlias = Literal["gateway", "worker"]

DRAIN, RELOAD = b"drain\n", b"reload\n"
LENGTH = struct.Struct(">I")
FAILURE_MAX_CHARS = 4000


@dataclass(frozen=True, slots=True)
class ProcessSettings:
    """What a process under a supervisor is told at its start. The repr hides what may contain a secret.

    `number` counts the processes of one kind from 1. `gateways` is the number of gateways of the address.
    """

    kind: Kind
    number: int
    gateways: int
    folder: str
    listener: int  # the file descriptor of the listening socket
    log_format: str
    agents: tuple[str, ...]
    model: str | None
    config: str | None
    listen: ListenOptions
    bus: str | None = field(repr=False)
    sdk_agents: tuple[str, ...] = ()  # their import paths

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number}"

    @property
    def config_file(self) -> Path | None:
        return None if self.config is None else Path(self.config)

    def encode(self) -> bytes:
        data = json.dumps(asdict(self)).encode()
        return LENGTH.pack(len(data)) + data

    @classmethod
    def receive(cls, channel: socket.socket) -> ProcessSettings:
        """Read the settings from a blocking socket. Raises `EOFError` if the supervisor is gone."""
        (length,) = LENGTH.unpack(_receive(channel, LENGTH.size))
        return TypeAdapter(cls).validate_json(_receive(channel, length))


def _receive(channel: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        part = channel.recv(length - len(data))
        if not part:
            raise EOFError("the supervisor ended before it sent the settings")
        data += part
    return data


@dataclass(frozen=True, slots=True)
class Report:
    """What a process tells its supervisor: that it is ready, or an error that a person has to fix.

    `drain_s` is the time that it takes at most to drain. `code` is its exit code.
    """

    drain_s: float = 0.0
    failure: str = ""
    code: int = 0

    def encode(self) -> bytes:
        return json.dumps({**asdict(self), "failure": self.failure[:FAILURE_MAX_CHARS]}).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Report:
        return TypeAdapter(cls).validate_json(line)


class ProcessChannel:
    """The end of the process, which follows the commands of its supervisor."""

    def __init__(self, plain: socket.socket) -> None:
        self._socket = plain

    def report(self, report: Report) -> None:
        """Tell the supervisor. If it has ended, the report is dropped."""
        try:
            self._socket.sendall(report.encode())
        except (BrokenPipeError, ConnectionResetError):
            return

    def follow(self, on_drain: Callable[[], None], on_reload: Callable[[], None], on_gone: Callable[[], None]) -> None:
        """Call these functions on the running loop: for each command, and when the supervisor has ended."""
        loop = asyncio.get_running_loop()
        self._socket.setblocking(False)
        received = b""

        def read() -> None:
            nonlocal received
            try:
                data = self._socket.recv(1024)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if not data:
                loop.remove_reader(self._socket)
                on_gone()
                return
            received += data
            while b"\n" in received:
                line, _, received = received.partition(b"\n")
                {DRAIN: on_drain, RELOAD: on_reload}[line + b"\n"]()

        loop.add_reader(self._socket, read)
