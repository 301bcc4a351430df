"""Options that commands share, each with its variable."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from magent2.client import Client

F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

QUICK_S = 0.5  # a command that finds nobody says so soon
AGENT = "general"


class Failure(click.ClickException):
    """A command that could not do its work: one line, exit code 1."""

    exit_code = 1


def bus_option(command: F) -> F:
    return click.option(
        "--bus",
        metavar="URL",
        envvar=["MAGENT2_BUS_URL", "REDIS_URL"],
        show_envvar=True,
        help="memory://, sqlite:///… or redis://…; else a file in the data folder.",
    )(command)


def team_options(command: F) -> F:
    """Whom to serve."""
    for option in (
        click.option(
            "--agent",
            "agents",
            metavar="NAME",
            multiple=True,
            help="One agent alone; with --config some of its agents.  [env var: AGENT_NAME]",
        ),
        config_option,
    ):
        command = option(command)
    return command


def config_option(command: F) -> F:
    return click.option(
        "--config",
        metavar="FILE",
        envvar="MAGENT2_CONFIG",
        show_envvar=True,
        type=click.Path(path_type=Path),
        help="A file of agents; 'magent2 init' writes one. Else the default team.",
    )(command)


def listening_options(command: Callable[..., R]) -> Callable[..., R]:
    """Where a gateway listens, for commands that run one; they get it as `listening`."""

    @wraps(command)
    def with_listening(*arguments: Any, **options: Any) -> R:
        given = {name: options.pop(name) for name in Listening.__dataclass_fields__}
        return command(*arguments, listening=Listening(**given), **options)

    for option in (*_front_options(), token_option, *_address_options()):
        with_listening = option(with_listening)
    return with_listening


def _address_options() -> tuple[Callable[[F], F], ...]:
    from magent2.settings import HOST, PORT, PORT_MAX

    return (
        click.option(
            "--port",
            type=click.IntRange(0, PORT_MAX),
            default=PORT,
            show_default=True,
            envvar="MAGENT2_PORT",
            show_envvar=True,
            help="Where to listen; 0 takes any free port.",
        ),
        click.option(
            "--host", default=HOST, show_default=True, envvar="MAGENT2_HOST", show_envvar=True, help="Where to listen."
        ),
    )


def _front_options() -> tuple[Callable[[F], F], ...]:
    """For a gateway behind a reverse proxy. The variables may hold several, with commas between them."""
    return (
        click.option(
            "--allowed-host",
            "allowed_hosts",
            metavar="NAME",
            multiple=True,
            help="A name to answer to besides this machine's; may be repeated.  [env var: MAGENT2_ALLOWED_HOSTS]",
        ),
        click.option(
            "--trusted-proxy",
            "trusted_proxies",
            metavar="ADDRESS",
            multiple=True,
            help="An address or network whose X-Forwarded-For, -Proto and -Host are believed; may be repeated."
            "  [env var: MAGENT2_TRUSTED_PROXIES]",
        ),
        click.option(
            "--root-path",
            metavar="PATH",
            help="The path under which a proxy serves it, such as /magent2.  [env var: MAGENT2_ROOT_PATH]",
        ),
    )


def token_option(command: F) -> F:
    return click.option(
        "--token",
        metavar="TOKEN",
        envvar="MAGENT2_TOKEN",
        show_envvar=True,
        help="The gateway's token; else the one in the data folder.",
    )(command)


@dataclass(frozen=True, slots=True)
class Listening:
    """Where a gateway is to listen, who may come in, and what stands before it, as the options say."""

    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    root_path: str | None = None
    trusted_proxies: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Door:
    """Where the gateway is and what opens it, as the options say."""

    url: str | None
    token: str | None = field(repr=False)

    def open(self, patience_s: float = QUICK_S) -> Client:
        from magent2.client import Client

        return Client(self.url, self.token, patience_s=patience_s)


def gateway_options(command: Callable[..., R]) -> Callable[..., R]:
    """Where the gateway is, for commands that are its clients; they get it as `door`."""

    @wraps(command)
    def with_door(*arguments: Any, url: str | None, token: str | None, **options: Any) -> R:
        return command(*arguments, door=Door(url, token), **options)

    url = click.option(
        "--url",
        metavar="URL",
        envvar="MAGENT2_URL",
        show_envvar=True,
        help="The gateway; else the one on this machine.",
    )
    return url(token_option(with_door))


def log_option(command: F) -> F:
    from magent2.settings import LOG_FORMATS

    return click.option(
        "--log-format",
        type=click.Choice(LOG_FORMATS),
        default="text",
        show_default=True,
        envvar="MAGENT2_LOG_FORMAT",
        show_envvar=True,
        help="How logs are written to stderr.",
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def default_agent() -> str:
    return os.environ.get("AGENT_NAME", "").strip() or AGENT
