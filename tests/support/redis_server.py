"""Redis servers for tests: one on a port and in a folder of its own, or a primary with replicas and Sentinels."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.support.ports import quiet_port
from tests.support.waiting import eventually

START_DEADLINE_S = 30.0
STOP_DEADLINE_S = 10.0
KEEP_ALL = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
GROUP_OPTIONS = (*KEEP_ALL, "--repl-diskless-sync-delay", "0")
PRIMARY_NAME = "log"
SENTINELS, QUORUM = 3, 2
DOWN_AFTER_MS = 1000  # silence after which a Sentinel considers a server down
FAILOVER_TIMEOUT_MS = 2000  # a failover that failed is tried again after twice this time
FAILOVER_DEADLINE_S = 60.0
MISSING = (
    "redis-server is not on PATH; install it with `apt-get install redis-server`, or leave these tests out: SKIP=redis"
)


def skip_if_left_out() -> None:
    if "redis" in os.environ.get("SKIP", "").split(","):
        pytest.skip("SKIP=redis leaves the Redis tests out")


def redis_url(port: int) -> str:
    return f"redis://127.0.0.1:{port}/0"


class RedisServer:
    """A server process. `options` are command line options; without any, nothing is persisted."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.port = quiet_port()
        self.options = options or ("--save", "", "--appendonly", "no")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return redis_url(self.port)

    @property
    def pid(self) -> int:
        assert self._process is not None, "start the server first"
        return self._process.pid

    def start(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.fail(MISSING)
        with (self.folder / "redis.log").open("ab") as output:
            self._process = subprocess.Popen([program, *self.arguments()], stdout=output, stderr=output)
        eventually(self._answers, START_DEADLINE_S)

    def arguments(self) -> list[str]:
        return ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), *self.options]

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail(f"redis-server ended at once:\n{(self.folder / 'redis.log').read_text()}")
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def ask(self, *command: str | int) -> Any:
        """Send a command and return the reply as the server gives it."""
        with redis.Redis(port=self.port, decode_responses=True, protocol=2) as client:
            client.response_callbacks.clear()
            return client.execute_command(*command)

    def kill(self) -> None:
        """SIGKILL, as a crash does, and wait until the process is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(STOP_DEADLINE_S)
            self._process = None

    def suspend(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_DEADLINE_S)
            self._process = None


class Sentinel(RedisServer):
    """A Sentinel that watches a primary."""

    def __init__(self, folder: Path, primary_port: int, *settings: str) -> None:
        super().__init__(folder, "--sentinel")
        self._file = folder / "sentinel.conf"
        self._file.write_text(
            f"sentinel monitor {PRIMARY_NAME} 127.0.0.1 {primary_port} {QUORUM}\n"
            f"sentinel down-after-milliseconds {PRIMARY_NAME} {DOWN_AFTER_MS}\n"
            f"sentinel failover-timeout {PRIMARY_NAME} {FAILOVER_TIMEOUT_MS}\n" + "\n".join(settings)
        )

    def arguments(self) -> list[str]:
        return [str(self._file), *super().arguments()]

    def state(self) -> dict[str, str]:
        found: list[str] = self.ask("SENTINEL", "MASTER", PRIMARY_NAME)
        return dict(zip(found[::2], found[1::2], strict=True))


class RedisGroup:
    """A primary with replicas, each of which syncs every write to its file, and Sentinels."""

    def __init__(self, folder: Path, replicas: int, sentinels: int = SENTINELS) -> None:
        self.servers = [RedisServer(_folder(folder / f"server-{n}"), *GROUP_OPTIONS) for n in range(1 + replicas)]
        self.primary = self.servers[0]
        self.sentinels = [Sentinel(_folder(folder / f"sentinel-{n}"), self.primary.port) for n in range(sentinels)]

    @property
    def url(self) -> str:
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{PRIMARY_NAME}/0"

    @property
    def replicas(self) -> list[RedisServer]:
        return [server for server in self.servers if server is not self.primary]

    def start(self) -> None:
        self.primary.start()
        for replica in self.replicas:
            self.start_replica(replica)
        for sentinel in self.sentinels:
            sentinel.start()
        self.await_all()
        wanted = (str(len(self.replicas)), str(len(self.sentinels) - 1))

        def know_each_other() -> bool:
            states = [sentinel.state() for sentinel in self.sentinels]
            return all((state["num-slaves"], state["num-other-sentinels"]) == wanted for state in states)

        eventually(know_each_other)

    def start_replica(self, server: RedisServer) -> None:
        server.options = (*GROUP_OPTIONS, "--replicaof", "127.0.0.1", str(self.primary.port))
        server.start()

    def await_replicas(self) -> None:
        """Wait until the replicas have everything that the primary has."""

        def offsets() -> set[str]:
            facts = [server.ask("INFO", "replication") for server in self.servers]
            return {text.partition("master_repl_offset:")[2].partition("\r")[0] for text in facts}

        eventually(lambda: len(offsets()) == 1)

    def cut_off(self, replica: RedisServer) -> None:
        """Suspend a replica, and end its link: it gets nothing more, also not from the buffers of the machine."""
        replica.suspend()
        self.primary.ask("CLIENT", "KILL", "TYPE", "replica")

    def promote(self, replica: RedisServer) -> None:
        """Make a replica the primary without Sentinels."""
        replica.ask("REPLICAOF", "NO", "ONE")
        self.primary = replica

    def await_promotion(self) -> None:
        """Wait until the Sentinels have made another server the primary."""

        def promoted() -> RedisServer | None:
            found = self._agreed_primary()
            return None if found is self.primary else found

        self.primary = eventually(promoted, FAILOVER_DEADLINE_S) or self.primary

    def _agreed_primary(self) -> RedisServer | None:
        found = [sentinel.ask("SENTINEL", "GET-MASTER-ADDR-BY-NAME", PRIMARY_NAME) for sentinel in self.sentinels]
        ports = {int(port) for _, port in found} or {self.primary.port}
        return next((server for server in self.servers if ports == {server.port}), None)

    def await_all(self) -> None:
        """Wait until all other servers replicate the primary on which the Sentinels agree.

        On a busy machine they may have replaced a primary that was only slow.
        """

        def linked() -> bool:
            self.primary = self._agreed_primary() or self.primary
            states = [server.ask("INFO", "replication") for server in self.servers]
            links = [f"master_port:{self.primary.port}\r\nmaster_link_status:up" in state for state in states]
            return sum(links) == len(self.replicas)

        eventually(linked, FAILOVER_DEADLINE_S)

    def stop(self) -> None:
        for server in (*self.sentinels, *self.servers):
            server.kill()  # a replica that has just got all data refuses SIGTERM until it has written them to its file


def _folder(path: Path) -> Path:
    path.mkdir()
    return path
