"""`python -m magent2.worker`: answer the mail of a team, or of some of its agents, until told to stop.

The first SIGTERM or Ctrl-C lets runs end, the second leaves at once.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from magent2.bus.connect import connect, default_url, hide_password
from magent2.bus.interface import Engine
from magent2.bus.operations import Info
from magent2.errors import InvalidInput, Magent2Error
from magent2.loop import leave_on_signals, read_again_on_signal, run_on_loop
from magent2.machine import check_system, raise_open_files
from magent2.roster.registry import reload_now
from magent2.runner.config import RunnerConfig
from magent2.runner.select import select_runner
from magent2.settings import LOG_FORMATS, Settings
from magent2.telemetry import setup_logging
from magent2.telemetry.endpoint import metrics_endpoint, parse_address
from magent2.telemetry.runs import Observer
from magent2.telemetry.tracing import traced_process
from magent2.worker.relay import relaying
from magent2.worker.runner_adapter import Runner
from magent2.worker.service import CONCURRENCY, WorkerService
from magent2.worker.team_selection import Team, choose_team

FAILED, BAD_SETTINGS = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        check_system()
        settings = Settings.read()
        options = _parser(settings).parse_args(arguments)
        setup_logging(options.log_format)
        metrics_at = None if options.metrics is None else parse_address(options.metrics)
        raise_open_files()
        team = choose_team(options.agent or (), options.model, options.config)
        with traced_process(settings) as tracer, metrics_endpoint(metrics_at) as (metrics, shown_at):
            bus = connect(options.bus)
            _greet(team, _shown_url(options.bus, settings), shown_at)
            run_on_loop(serve(bus, team, options.concurrency, Observer.of(metrics, tracer)))
    except InvalidInput as error:
        return _complain(error, BAD_SETTINGS)
    except Magent2Error as error:
        return _complain(error, FAILED)
    return 0


def build_runner(model: str | None = None, config: RunnerConfig | None = None) -> Runner:
    """The runner of one agent, for a `Worker`: echo without a key, else the SDK; `demo` and `local` beat both."""
    return select_runner(model, config)


def _greet(team: Team, bus_url: str, metrics_url: str) -> None:
    lines = [f"agents   {', '.join(team.names)}", f"model    {team.described}", f"bus      {bus_url}"]
    lines += [f"metrics  {metrics_url}"] if metrics_url else []
    print("\n".join(lines), flush=True)


async def serve(bus: Engine, team: Team, concurrency: int | None = None, observer: Observer | None = None) -> None:
    try:
        service = team.service(bus, concurrency, observer)
        drain_on_signals(service)
        read_again_on_signal(lambda: _tell(reload_now(team.registry)))
        await bus.acall(Info())  # a bus that is not there is the worker's error, before anybody waits for it
        async with relaying(bus):
            await service.run()
    finally:
        await team.runner.aclose()
        await bus.aclose()


def drain_on_signals(service: WorkerService) -> None:
    draining: list[asyncio.Task[None]] = []

    def leave() -> None:
        _tell(f"no new mail; runs have {service.drain_s:g} s to end")
        draining.append(asyncio.create_task(service.drain()))

    leave_on_signals(leave)


def _tell(words: str) -> None:
    print(f"magent2: {words}", file=sys.stderr, flush=True)


def _parser(settings: Settings) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m magent2.worker", description="Answer the mail of agents.")
    parser.add_argument("--agent", metavar="NAME", action="append", help="whose mail, may be repeated (AGENT_NAME)")
    parser.add_argument("--config", metavar="FILE", type=Path, help="a file of agents (MAGENT2_CONFIG)")
    parser.add_argument("--model", metavar="MODEL", help="demo, local, or a model's name (AGENT_MODEL)")
    parser.add_argument("--bus", metavar="URL", help="memory://, sqlite:///…, redis://… (MAGENT2_BUS_URL, REDIS_URL)")
    parser.add_argument(
        "--concurrency", metavar="N", type=int, help=f"lanes at a time (the file's, else {CONCURRENCY})"
    )
    parser.add_argument(
        "--metrics", metavar="[HOST:]PORT", default=settings.metrics, help="where to show figures (MAGENT2_METRICS)"
    )
    parser.add_argument("--log-format", choices=LOG_FORMATS, default=settings.log_format)
    return parser


def _shown_url(url: str | None, settings: Settings) -> str:
    return hide_password(url or settings.bus_url or default_url(settings))


def _complain(error: Magent2Error, code: int) -> int:
    print(f"magent2: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # before there was anything to drain
        sys.exit(FAILED)
