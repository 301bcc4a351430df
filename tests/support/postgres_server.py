"""A PostgreSQL server for tests, with a database cluster and a port of its own."""

from __future__ import annotations

import os
import pwd
import select
import shutil
import signal
import subprocess
import tempfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Self

import psycopg
import pytest
from psycopg import sql

from tests.support.forked_processes import ROOT
from tests.support.ports import quiet_port
from tests.support.waiting import eventually

START_DEADLINE_S = 60.0
STOP_DEADLINE_S = 30.0
DROP_DEADLINE_S = 30.0
LOG_SHOWN_CHARACTERS = 8000
MISSING = (
    "found no PostgreSQL 15 or newer; `scripts/ensure postgres` installs it or explains how, "
    "SKIP=postgres leaves these tests out"
)

ADMIN = "postgres"  # the superuser, and the database that every cluster has
ROLE = "magent2"  # an ordinary role and its database: the engine must need no more

# Small and loopback only. There is no Unix socket: its path may be too long, or in a folder of another user.
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "16MB",
    "dynamic_shared_memory_type": "mmap",  # files in the cluster: what a killed server leaves is removed with it
    "wal_retrieve_retry_interval": "100ms",  # a standby looks for its primary this often
    "log_line_prefix": "%m [%p] %a ",
}
# For tests that never crash the machine or the server.
FAST = {"fsync": "off", "full_page_writes": "off"}

TABLES = ("topics", "records", "old_ids", "inboxes", "lanes", "turns", "mail", "workers", "blobs", "blob_refs")
EMPTY_LOG = (
    "BEGIN;"
    + "".join(f"DELETE FROM {table};" for table in TABLES)
    + "UPDATE clock SET ahead_ms = 0, last_ms = 0; UPDATE scrub SET requests = 0, asked_ms = 0, rest_until_ms = 0;"
    " ALTER SEQUENCE ready_back RESTART; ALTER SEQUENCE ready_front RESTART;"
    " UPDATE meta SET value = gen_random_uuid()::text WHERE key = 'log_id'; COMMIT"
)


def skip_if_left_out() -> None:
    if "postgres" in os.environ.get("SKIP", "").split(","):
        pytest.skip("SKIP=postgres leaves the PostgreSQL tests out")


def find_postgres() -> Path:
    """Return the folder with the programs of PostgreSQL; skip the test if they are left out on purpose."""
    skip_if_left_out()
    found = subprocess.run([ROOT / "scripts" / "postgres-bin"], stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode:
        pytest.fail(MISSING)
    return Path(found.stdout.strip())


class PostgresServer:
    """A cluster and its server process. Without `settings`, an acknowledged commit survives a crash of the machine.

    PostgreSQL refuses to run as root. If the tests do, the server runs as `postgres` or `nobody`.
    At the end of a `with` block it is removed, also if it did not start.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.programs = find_postgres()
        self.port = quiet_port()
        self.settings = {**SETTINGS, **(settings or {}), "port": str(self.port)}
        self._user = _server_user()
        self.folder = _new_folder(self._user)
        self.data = self.folder / "data"
        self.log = self.folder / "postgres.log"
        self.spare_schemas: list[str] = []  # with empty logs
        self._cleaner: psycopg.Connection | None = None  # empties logs; a connection for each would cost 15 ms
        self._process: subprocess.Popen[bytes] | None = None
        self._alive = -1  # the end of a pipe: readable when the server and all of its children have ended

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def url(self) -> str:
        """The address of an empty database, for a role that owns it and may do nothing else."""
        return f"postgresql://{ROLE}@127.0.0.1:{self.port}/{ROLE}"

    @property
    def admin_url(self) -> str:
        """The address for the superuser."""
        return f"postgresql://{ADMIN}@127.0.0.1:{self.port}/{ROLE}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "start the server first"
        return self._process.pid

    def create(self) -> None:
        """Make the cluster. `start` does it if there is none."""
        # Text is ordered as people expect it, not by byte, because that is how databases are usually made: an engine
        # that needs the order of bytes must say so.
        order = ("--encoding=UTF8", "--locale=C", "--locale-provider=icu", "--icu-locale=en")
        self._run("initdb", "-D", str(self.data), "-U", ADMIN, "--auth=trust", "--no-sync", *order)
        statements = f"CREATE ROLE {ROLE} LOGIN\nCREATE DATABASE {ROLE} OWNER {ROLE}\n"
        self._run("postgres", "--single", "-D", str(self.data), "-c", "fsync=off", ADMIN, given=statements)

    def create_standby_of(self, primary: PostgresServer) -> None:
        """Copy the cluster of a running server. Once started, this server follows the other one until `promote`."""
        slot = f"standby_{self.port}"  # the primary keeps what the standby has not received
        source = f"host=127.0.0.1 port={primary.port} user={ADMIN}"
        options = ("--write-recovery-conf", "--create-slot", "--slot", slot, "--checkpoint=fast", "--no-sync")
        self._run("pg_basebackup", "-D", str(self.data), "-d", source, *options)

    def use_tls(self, certificate: Path, key: Path) -> None:
        """Offer TLS from the next start on. The server reads only a key of its own user."""
        for setting, source in (("ssl_cert_file", certificate), ("ssl_key_file", key)):
            copy = Path(shutil.copyfile(source, self.folder / setting))
            copy.chmod(0o600)
            if self._user is not None:
                shutil.chown(copy, self._user)
            self.settings[setting] = str(copy)
        self.settings["ssl"] = "on"

    def start(self) -> None:
        """Start the server and wait until it accepts connections, also after a crash."""
        assert self._process is None, "the server runs already"
        if not self.data.exists():
            self.create()
        options = [option for name, value in self.settings.items() for option in ("-c", f"{name}={value}")]
        self._alive, held = os.pipe()
        with self.log.open("ab") as output:
            command = [str(self.programs / "postgres"), "-D", str(self.data), *options]
            self._process = self.popen(command, output, pass_fds=(held,))  # every child inherits it
        os.close(held)
        try:
            eventually(self._accepts, START_DEADLINE_S)
        except pytest.fail.Exception as failure:
            self.kill()
            pytest.fail(f"{failure}\n{self.tail()}")

    def _accepts(self) -> bool:
        """Whether the lock file says so. It may still be the file of an earlier process, which was killed."""
        assert self._process is not None
        if self._process.poll() is not None:
            pytest.fail("postgres ended at once:")
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except FileNotFoundError:
            return False
        return len(lines) > 7 and lines[0] == str(self.pid) and lines[7].strip() == "ready"

    def stop(self) -> None:
        """Stop the server after a checkpoint; open connections are cut."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Kill the server and all of its children with SIGKILL."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGSTOP)  # it starts no child and reacts to no death from here on
            for child in _children(self.pid):
                os.kill(child, signal.SIGKILL)
        self._end(signal.SIGKILL)

    def suspend(self) -> None:
        """Stop all processes of the server with SIGSTOP: connections stay open, and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)  # first: from here on no child is started, and none that has ended is gone
        for child in _children(self.pid):
            os.kill(child, signal.SIGSTOP)

    def suspend_wal_writer(self) -> None:
        """Stop the process that writes what no commit waits for. Only processes with commits write from here on."""
        with psycopg.connect(self.admin_url) as connection:
            rows = connection.execute("SELECT pid FROM pg_stat_activity WHERE backend_type = 'walwriter'")
            ((pid,),) = rows.fetchall()
        os.kill(pid, signal.SIGSTOP)

    def restart(self) -> None:
        """Start the server again on the same data and port. It recovers if it was killed."""
        self.stop()
        self.start()

    def promote(self) -> None:
        """Make a standby a primary, and wait until it accepts writes."""
        self._run("pg_ctl", "promote", "-D", str(self.data), "-w", "-t", f"{START_DEADLINE_S:.0f}")

    def _end(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        if self._cleaner is not None:
            self._cleaner.close()
            self._cleaner = None
        self._process.send_signal(number)
        self._process.wait(STOP_DEADLINE_S)
        # Children may outlive the server for a moment, and a new server refuses to start beside them.
        ended, _, _ = select.select([self._alive], [], [], STOP_DEADLINE_S)
        os.close(self._alive)
        self._process = None
        assert ended, f"children of the server still run after {STOP_DEADLINE_S:g} s:\n{self.tail()}"

    def remove(self) -> None:
        """Stop the server without a checkpoint and remove its cluster; nothing happens the second time.

        Its log is printed, which pytest shows if the test has failed.
        """
        self._end(signal.SIGQUIT)
        if self.folder.exists():
            print(self.tail())
            self._remove_shared_memory()
            shutil.rmtree(self.folder)

    def clear(self) -> None:
        """Remove the cluster of a server that does not run, to make another one."""
        self._remove_shared_memory()
        shutil.rmtree(self.data)

    def _remove_shared_memory(self) -> None:
        """Remove the segment that marks a cluster as in use. A killed server leaves it, and its number, in its file."""
        lock = self.data / "postmaster.pid"
        for line in lock.read_text().splitlines()[6:7] if lock.exists() else ():
            subprocess.run(["ipcrm", "-m", line.split()[1]], check=True)

    def empty_log(self, schema: str) -> None:
        """Make a log empty, as a new one is. A schema in which a test has changed more than rows is dropped."""
        connection = self._connect_to_log(schema)
        try:
            connection.execute(EMPTY_LOG)
        except psycopg.Error:
            connection.rollback()
            self.drop_schema(schema)
        else:
            self.spare_schemas.append(schema)

    def _connect_to_log(self, schema: str) -> psycopg.Connection:
        """Return the connection that empties logs, with this schema. It is opened again if a test has ended it."""
        choose = sql.SQL("SET search_path = {}; SET lock_timeout = '5s'").format(sql.Identifier(schema))
        if self._cleaner is not None:
            try:
                self._cleaner.execute(choose)
            except psycopg.OperationalError:
                self._cleaner.close()
            else:
                return self._cleaner
        self._cleaner = psycopg.connect(self.url, autocommit=True)
        self._cleaner.execute(choose)
        return self._cleaner

    def drop_schema(self, name: str) -> None:
        """Drop a schema and all that is in it, if it exists."""
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(sql.SQL("SET lock_timeout = {}").format(f"{DROP_DEADLINE_S:g}s"))
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))

    def tail(self, since_bytes: int = 0) -> str:
        """The end of the server's log, or of what was added to it since it had this size."""
        if not self.log.exists():
            return ""
        return self.log.read_bytes()[since_bytes:].decode(errors="replace")[-LOG_SHOWN_CHARACTERS:]

    def popen(self, command: list[str], output: IO[bytes], pass_fds: tuple[int, ...] = ()) -> subprocess.Popen[bytes]:
        """Start a process as the server's user in the server's folder."""
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=self.folder,
            env=_environment(),
            pass_fds=pass_fds,
            user=self._user,
            group=_group(self._user),
            extra_groups=None if self._user is None else [],
        )

    def _run(self, program: str, *options: str, given: str = "") -> None:
        """Run a program of PostgreSQL as the server's user; fail the test with its output if it fails."""
        done = subprocess.run(
            [self.programs / program, *options],
            input=given,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=_environment(),
            check=False,
            user=self._user,
            group=_group(self._user),
            extra_groups=None if self._user is None else [],
        )
        if done.returncode:
            pytest.fail(f"{program} failed:\n{done.stdout}\n{self.tail()}")


class PostgresPair:
    """A primary and a synchronous standby: a commit is acknowledged when both have it on disk.

    Settings that a test gives are those of both servers. At the end of a `with` block both are removed.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        self.primary = PostgresServer({**(settings or {}), "synchronous_standby_names": "*"})
        self.standby = PostgresServer(settings)  # promoted, it waits for no standby of its own

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    @property
    def url(self) -> str:
        """The address of both servers, for clients that look for the one that accepts writes."""
        hosts = ",".join(f"127.0.0.1:{server.port}" for server in (self.primary, self.standby))
        return f"postgresql://{ROLE}@{hosts}/{ROLE}?target_session_attrs=read-write"

    def start(self) -> None:
        """Start both, and wait until the standby is the synchronous one."""
        self.primary.start()
        self.standby.create_standby_of(self.primary)
        self.standby.start()
        self.await_synchronous()

    def await_synchronous(self) -> None:
        """Wait until the standby is the synchronous one."""
        with psycopg.connect(self.primary.admin_url, autocommit=True) as connection:
            states = "SELECT sync_state FROM pg_stat_replication WHERE state = 'streaming'"
            eventually(lambda: connection.execute(states).fetchall() == [("sync",)], START_DEADLINE_S)

    def fail_over(self) -> None:
        """Kill the primary and promote the standby. The old primary stays down, as its data may differ from now on."""
        self.primary.kill()
        self.standby.promote()

    def rejoin(self) -> None:
        """After `fail_over`, make the killed server a synchronous standby of the promoted one."""
        self.primary, self.standby = self.standby, self.primary
        self.standby.clear()
        self.standby.settings.pop("synchronous_standby_names", None)
        self.standby.create_standby_of(self.primary)
        with (self.standby.data / "postgresql.auto.conf").open("a") as settings:
            settings.write("synchronous_standby_names = ''\n")  # promoted, it waits for no standby of its own
        self.standby.start()
        with psycopg.connect(self.primary.admin_url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
            connection.execute("SELECT pg_reload_conf()")
        self.await_synchronous()

    def remove(self) -> None:
        self.standby.remove()
        self.primary.remove()


class Schemas:
    """Addresses of empty logs on a shared server for one test, each in a schema of its own.

    Creating the tables of a log takes longer than most tests, so a log is emptied after the test and used again.
    """

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._logged_bytes = server.log.stat().st_size
        self._names: list[str] = []

    def new_name(self) -> str:
        name = self._server.spare_schemas.pop() if self._server.spare_schemas else f"t{uuid.uuid4().hex}"
        self._names.append(name)
        return name

    def new_url(self) -> str:
        return f"{self._server.url}?prefix={self.new_name()}"

    def give_back(self) -> None:
        """Empty the logs for the next test, and print what the server has logged; pytest shows it after a failure."""
        print(self._server.tail(self._logged_bytes))
        while self._names:
            self._server.empty_log(self._names.pop())


def _server_user() -> str | None:
    """Return the user of the server, or None for the user of the tests."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"


def _group(user: str | None) -> int | None:
    return None if user is None else pwd.getpwnam(user).pw_gid


def _new_folder(user: str | None) -> Path:
    """Make a folder for the server's user. pytest's folders are closed to all users but that of the tests."""
    if user is None:
        return Path(tempfile.mkdtemp(prefix="postgres-"))
    places = [Path(place) for place in (tempfile.gettempdir(), "/dev/shm", "/tmp") if Path(place).is_dir()]
    open_places = [place for place in places if all(part.stat().st_mode & 0o001 for part in (place, *place.parents))]
    assert open_places, f"user {user} can reach none of {places}; set TMPDIR to a folder that it can reach"
    folder = Path(tempfile.mkdtemp(prefix="postgres-", dir=open_places[0]))
    shutil.chown(folder, user, _group(user))
    return folder


def _environment() -> dict[str, str]:
    """Variables without those that change what the programs do, and with messages in English."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_"))}
    return {**kept, "LC_ALL": "C"}


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    if listed.exists():
        return [int(child) for child in listed.read_text().split()]
    table = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], stdout=subprocess.PIPE, text=True, check=True).stdout
    pairs = (line.split() for line in table.splitlines())
    return [int(child) for child, parent in pairs if int(parent) == pid]
