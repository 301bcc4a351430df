"""`worker`: the click form of `python -m magent2.worker`."""

from __future__ import annotations

import click

from magent2.cli.options import bus_option, log_option
from magent2.cli.runners import model_option


@click.command()
@click.option("--agent", metavar="NAME", envvar="AGENT_NAME", show_envvar=True, help="Whose mail; else 'assistant'.")
@model_option
@bus_option
@click.option("--concurrency", metavar="N", type=int, help="How many conversations at a time.")
@log_option
def worker(agent: str | None, model: str | None, bus: str | None, concurrency: int | None, log_format: str) -> int:
    """Answer the mail of one agent.

    Without OPENAI_API_KEY and without --model it echoes. Start as many as you like.
    """
    from magent2.cli.runners import scripted
    from magent2.telemetry import setup_logging
    from magent2.worker.__main__ import main

    setup_logging(log_format)
    given = {
        "--agent": agent,
        "--model": model or scripted(),
        "--bus": bus,
        "--concurrency": None if concurrency is None else str(concurrency),
    }
    return main([f"{name}={value}" for name, value in given.items() if value is not None])
