"""A PgBouncer in transaction mode for tests, in front of a PostgreSQL server."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from typing import Self

import pytest

from tests.support.ports import quiet_port
from tests.support.postgres_server import ADMIN, ROLE, PostgresServer, skip_if_left_out
from tests.support.waiting import eventually

PLACES = f"{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"
MISSING = "pgbouncer is not on PATH; install it with `apt-get install pgbouncer` to run the tests with a pooler"
STOP_DEADLINE_S = 10.0
LOG = "pgbouncer.log"

# Two connections to the server: transactions of more clients than that change places on them.
CONFIGURATION = """
[databases]
* = host=127.0.0.1 port={server_port}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {folder}/users.txt
pool_mode = transaction
default_pool_size = 2
max_client_conn = 200
"""


class PgBouncer:
    """A pooler process. Its files are in the folder of the server, and it runs as the server's user."""

    def __init__(self, server: PostgresServer) -> None:
        skip_if_left_out()
        program = shutil.which("pgbouncer", path=PLACES)
        if program is None:
            pytest.skip(MISSING)
        self._program = program
        self._server = server
        self.port = quiet_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql://{ROLE}@127.0.0.1:{self.port}/{ROLE}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        folder = self._server.folder
        (folder / "users.txt").write_text(f'"{ROLE}" ""\n"{ADMIN}" ""\n')
        settings = CONFIGURATION.format(server_port=self._server.port, port=self.port, folder=folder)
        (folder / "pgbouncer.ini").write_text(settings)
        with (folder / LOG).open("ab") as output:
            self._process = self._server.popen([self._program, str(folder / "pgbouncer.ini")], output)
        eventually(self._answers)

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail(f"pgbouncer ended at once:\n{(self._server.folder / LOG).read_text()}")
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        """Stop immediately; open connections are cut."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(STOP_DEADLINE_S)
            self._process = None
