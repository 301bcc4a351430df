"""The commands `serve`, `gateway` and `worker`, which `python -m magent2.gateway` and `.worker` run as well.

What they do is in `server_process.py`, which imports all that a server needs; `--help` is quick without it.
"""

from __future__ import annotations

from pathlib import Path

import click

from magent2.cli.options import (
    ListenOptions,
    bus_option,
    config_option,
    listen_options,
    log_format_option,
    process_options,
    sdk_agents_option,
    team_options,
)
from magent2.machine import check_system


@click.command(
    epilog="Examples: magent2 serve; magent2 serve --config magent2.toml; magent2 serve --port 0 --bus memory://;"
    " magent2 serve --workers 4 --gateways 2; magent2 serve --agents app:triage"
)
@team_options
@listen_options
@bus_option
@process_options
@log_format_option
def serve(  # noqa: PLR0913  one parameter per option
    *,
    agents: tuple[str, ...],
    sdk_agents: tuple[str, ...],
    config: Path | None,
    model: str | None,
    listen: ListenOptions,
    bus: str | None,
    workers: int | None,
    gateways: int | None,
    log_format: str,
) -> int:
    """Run the gateway and a team of agents, in one or several processes.

    With --workers or --gateways, a supervisor runs so many processes of each kind, by default one, on one address. It
    starts those again that crash.

    If no model provider can be used (no key, no OPENAI_BASE_URL) and without --model, the demo model answers. Ctrl-C
    drains running work, then exits. Press it again to exit immediately.
    """
    check_system()  # first: on Windows the imports below fail
    from magent2.telemetry import setup_logging

    setup_logging(log_format)
    if workers is None and gateways is None:
        from magent2.cli.server_process import serve as run_serve

        run_serve(agents, model, config, sdk_agents, listen, bus)
        return 0
    from magent2.cli.processes.supervisor import ServeOptions, serve_processes

    options = ServeOptions(workers or 1, gateways or 1, agents, model, config, listen, bus, log_format, sdk_agents)
    return serve_processes(options)


@click.command()
@config_option
@sdk_agents_option
@listen_options
@bus_option
@log_format_option
def gateway(
    config: Path | None, sdk_agents: tuple[str, ...], listen: ListenOptions, bus: str | None, log_format: str
) -> None:
    """Run the gateway without agents.

    Run 'magent2 worker' on the same bus, on this machine or on others, to serve agents. Ctrl-C closes open streams,
    then exits. Press it again to exit immediately.
    """
    check_system()
    from magent2.cli.server_process import serve_gateway
    from magent2.telemetry import setup_logging

    setup_logging(log_format)
    serve_gateway(config, sdk_agents, listen, bus)


@click.command()
@team_options
@bus_option
@click.option(
    "--concurrency", metavar="N", type=int, help="Conversations to run at a time. Default: the limit 'concurrency'."
)
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    envvar="MAGENT2_METRICS",
    show_envvar=True,
    help="Address for Prometheus metrics; without HOST on this machine only. Off by default.",
)
@log_format_option
def worker(
    agents: tuple[str, ...],
    sdk_agents: tuple[str, ...],
    config: Path | None,
    model: str | None,
    bus: str | None,
    concurrency: int | None,
    metrics: str | None,
    log_format: str,
) -> None:
    """Run agents without a gateway.

    Any number of workers can share a bus. If no model provider can be used and without --model, the agents echo. Ctrl-C
    drains running work, then exits. Press it again to exit immediately.
    """
    check_system()
    from magent2.cli.server_process import serve_worker
    from magent2.telemetry import setup_logging

    setup_logging(log_format)
    serve_worker(agents, model, config, sdk_agents, bus, concurrency, metrics)
