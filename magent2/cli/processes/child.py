"""A gateway or a worker under a supervisor: `python -m magent2.cli.processes.child NAME CHANNEL STDERR`.

NAME is for lists of processes. CHANNEL and STDERR are file descriptors: the channel to the supervisor, and the stderr
of the supervisor, which is used if the supervisor dies.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from magent2.background import keep_running
from magent2.bus.connect import connect
from magent2.cli.main import exit_code_of, text_of_error
from magent2.cli.processes.channel import ProcessChannel, ProcessSettings, Report
from magent2.cli.processes.folder import COUNTS_FILE
from magent2.cli.server_process import GatewayResources, reload_on_sighup, reload_team, run_gateway, run_worker
from magent2.errors import Magent2Error
from magent2.gateway.catalogue import Catalogue
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.limits.open_counts import CountsFile
from magent2.loop import on_stop_signal, run_on_loop
from magent2.machine import raise_open_files
from magent2.roster.registry import Registry
from magent2.runner.select import kind_of_team
from magent2.settings import tls_verification
from magent2.telemetry import Metrics, setup_logging
from magent2.telemetry.metrics import RunMetrics
from magent2.telemetry.observation import RunObserver
from magent2.telemetry.stored_metrics import store_metrics, stored_registry
from magent2.telemetry.tracing import Tracer, traced_process
from magent2.tools.builtins import BuiltinTools
from magent2.worker.service import DRAIN_S
from magent2.worker.team_choice import choose_agents

log = logging.getLogger(__name__)

USAGE_COPY_S = 1.0  # between two copies of what only the process knows into its stored metrics
STDERR = 2


def main(arguments: list[str]) -> int:
    """Run the process that the settings on the channel describe. Return its exit code."""
    channel_number, supervisor_stderr = int(arguments[1]), int(arguments[2])
    for number in (channel_number, supervisor_stderr):
        os.set_inheritable(number, False)  # programs that a worker starts must not keep the channel open
    plain = socket.socket(fileno=channel_number)
    try:
        settings = ProcessSettings.receive(plain)
    except EOFError:
        return 0
    setup_logging(settings.log_format, process=settings.name)
    store_metrics(Path(settings.folder), settings.name)
    process = SupervisedProcess(settings, ProcessChannel(plain), supervisor_stderr)
    try:
        (process.run_gateway if settings.kind == "gateway" else process.run_worker)()
    except Magent2Error as error:
        process.channel.report(Report(failure=text_of_error(error, "serve"), code=exit_code_of(error)))
        return exit_code_of(error)
    return 0


@asynccontextmanager
async def copied_usage(copy_usage: Callable[[], None]) -> AsyncIterator[None]:
    """Copy metrics that only this process knows again and again, so that other processes can read them."""

    async def copy_and_pause() -> None:
        copy_usage()
        await asyncio.sleep(USAGE_COPY_S)

    copying = asyncio.create_task(keep_running("copy usage", copy_and_pause), name="magent2-usage")
    try:
        yield
    finally:
        copying.cancel()


class SupervisedProcess:
    """One process of a supervisor, from its settings to its end."""

    def __init__(self, settings: ProcessSettings, channel: ProcessChannel, supervisor_stderr: int) -> None:
        self.channel = channel
        self._settings = settings
        self._supervisor_stderr = supervisor_stderr
        self._stop = asyncio.Event()

    def run_gateway(self) -> None:
        """Serve the listening socket of the supervisor until it is drained."""
        settings = self._settings
        team = choose_agents(
            settings.agents,
            settings.model,
            settings.config_file,
            sdk_agents=settings.sdk_agents,
            without_key="demo",
        )
        builtins = BuiltinTools.read()
        kind = kind_of_team(team.model, team.config, builtins, team.registry.roster)
        resources = GatewayResources.open(settings.listen, settings.bus, self._listener())
        limits = GatewayLimits.of(team.registry.roster.limits)
        folder = Path(settings.folder)
        share = CountsFile(folder / COUNTS_FILE, settings.gateways).share(settings.number - 1)

        metrics = Metrics(exposed=stored_registry(folder))

        async def run(tracer: Tracer) -> None:
            self._follow_supervisor(team.registry)
            async with copied_usage(metrics.copy_usage):
                await run_gateway(
                    resources,
                    None,
                    lambda: self.channel.report(Report(drain_s=limits.drain_s)),
                    self._stop,
                    Catalogue(team.registry, builtins=builtins, kind=kind, folder=team.folder),
                    limits=limits,
                    metrics=metrics,
                    tracer=tracer,
                    share=share,
                )

        with traced_process() as tracer:
            run_on_loop(run(tracer))

    def _listener(self) -> socket.socket:
        # With the protocol, as in `listen` of gateway/server.py: macOS cannot tell it from the descriptor.
        family = socket.AF_INET6 if ":" in self._settings.listen.host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP, self._settings.listener)
        listener.set_inheritable(False)
        listener.setblocking(False)
        return listener

    def run_worker(self) -> None:
        """Serve the agents until the worker is drained."""
        from magent2.runner.model_client import import_model_client  # slow to import, and not needed by gateways
        from magent2.worker.team_selection import choose_team

        settings = self._settings
        tls_verification()  # certificates that cannot be used are an error now, not in the first run
        raise_open_files()
        team = choose_team(
            settings.agents,
            settings.model,
            settings.config_file,
            sdk_agents=settings.sdk_agents,
            without_key="demo",
        )
        import_model_client()
        metrics = RunMetrics()
        ready = Report(drain_s=team.limits.get("run_drain_s", DRAIN_S))

        async def run(tracer: Tracer) -> None:
            self._follow_supervisor(team.registry)
            async with copied_usage(metrics.copy_usage):
                await run_worker(
                    connect(settings.bus),
                    team,
                    observer=RunObserver(metrics, tracer),
                    on_ready=lambda: self.channel.report(ready),
                    stop=self._stop,
                )

        with traced_process() as tracer:
            run_on_loop(run(tracer))

    def _follow_supervisor(self, registry: Registry) -> None:
        """Drain on the supervisor's command, if it dies, and on a signal to this process alone."""
        on_stop_signal(self._stop.set)
        reload_on_sighup(registry)  # of this process alone
        self.channel.follow(self._stop.set, lambda: reload_team(registry), self._drain_without_supervisor)

    def _drain_without_supervisor(self) -> None:
        os.dup2(self._supervisor_stderr, STDERR)  # the pipe has no reader any more
        log.warning("the supervisor has ended; this process drains")
        self._stop.set()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
