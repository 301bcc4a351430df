"""The supervisor of `magent2 serve --workers N --gateways N`: one address, one log, one Ctrl-C.

It opens the listening socket once, and all gateways accept connections from it. So connections that wait in its queue
are not lost when a gateway dies: another one accepts them. Processes are new programs, not forks, and each has a
session of its own: Ctrl-C at a terminal reaches the supervisor alone, which drains workers first and gateways then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket, socketpair
from typing import BinaryIO, TypeAlias, cast

from magent2.background import log_error, start_task
from magent2.bus.operations import Info
from magent2.cli.options import ListenOptions, printable_bus_url
from magent2.cli.output import print_data, print_note
from magent2.cli.processes.channel import DRAIN, RELOAD, Kind, ProcessSettings, Report
from magent2.cli.processes.folder import COUNTS_FILE, SharedFolder
from magent2.cli.server_process import AGAIN, GatewayResources, gateway_banner
from magent2.errors import SettingsError
from magent2.gateway.limits.open_counts import CountsFile
from magent2.loop import on_sighup, on_stop_signal, run_on_loop
from magent2.mail.retry_policy import RetryPolicy
from magent2.runner.select import kind_of_team
from magent2.settings import Settings, tls_verification
from magent2.telemetry.stored_metrics import PROCESSES_FILE, ProcessList, forget_gauges
from magent2.tools.builtins import BuiltinTools
from magent2.worker.team_choice import choose_agents

log = logging.getLogger(__name__)

RESTART = RetryPolicy(first_s=0.25, max_s=30.0, jitter=0.5, give_up_after_s=float("inf"))
STEADY_S = 30.0  # a process that was ready for this long has not failed at its start
FIRST_START_S = 60.0  # an error that a process reports this early ends the supervisor, as it would end `serve`
WATCH_S = 1.0  # how often the end of a process is looked for, if its channel stays open
REAP_S = 0.01  # between the end of the channel of a process and its own end
DRAIN_GRACE_S = 15.0  # for a process to end, beyond the time that its limits give it
CHILD_MODULE = "magent2.cli.processes.child"
LINE_MAX_BYTES = 1 << 20  # of the output of a process; a longer line is printed in parts

StartProgram: TypeAlias = Callable[[Sequence[str], Sequence[int], int], "subprocess.Popen[bytes]"]


def start_program(arguments: Sequence[str], files: Sequence[int], stderr: int) -> subprocess.Popen[bytes]:
    """Start a Python module as a new program, in a session of its own, with these file descriptors and no others."""
    # `-m` would let a file of the working folder, such as agents.py, hide a package. It does so only if this program
    # was started with `-m` itself.
    search_path = [] if sys.path[0] == str(Path.cwd()) else ["-P"]
    return subprocess.Popen(  # noqa: S603  a module of this package
        [sys.executable, *search_path, "-m", *arguments],
        stdin=subprocess.DEVNULL,
        stderr=stderr,
        pass_fds=files,
        start_new_session=True,
    )


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The options of `magent2 serve` with several processes."""

    workers: int
    gateways: int
    agents: tuple[str, ...]
    model: str | None
    config: Path | None
    listen: ListenOptions
    bus: str | None = field(repr=False)
    log_format: str = "text"
    sdk_agents: tuple[str, ...] = ()  # their import paths


def serve_processes(options: ServeOptions, start: StartProgram = start_program) -> int:
    """Run gateways and workers until a signal drains them, and return the exit code.

    What only a person can fix (the port, the bus, the agents file, the model) is an error before the first start.
    """
    if printable_bus_url(options.bus).strip().startswith("memory:"):
        raise SettingsError(
            "memory:// is a log in one process; for several name a SQLite file, a Redis or a PostgreSQL server with"
            " --bus,"
            " or leave out --workers and --gateways"
        )
    tls_verification()
    resources = GatewayResources.open(options.listen, options.bus)
    with resources.closed_on_error():
        resources.bus.call(Info())
        resources.bus.close()  # the processes open it themselves
        team = choose_agents(
            options.agents, options.model, options.config, sdk_agents=options.sdk_agents, without_key="demo"
        )
        kind_of_team(team.model, team.config, BuiltinTools.read(), team.registry.roster)
        folder = SharedFolder(Settings.read().data_dir)
    processes = f"{_number(options.gateways, 'gateway')} and {_number(options.workers, 'worker')} under one supervisor"
    banner = gateway_banner(
        resources,
        team.first_agent,
        team.served_names,
        team.model_description,
        processes=processes,
    )
    supervisor = Supervisor(options, resources.listener, folder, start, lambda: print_data(banner))
    try:
        run_on_loop(supervisor.run())
    finally:
        resources.listener.close()
        folder.remove()
    return supervisor.exit_code


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


# --- one process


@dataclass(slots=True)
class Slot:
    """The place of one process, which is filled again after the process has ended."""

    settings: ProcessSettings
    stop: asyncio.Event = field(default_factory=asyncio.Event)  # the process is not started again
    process: subprocess.Popen[bytes] | None = None
    channel: asyncio.StreamWriter | None = None
    starts: int = 0
    failures: int = 0  # in a row
    started_at: float = 0.0
    ready_at: float | None = None
    drain_s: float = 0.0
    failure: Report | None = None

    @property
    def name(self) -> str:
        return self.settings.name

    def command(self, line: bytes) -> None:
        if self.channel is not None:
            self.channel.write(line)

    def drain(self) -> None:
        """Let the process finish its work and end. One that is not ready yet has no work."""
        self.stop.set()
        self.command(DRAIN)
        if self.process is not None and self.ready_at is None:
            self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End the process and the programs that it has started, at once."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)  # it has a session of its own

    def signal(self, number: int) -> None:
        if self.process is not None:
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)

    def next_delay_s(self, now: float, chance: float) -> float:
        """Count a failure and return the time until the next start."""
        was_steady = self.ready_at is not None and now - self.ready_at >= STEADY_S
        self.failures = 1 if was_steady else self.failures + 1
        return RESTART.delay_s(self.failures, chance)

    def fails_first_start(self, now: float) -> bool:
        """Return whether the process has reported an error shortly after its first start."""
        return self.failure is not None and self.starts == 1 and now - self.started_at < FIRST_START_S


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended. On Linux it is not reaped, so its CPU time can still be read."""
    if sys.platform != "linux":
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def exit_text(code: int) -> str:
    """Say how a process ended: `exit code 1` or `SIGKILL`."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


class OutputLines(asyncio.Protocol):
    """Prints what a process writes to stderr, in whole lines that say which process it was."""

    def __init__(self, name: str, log_format: str) -> None:
        self._prefix = f"[{name}] ".encode()
        self._is_json = log_format == "json"
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_MAX_BYTES:
            lines.append(self._rest)
            self._rest = b""
        self._print(lines)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._rest:
            self._print([self._rest])

    def _print(self, lines: Sequence[bytes]) -> None:
        # A line of JSON has the name as a field.
        whole = (line if self._is_json and line.startswith(b"{") else self._prefix + line for line in lines)
        with suppress(OSError, ValueError):  # stderr is closed
            sys.stderr.buffer.write(b"".join(line + b"\n" for line in whole))
            sys.stderr.buffer.flush()


# --- all processes


class Supervisor:
    """Starts the processes, starts those again that end unexpectedly, and drains all of them at the end."""

    def __init__(
        self,
        options: ServeOptions,
        listener: socket,
        folder: SharedFolder,
        start: StartProgram = start_program,
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:
        self.exit_code = 0
        self._folder = folder
        self._start = start
        self._on_ready = on_ready
        self._listener = listener
        self._counts = CountsFile.create(folder.path / COUNTS_FILE, options.gateways)
        self._processes = ProcessList(folder.path / PROCESSES_FILE)
        self._stop = asyncio.Event()
        self._failure: Report | None = None
        self._was_ready = False  # at least one process of each kind
        self._tasks: set[asyncio.Task[None]] = set()
        self._stderr = os.dup(sys.stderr.fileno())  # processes use it if this one dies
        self._slots = [
            Slot(_settings(options, kind, number, folder.path, listener.fileno()))
            for kind, count in _counts(options)
            for number in range(1, count + 1)
        ]

    async def run(self) -> None:
        """Run until a signal, or until a process reports at its first start why it cannot run."""
        on_stop_signal(self._begin_drain, before_exit=self._exit_at_once)
        on_sighup(self._reload)
        self._processes.add("supervisor", os.getpid())
        tasks = {slot.name: self._keep_in_background(slot) for slot in self._slots}
        await self._stop.wait()
        for kind in ("worker", "gateway"):
            await self._drain([(slot, tasks[slot.name]) for slot in self._slots if slot.settings.kind == kind])
        if self._failure is not None:
            print_note(f"magent2: {' '.join(self._failure.failure.split())}")
            self.exit_code = self._failure.code

    def _begin_drain(self) -> None:
        print_note(f"magent2: draining: no new work is started; running work may finish; {AGAIN}")
        self._stop.set()

    def _exit_at_once(self) -> None:
        for slot in self._slots:
            slot.kill()
        self._folder.remove()

    def _reload(self) -> None:
        for slot in self._slots:
            slot.command(RELOAD)

    async def _drain(self, running: Sequence[tuple[Slot, asyncio.Task[None]]]) -> None:
        """Drain the processes of one kind. Those that do not end in time are killed."""
        for slot, _ in running:
            slot.drain()
        tasks = [task for _, task in running]
        limit_s = max(slot.drain_s for slot, _ in running) + DRAIN_GRACE_S
        await asyncio.wait(tasks, timeout=limit_s)
        for slot, task in running:
            if not task.done():
                log.error(
                    "a process did not drain in time and is killed",
                    extra={"process_name": slot.name, "limit_s": limit_s},
                )
                self.exit_code = 1
                slot.kill()
        await asyncio.wait(tasks)

    def _keep_in_background(self, slot: Slot) -> asyncio.Task[None]:
        """Start `_keep`. If it fails, the process is no longer watched, so everything is drained."""

        def ended(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                log_error("the supervisor failed; all processes are drained", error, log, process_name=slot.name)
                self.exit_code = 1
                self._stop.set()

        task = asyncio.create_task(self._keep(slot), name=f"magent2-{slot.name}")
        task.add_done_callback(ended)
        return task

    async def _keep(self, slot: Slot) -> None:
        """Keep one process running until it is drained."""
        while not slot.stop.is_set():
            try:
                code = await self._run_once(slot)
            except OSError as error:  # the system has no process or no file descriptor left
                log_error("cannot start a process", error, log, process_name=slot.name)
                code = 1
            now = time.monotonic()
            if self._failure is not None:
                return  # everything ends because of it, and it is reported once
            if slot.stop.is_set():
                # One that was ended before it was ready had no work.
                if code != 0 and not (code == -signal.SIGTERM and slot.ready_at is None):
                    log.error("a process failed while it was drained", extra=self._facts(slot, code, now))
                    self.exit_code = 1
                return
            if slot.fails_first_start(now):
                self._failure = slot.failure
                self._stop.set()
                return
            delay_s = slot.next_delay_s(now, random.random())  # noqa: S311  not a secret
            facts = {**self._facts(slot, code, now), "failures": slot.failures, "restart_in_s": round(delay_s, 2)}
            log.warning("a process ended unexpectedly; it is started again", extra=facts)
            with suppress(TimeoutError):
                await asyncio.wait_for(slot.stop.wait(), delay_s)

    def _facts(self, slot: Slot, code: int, now: float) -> dict[str, object]:
        facts: dict[str, object] = {"process_name": slot.name, "end": exit_text(code)}
        facts["ran_s"] = round(now - slot.started_at, 1)
        return facts if slot.failure is None else {**facts, "error": slot.failure.failure}

    async def _run_once(self, slot: Slot) -> int:
        """Start the process, follow it to its end, and return its exit code."""
        slot.starts += 1
        slot.started_at = time.monotonic()
        slot.ready_at = slot.failure = None
        process, channel, output = self._start_process(slot)
        slot.process = process
        try:
            lines = OutputLines(slot.name, slot.settings.log_format)
            await asyncio.get_running_loop().connect_read_pipe(lambda: lines, output)
            reader, slot.channel = await asyncio.open_connection(sock=channel)
            slot.channel.write(slot.settings.encode())
            if slot.stop.is_set():  # since it was started
                slot.drain()
            await self._follow(slot, process, reader)
        except BaseException:
            slot.kill()  # it would no longer be watched
            raise
        finally:
            if slot.channel is not None:
                slot.channel.close()
            slot.channel = slot.process = None
            code = self._reap(slot, process)
        return code

    def _reap(self, slot: Slot, process: subprocess.Popen[bytes]) -> int:
        """Remove what a process that has ended has left, and return its exit code."""
        # Before it is reaped: gateways then read its CPU time either there or here, never in neither place.
        self._processes.remove(slot.name)
        forget_gauges(self._folder.path, slot.name)
        code = process.wait()
        if slot.settings.kind == "gateway":
            self._counts.clear(slot.settings.number - 1)
        return code

    def _start_process(self, slot: Slot) -> tuple[subprocess.Popen[bytes], socket, BinaryIO]:
        """Start a process. Return it, our end of its channel, and what it writes to stderr."""
        ours, theirs = socketpair()
        output, their_output = os.pipe()
        try:
            files = [theirs.fileno(), self._stderr]
            arguments = [CHILD_MODULE, slot.name, *map(str, files)]
            files += [self._listener.fileno()] if slot.settings.kind == "gateway" else []
            process = self._start(arguments, files, their_output)
        except BaseException:
            ours.close()
            os.close(output)
            raise
        finally:
            theirs.close()
            os.close(their_output)
        self._processes.add(slot.name, process.pid)
        return process, ours, cast("BinaryIO", os.fdopen(output, "rb", 0))

    async def _follow(self, slot: Slot, process: subprocess.Popen[bytes], reader: asyncio.StreamReader) -> None:
        """Take the reports of a process until it has ended."""
        reports = start_task(self._take_reports(slot, reader), f"magent2-{slot.name}-reports", self._tasks)
        while not has_ended(process):
            if reports.done():
                await asyncio.sleep(REAP_S)
            else:
                await asyncio.wait([reports], timeout=WATCH_S)
        await asyncio.wait([reports], timeout=WATCH_S)  # what it reported last
        reports.cancel()

    async def _take_reports(self, slot: Slot, reader: asyncio.StreamReader) -> None:
        with suppress(ConnectionResetError):  # the process ended with commands unread
            while (line := await reader.readline()).endswith(b"\n"):
                report = Report.decode(line)
                if report.failure:
                    slot.failure = report
                else:
                    slot.ready_at, slot.drain_s = time.monotonic(), report.drain_s
                    self._note_ready(slot)

    def _note_ready(self, slot: Slot) -> None:
        log.info("a process is ready", extra={"process_name": slot.name, "starts": slot.starts})
        ready = {one.settings.kind for one in self._slots if one.ready_at is not None}
        if not self._was_ready and ready == {"gateway", "worker"}:
            self._was_ready = True
            self._on_ready()


def _counts(options: ServeOptions) -> tuple[tuple[Kind, int], ...]:
    return ("gateway", options.gateways), ("worker", options.workers)


def _settings(options: ServeOptions, kind: Kind, number: int, folder: Path, listener: int) -> ProcessSettings:
    return ProcessSettings(
        kind=kind,
        number=number,
        gateways=options.gateways,
        folder=str(folder),
        listener=listener,
        log_format=options.log_format,
        agents=options.agents,
        model=options.model,
        config=None if options.config is None else str(options.config),
        sdk_agents=options.sdk_agents,
        listen=options.listen,
        bus=options.bus,
    )
