"""`serve` and `gateway`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from magent2.cli.options import Listening, bus_option, config_option, listening_options, log_option, team_options
from magent2.cli.printing import say
from magent2.cli.runners import model_option
from magent2.machine import check_system

if TYPE_CHECKING:
    from magent2.telemetry.otel import Tracer


@click.command(
    epilog="Examples: magent2 serve; magent2 serve --config magent2.toml; magent2 serve --port 0 --bus memory://"
)
@team_options
@model_option
@listening_options
@bus_option
@log_option
def serve(
    agents: tuple[str, ...],
    config: Path | None,
    model: str | None,
    listening: Listening,
    bus: str | None,
    log_format: str,
) -> None:
    """Run the gateway and a team of agents in one process.

    Without OPENAI_API_KEY and without --model the demo model answers.
    """
    check_system()  # before what Windows has not is asked for
    from magent2.cli.running import Place, greeting, keep_house, leaving_on_signals, reading_on_signal
    from magent2.gateway.catalogue import Catalogue
    from magent2.gateway.limits.limits import Limits
    from magent2.loop import run_on_loop
    from magent2.telemetry import Metrics, setup_logging
    from magent2.telemetry.run_metrics import RunMetrics
    from magent2.telemetry.runs import Observer
    from magent2.telemetry.tracing import traced_process

    setup_logging(log_format)
    place = Place.open(listening, bus)  # before the SDK is loaded, which takes a while
    with place.closed_on_error():
        from magent2.worker.team_selection import choose_team

        team = choose_team(agents, model, config, without_key="demo")
    runner, metrics = team.runner, Metrics()

    async def work(tracer: Tracer | None) -> None:
        observer = Observer(RunMetrics(metrics.registry), tracer)
        try:
            reading_on_signal(team.registry)
            await keep_house(
                place,
                lambda: team.service(place.bus, observer=observer),
                lambda: say(greeting(place, team.names, team.described, team.first)),
                leaving_on_signals("no new mail; runs may end, then streams do"),
                Catalogue(team.registry, builtins=runner.builtins, kind=runner.kind, folder=team.folder),
                limits=Limits.of(team.limits),
                metrics=metrics,
                tracer=tracer,
            )
        finally:
            await runner.aclose()

    with traced_process() as tracer:
        run_on_loop(work(tracer))


@click.command()
@config_option
@listening_options
@bus_option
@log_option
def gateway(config: Path | None, listening: Listening, bus: str | None, log_format: str) -> None:
    """Run the gateway alone.

    Agents are served by 'magent2 worker' on the same bus, on this machine or others.
    """
    import os

    check_system()  # before what Windows has not is asked for
    from magent2.cli.running import Place, greeting, keep_house, leaving_on_signals, reading_on_signal
    from magent2.gateway.catalogue import Catalogue
    from magent2.gateway.limits.limits import Limits
    from magent2.loop import run_on_loop
    from magent2.roster.agents_file import default_roster
    from magent2.roster.limits import parse_limit_variables
    from magent2.roster.registry import EnvironmentOverride, Registry
    from magent2.settings import Settings
    from magent2.telemetry import setup_logging
    from magent2.telemetry.tracing import traced_process
    from magent2.tools.default_tools import known_tools

    setup_logging(log_format)
    over = EnvironmentOverride(limits=parse_limit_variables(Settings.read().limits))
    if config is None:
        registry = Registry.of(over.apply(default_roster()))
    else:
        registry = Registry.of_file(config, known_tools(), os.environ, over)
    place = Place.open(listening, bus)
    catalogue = Catalogue(registry, folder=None if config is None else config.parent)
    limits = Limits.of(registry.roster.limits)

    async def work(tracer: Tracer | None) -> None:
        reading_on_signal(registry)
        leave = leaving_on_signals("streams end")
        await keep_house(place, None, lambda: say(greeting(place)), leave, catalogue, limits=limits, tracer=tracer)

    with traced_process() as tracer:
        run_on_loop(work(tracer))
