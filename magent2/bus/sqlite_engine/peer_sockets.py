"""Datagrams by which a process tells the other processes of a log that it has committed.

Each process that has watches binds a Unix datagram socket in the folder `{log}.sockets`. A process that has committed
sends an empty datagram to every other socket there. A datagram says only that something has changed. What has changed
is on the log, so lost, repeated and late datagrams do no harm.

The sockets also tell which processes were killed. A process that ends in order removes its socket before it closes it,
so a socket that is there and refuses connections is one whose process has ended without doing so.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

from magent2.private_files import file_mode, make_subfolder

log = logging.getLogger(__name__)

FOLDER_SUFFIX = ".sockets"
ADDRESS_MAX_BYTES = 100  # of a socket; the operating systems allow 103 to 107
# The time of a folder changes in steps of a few milliseconds. A listing that was made in the same step as a change may
# lack it, so a listing is reused only if the folder had not changed for this long.
FOLDER_SETTLED_NS = 100_000_000


class SocketFolder:
    """The folder with the sockets of all processes of one log."""

    def __init__(self, log_path: Path) -> None:
        self._path = log_path.with_name(log_path.name + FOLDER_SUFFIX)
        self.name = ""  # of the socket of this process, which is also the name of the process in the log
        self._own: set[str] = set()  # with those that are being closed
        self._sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._sender.setblocking(False)
        self._handle = -1  # of the folder, where its path is too long for the address of a socket
        self._listed_ns = -1
        self._others: list[str] = []

    def bind(self) -> CommitSocket:
        """Bind a socket that receives the datagrams of the other processes. Raises `OSError` if that is impossible."""
        make_subfolder(self._path)
        bound = CommitSocket(self, f"{os.getpid()}-{secrets.token_hex(4)}")
        self.name = bound.name
        return bound

    def wake_others(self) -> None:
        """Send a datagram to the other processes. Those that cannot be reached find the commit in their next poll."""
        for name in self._list_others():
            self.send(name)

    def _list_others(self) -> list[str]:
        """Return the names of the other sockets. As long as the folder has not changed, it is not listed again."""
        try:
            changed_ns = self._path.stat().st_mtime_ns
            if changed_ns != self._listed_ns:
                is_settled = time.time_ns() - changed_ns > FOLDER_SETTLED_NS
                self._others = [entry.name for entry in self._path.iterdir() if entry.name not in self._own]
                self._listed_ns = changed_ns if is_settled else -1
        except OSError:  # no process has watched this log yet, or none can bind a socket
            return []
        return self._others

    def send(self, name: str) -> None:
        try:
            self._sender.sendto(b"", self.address(name))
        except BlockingIOError:
            return  # its queue is full, so it will wake up anyway
        except OSError as error:
            log.debug("a process was not told of a commit", extra={"socket": name, "error": str(error)})

    def list_killed(self) -> list[str]:
        """Return the names of other processes that were killed. Their sockets stay until `remove` is called."""
        return [name for name in self._list_others() if self._refuses(name)]

    def _refuses(self, name: str) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(self.address(name))
            except ConnectionRefusedError:
                return True
            except OSError as error:
                log.debug("a process cannot be reached", extra={"socket": name, "error": str(error)})
        return False

    def add_own(self, name: str) -> None:
        self._own.add(name)

    def remove(self, name: str) -> None:
        with suppress(OSError):  # another process was faster, or the folder was removed together with the log
            (self._path / name).unlink()
        self._own.discard(name)
        if name == self.name:
            self.name = ""

    def mode(self) -> int:
        return file_mode(self._path)

    def address(self, name: str) -> str:
        address = os.fspath(self._path / name)
        if len(os.fsencode(address)) <= ADDRESS_MAX_BYTES:
            return address
        if sys.platform != "linux":
            raise OSError(f"the path is too long for a socket: {address}")
        if self._handle < 0:
            self._handle = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return f"/proc/self/fd/{self._handle}/{name}"

    def close(self) -> None:
        self._sender.close()
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1


class CommitSocket:
    """The socket on which one thread of this process waits for commits of other processes."""

    def __init__(self, folder: SocketFolder, name: str) -> None:
        self.name = name
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        folder.add_own(name)  # before it is bound: this process must not list it among the others
        try:
            address = folder.address(name)
            self._socket.bind(address)
            os.chmod(address, folder.mode())  # noqa: PTH101  the address may be below /proc
        except BaseException:
            self.close()
            raise

    def wait(self, timeout_s: float) -> bool:
        """Wait for a datagram, and take all that have arrived; return whether there was one."""
        self._socket.settimeout(timeout_s)
        try:
            self._socket.recv(1)
            self._socket.setblocking(False)
            while True:
                self._socket.recv(1)
        except TimeoutError:
            return False
        except BlockingIOError:
            return True

    def wake(self) -> None:
        """End the `wait` of another thread."""
        self._folder.send(self.name)

    def close(self) -> None:
        self._folder.remove(self.name)  # first: a socket that is there and closed is that of a killed process
        self._socket.close()
