"""A gateway, a worker, or both on one bus and one event loop, from start-up to a drained exit."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from magent2.background import start_task
from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.operations import Info
from magent2.cli.options import ListenOptions, printable_bus_url
from magent2.cli.output import print_data, print_note
from magent2.connectors.relay import Relay, running_relay
from magent2.errors import SettingsError
from magent2.gateway.access.auth import Access
from magent2.gateway.catalogue import Catalogue
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.limits.open_counts import LimitShare
from magent2.gateway.proxy import ProxySettings
from magent2.gateway.routes.page import HOW_TO_GET_IT, page_is_built
from magent2.gateway.server import Gateway, choose_access, choose_proxy_settings, listen
from magent2.loop import on_sighup, on_stop_signal, run_on_loop
from magent2.machine import raise_open_files
from magent2.roster.agents_file import default_roster
from magent2.roster.registry import EnvironmentOverride, Registry, reload_now
from magent2.runner.select import describe_agents, roster_of_code
from magent2.settings import Settings, tls_verification
from magent2.telemetry import Metrics
from magent2.telemetry.tracing import NO_TRACER, Tracer, traced_process
from magent2.worker.service import WorkerService

if TYPE_CHECKING:
    from magent2.telemetry.observation import RunObserver
    from magent2.worker.team_selection import ServedTeam

DEFAULT_URL = "http://127.0.0.1:8700"
AGAIN = "press Ctrl-C again to exit immediately"


# --- what a gateway opens before it serves


@dataclass(frozen=True, slots=True)
class GatewayResources:
    """The listening socket, the bus and the access rules of a gateway that is about to serve."""

    host: str
    listener: socket.socket
    access: Access
    proxy: ProxySettings
    bus: Engine
    bus_url: str  # without its password
    token_given: bool

    @classmethod
    def open(
        cls, options: ListenOptions, bus_url: str | None, listener: socket.socket | None = None
    ) -> GatewayResources:
        """Open everything. A `listener` that is given is already listening, and is closed with the rest."""
        settings = Settings.read()
        proxy = choose_proxy_settings(settings, options.root_path, options.trusted_proxies)
        access = choose_access(settings, options.host, options.token, options.allowed_hosts)
        if listener is None:
            try:
                listener = listen(options.host, options.port)
            except SettingsError as error:
                hint = "choose another port with --port, or any free one with --port 0"
                raise SettingsError(f"{error}; {hint}") from error
        try:
            bus = connect(bus_url, settings)
        except BaseException:
            listener.close()
            raise
        token_given = (options.token or settings.token) is not None
        return cls(options.host, listener, access, proxy, bus, printable_bus_url(bus_url), token_given)

    @property
    def url(self) -> str:
        """Where a client on this machine reaches the gateway."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104  compared, not bound
        port = self.listener.getsockname()[1]
        origin = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return origin + self.proxy.root_path

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """Close the socket and the bus if what is done meanwhile fails."""
        try:
            yield
        except BaseException:
            self.listener.close()
            self.bus.close()
            raise


# --- what a person reads at the start


def command_name() -> str:
    """The command that runs this program again."""
    program = sys.argv[0]
    if shutil.which("magent2"):
        return "magent2"
    return "python -m magent2.cli" if program.endswith("__main__.py") else shlex.quote(program)


def gateway_banner(
    resources: GatewayResources,
    first: str,
    agents: Sequence[str] = (),
    model: str = "",
    worker: str = "",
    processes: str = "",
) -> str:
    """The address of the gateway, its agents and bus, and two commands that send a first message.

    The address contains the token only at a terminal. Other output is often kept: by journald, by a container engine.
    `worker` are the options of a worker that serves the agents, for a gateway that does not. `processes` says how many
    there are, if not one.
    """
    magent2 = command_name()
    url = f" --url {resources.url}" if resources.url != DEFAULT_URL else ""
    token = "YOUR_TOKEN" if resources.token_given else f"$({magent2} token show)"
    message = {"conversation_id": "c1", "sender": "user:me", "recipient": f"agent:{first}", "content": "hello"}
    if sys.stdout.isatty():
        lines = [f"gateway  {resources.url}/#token={resources.access.token}"]
    else:
        where = "that of --token or MAGENT2_TOKEN" if resources.token_given else f"{magent2} token show"
        lines = [f"gateway  {resources.url}/", f"token    {where}"]
    lines += [f"agents   {', '.join(agents)}", f"model    {model}"] if agents else []
    lines += [f"bus      {resources.bus_url}"]
    lines += [f"run      {processes}"] if processes else []
    lines += [] if page_is_built() else [f"page     a plain one, because the whole one was not built: {HOW_TO_GET_IT}"]
    lines += [""]
    lines += [] if agents else ["serve its agents on this bus:", f"  {magent2} worker{worker}", ""]
    lines += [
        "send the first message:",
        f"  {magent2} send {shlex.quote(first)} 'hello' --wait{url}",
        f"  curl -H \"Authorization: Bearer {token}\" -H 'Content-Type: application/json' \\",
        f"    -d {shlex.quote(json.dumps(message))} {resources.url}/send",
    ]
    return "\n".join(lines)


def worker_banner(team: ServedTeam, bus_url: str, metrics_url: str) -> str:
    lines = [f"agents   {', '.join(team.names)}", f"model    {team.model_description}", f"bus      {bus_url}"]
    lines += [f"metrics  {metrics_url}"] if metrics_url else []
    return "\n".join(lines)


# --- the three kinds of process


def serve(
    agents: Sequence[str],
    model: str | None,
    config: Path | None,
    sdk_agents: Sequence[str],
    options: ListenOptions,
    bus_url: str | None,
) -> None:
    """Run a gateway and a worker until a signal ends them."""
    from magent2.telemetry.metrics import RunMetrics
    from magent2.telemetry.observation import RunObserver

    tls_verification()  # certificates that cannot be used are an error now, not in the first run
    # The port and the bus are opened first, so that an error in them shows before the SDK is imported, which is slow.
    resources = GatewayResources.open(options, bus_url)
    with resources.closed_on_error():
        from magent2.runner.model_client import import_model_client
        from magent2.worker.team_selection import choose_team

        team = choose_team(agents, model, config, sdk_agents=sdk_agents, without_key="demo")
        import_model_client()
    runner, metrics = team.runner, Metrics()

    async def run(tracer: Tracer) -> None:
        observer = RunObserver(RunMetrics(metrics.registry), tracer)
        use_tool_call_executor()
        try:
            reload_on_sighup(team.registry)
            await run_gateway(
                resources,
                lambda: team.service(resources.bus, observer=observer),
                lambda: print_data(gateway_banner(resources, team.first_agent, team.names, team.model_description)),
                stop_event_on_signals("draining: no new work is started; running work may finish"),
                Catalogue(team.registry, builtins=runner.builtins, kind=runner.kind, folder=team.folder),
                limits=GatewayLimits.of(team.limits),
                metrics=metrics,
                tracer=tracer,
                create_relay=team.relay,
            )
        finally:
            await runner.aclose()

    with traced_process() as tracer:
        run_on_loop(run(tracer))


def serve_gateway(config: Path | None, sdk_agents: Sequence[str], options: ListenOptions, bus_url: str | None) -> None:
    """Run a gateway until a signal ends it."""
    registry, folder = gateway_registry(config, sdk_agents)
    resources = GatewayResources.open(options, bus_url)
    catalogue = Catalogue(registry, folder=folder)
    worker = "" if config is None else f" --config {shlex.quote(str(config))}"
    worker += "".join(f" --agents {shlex.quote(path)}" for path in sdk_agents)

    async def run(tracer: Tracer) -> None:
        reload_on_sighup(registry)
        await run_gateway(
            resources,
            None,
            lambda: print_data(gateway_banner(resources, registry.roster.scenario().root, worker=worker)),
            stop_event_on_signals("gateway is shutting down: open streams are closed"),
            catalogue,
            limits=GatewayLimits.of(registry.roster.limits),
            tracer=tracer,
        )

    with traced_process() as tracer:
        run_on_loop(run(tracer))


def gateway_registry(config: Path | None, sdk_agents: Sequence[str]) -> tuple[Registry, Path | None]:
    """The team that a gateway without agents tells its clients of, and the folder of its own modules."""
    from magent2.tools.default_tools import known_tools
    from magent2.worker.team_choice import check_source

    override = EnvironmentOverride.of(Settings.read())
    paths = check_source(config, sdk_agents)
    if config is not None:
        return Registry.of_file(config, known_tools(), os.environ, override, describe_agents), config.parent
    if paths:
        return Registry.of(override.apply(roster_of_code(paths, Path.cwd()))), Path.cwd()
    return Registry.of(override.apply(default_roster())), None


def serve_worker(
    agents: Sequence[str],
    model: str | None,
    config: Path | None,
    sdk_agents: Sequence[str],
    bus_url: str | None,
    concurrency: int | None,
    metrics: str | None,
) -> None:
    """Run a worker until a signal ends it."""
    from magent2.runner.model_client import import_model_client
    from magent2.telemetry.metrics import metrics_endpoint, parse_address
    from magent2.telemetry.observation import RunObserver
    from magent2.worker.team_selection import choose_team

    metrics_address = None if metrics is None else parse_address(metrics)
    tls_verification()  # certificates that cannot be used are an error now, not in the first run
    raise_open_files()
    team = choose_team(agents, model, config, sdk_agents=sdk_agents)
    import_model_client()
    with traced_process() as tracer, metrics_endpoint(metrics_address) as (run_metrics, metrics_url):
        bus = connect(bus_url)
        observer = RunObserver.if_needed(run_metrics, tracer)
        banner = worker_banner(team, printable_bus_url(bus_url), metrics_url)
        run_on_loop(run_worker(bus, team, concurrency, observer, lambda: print_data(banner)))


# --- serving


async def run_gateway(  # noqa: PLR0913  one parameter per part of the process
    resources: GatewayResources,
    create_worker: Callable[[], WorkerService] | None,
    on_ready: Callable[[], None],
    stop: asyncio.Event,
    catalogue: Catalogue | None = None,
    *,
    limits: GatewayLimits | None = None,
    metrics: Metrics | None = None,
    tracer: Tracer = NO_TRACER,
    create_relay: Callable[[Engine], Relay] = Relay,
    share: LimitShare | None = None,
) -> None:
    """Serve until `stop` is set, or until the gateway or the worker ends by itself; then drain both.

    The worker drains first, while the gateway still serves the streams of its last runs.
    """
    try:
        await resources.bus.acall(Info())  # a bus that does not answer is an error here, before a client connects
        gateway = Gateway(
            resources.bus,
            access=resources.access,
            limits=limits,
            catalogue=catalogue,
            metrics=metrics,
            tracer=tracer,
            proxy=resources.proxy,
            share=share,
        )
        serving = asyncio.create_task(gateway.serve([resources.listener]))
        worker = None if create_worker is None else create_worker()
        working = None if worker is None else asyncio.create_task(_work(resources.bus, worker, create_relay))
        stopping = asyncio.create_task(stop.wait())
        on_ready()
        tasks = [task for task in (serving, working, stopping) if task is not None]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if worker is not None and working is not None and not working.done():
            await worker.drain()
        gateway.drain()
        ends = await asyncio.gather(serving, *([] if working is None else [working]), return_exceptions=True)
        for end in reversed(ends):  # an error of the worker explains more than what it does to the gateway
            if end is not None:
                raise end
    finally:
        with suppress(OSError):
            resources.listener.close()
        await resources.bus.aclose()


async def run_worker(
    bus: Engine,
    team: ServedTeam,
    concurrency: int | None = None,
    observer: RunObserver | None = None,
    on_ready: Callable[[], None] = lambda: None,
    stop: asyncio.Event | None = None,
) -> None:
    """Serve the agents of a team until a signal drains the worker, or until `stop` is set, if it is given.

    `on_ready` is called when one of them would do so.
    """
    use_tool_call_executor()
    draining: set[asyncio.Task[None]] = set()
    try:
        service = team.service(bus, concurrency, observer)
        if stop is None:
            drain_on_signals(service)
        else:
            start_task(_drain_after(stop, service), "magent2-drain", draining)
        on_ready()
        reload_on_sighup(team.registry)
        await bus.acall(Info())  # a bus that does not answer is an error here, before a sender waits for an answer
        await _work(bus, service, team.relay)
    finally:
        for task in draining:
            task.cancel()
        await team.runner.aclose()
        await bus.aclose()


def use_tool_call_executor() -> None:
    """Run what tools give to the loop's default executor on the threads for tools."""
    from magent2.tools.interface import ToolCallExecutor

    asyncio.get_running_loop().set_default_executor(ToolCallExecutor())


async def _drain_after(stop: asyncio.Event, service: WorkerService) -> None:
    await stop.wait()
    await service.drain()


async def _work(bus: Engine, worker: WorkerService, create_relay: Callable[[Engine], Relay]) -> None:
    def relay(bus: Engine) -> Relay:
        created = create_relay(bus)
        if worker.metrics is not None:
            created.on_outcome = worker.metrics.count_delivery
        return created

    async with running_relay(bus, relay):
        await worker.run()


# --- signals


def stop_event_on_signals(message: str) -> asyncio.Event:
    """An event that the first SIGTERM or Ctrl-C sets. The second ends the process immediately."""
    stop = asyncio.Event()

    def on_signal() -> None:
        print_note(f"magent2: {message}; {AGAIN}")
        stop.set()

    on_stop_signal(on_signal)
    return stop


def drain_on_signals(service: WorkerService) -> None:
    """Drain the worker on the first SIGTERM or Ctrl-C. The second ends the process immediately."""
    draining: list[asyncio.Task[None]] = []  # the loop keeps only a weak reference to a task

    def on_signal() -> None:
        print_note(f"magent2: worker is draining: running work has {service.drain_s:g} s to finish; {AGAIN}")
        draining.append(asyncio.create_task(service.drain()))

    on_stop_signal(on_signal)


def reload_on_sighup(registry: Registry) -> None:
    """Read the agents file again on SIGHUP, and print what changed."""
    on_sighup(lambda: reload_team(registry))


def reload_team(registry: Registry) -> None:
    """Read the agents file again, and print what changed."""
    print_note(f"magent2: {reload_now(registry)}")
