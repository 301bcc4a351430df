"""`worker`: the click form of `python -m magent2.worker`."""

from __future__ import annotations

from pathlib import Path

import click

from magent2.cli.options import bus_option, log_option, team_options
from magent2.cli.runners import model_option
from magent2.machine import check_system


@click.command()
@team_options
@model_option
@bus_option
@click.option("--concurrency", metavar="N", type=int, help="How many conversations at a time.")
@click.option(
    "--metrics",
    metavar="[HOST:]PORT",
    envvar="MAGENT2_METRICS",
    show_envvar=True,
    help="Where to show Prometheus figures, on this machine unless a host is named. Off by default.",
)
@log_option
def worker(
    agents: tuple[str, ...],
    config: Path | None,
    model: str | None,
    bus: str | None,
    concurrency: int | None,
    metrics: str | None,
    log_format: str,
) -> int:
    """Answer the mail of agents.

    Without OPENAI_API_KEY and without --model they echo. Start as many as you like.
    """
    check_system()  # before what Windows has not is asked for
    from magent2.worker.__main__ import main

    given = {
        "--config": config,
        "--model": model,
        "--bus": bus,
        "--concurrency": concurrency,
        "--metrics": metrics,
        "--log-format": log_format,
    }
    options = [f"{name}={value}" for name, value in given.items() if value is not None]
    return main([*options, *(f"--agent={name}" for name in agents)])
