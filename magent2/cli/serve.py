"""`serve` and `gateway`."""

from __future__ import annotations

import click

from magent2.cli.options import bus_option, listening_options, log_option, token_option
from magent2.cli.printing import say
from magent2.cli.runners import model_option


@click.command(epilog="Examples: magent2 serve; magent2 serve --model demo --port 0 --bus memory://")
@click.option("--agent", metavar="NAME", envvar="AGENT_NAME", show_envvar=True, help="Its name; else 'assistant'.")
@model_option
@listening_options
@token_option
@bus_option
@log_option
def serve(
    agent: str | None, model: str | None, host: str, port: int, token: str | None, bus: str | None, log_format: str
) -> None:
    """Run the gateway and an agent in one process.

    Without OPENAI_API_KEY and without --model the demo model answers.
    """
    import logging

    from magent2.cli.runners import choose_runner
    from magent2.cli.running import Place, greeting, keep_house, leaving_on_signals
    from magent2.loop import run_on_loop
    from magent2.telemetry import setup_logging
    from magent2.worker.__main__ import read_config
    from magent2.worker.service import WorkerService

    setup_logging(log_format, logging.WARNING)
    config = read_config(agent)
    place = Place.open(host, port, token, bus)  # before the SDK is loaded, which takes a while
    with place.closed_on_error():
        runner, described = choose_runner(model, config)

    async def work() -> None:
        await keep_house(
            place,
            lambda: WorkerService(place.bus, {config.agent_name: runner}),
            lambda: say(greeting(place, config.agent_name, described)),
            leaving_on_signals("no new mail; runs may end, then streams do"),
        )

    run_on_loop(work())


@click.command()
@listening_options
@token_option
@bus_option
@log_option
def gateway(host: str, port: int, token: str | None, bus: str | None, log_format: str) -> None:
    """Run the gateway alone.

    Agents are served by 'magent2 worker' on the same bus, on this machine or others.
    """
    import logging

    from magent2.cli.running import Place, greeting, keep_house, leaving_on_signals
    from magent2.loop import run_on_loop
    from magent2.telemetry import setup_logging

    setup_logging(log_format, logging.WARNING)
    place = Place.open(host, port, token, bus)

    async def work() -> None:
        await keep_house(place, None, lambda: say(greeting(place)), leaving_on_signals("streams end"))

    run_on_loop(work())
