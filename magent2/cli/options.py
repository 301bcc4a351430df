"""Options that several commands share, and the gateway or bus that they name."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import click

from magent2.settings import HOST, LOG_FORMATS, PORT, PORT_MAX
from magent2.terminal import clean_line

if TYPE_CHECKING:
    from magent2.bus.interface import Engine
    from magent2.bus.log import Log
    from magent2.client import Client

F = TypeVar("F", bound=Callable[..., object])
R = TypeVar("R")
T = TypeVar("T")
P = ParamSpec("P")

RETRY_FOR_S = 0.5  # a command whose gateway is not running reports that at once
DEFAULT_AGENT = "general"
GATEWAYS_MAX = 16  # on one address: `PROBE_CONNECTIONS`, so that each keeps at least one of them
WORKERS_MAX = 256


class CommandFailed(click.ClickException):
    """A command could not do its work. Its message is one line on stderr; the exit code is 1."""

    exit_code = 1


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def file_option(command: F) -> F:
    return click.option(
        "--file",
        "files",
        metavar="PATH",
        multiple=True,
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="File to attach to the message. Repeat the option for several files.",
    )(command)


def yes_option(command: F) -> F:
    return click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")(command)


def confirm(question: str) -> None:
    """Ask before something that cannot be undone. Without a terminal there is no one to ask, so `--yes` is needed."""
    if not sys.stdin.isatty():
        raise click.UsageError("this cannot be undone and there is no terminal to ask on; confirm with --yes")
    click.confirm(clean_line(question), abort=True, err=True)


def log_format_option(command: F) -> F:
    return click.option(
        "--log-format",
        type=click.Choice(LOG_FORMATS, case_sensitive=False),
        default="text",
        show_default=True,
        envvar="MAGENT2_LOG_FORMAT",
        show_envvar=True,
        help="Format of the log lines on stderr.",
    )(command)


# --- the bus


def bus_option(command: F) -> F:
    return click.option(
        "--bus",
        metavar="URL",
        envvar=["MAGENT2_BUS_URL", "REDIS_URL"],
        show_envvar=True,
        help="memory://, sqlite:///FILE, redis://HOST or postgresql://HOST/DATABASE."
        " Default: a SQLite file in the data folder.",
    )(command)


def printable_bus_url(url: str | None) -> str:
    """The URL of the bus that `--bus` names, without its password."""
    from magent2.bus.connect import default_url, hide_password
    from magent2.settings import Settings

    settings = Settings.read()
    return hide_password(url or settings.bus_url or default_url(settings))


@contextmanager
def open_bus(url: str | None) -> Iterator[Engine]:
    """Open the bus for a command that needs no gateway."""
    from magent2.bus.connect import connect

    if url is not None and url.strip() == "memory://":
        raise click.UsageError(
            "memory:// is a new, empty log in every process; name a SQLite file, a Redis or a PostgreSQL server"
            " with --bus"
        )
    bus = connect(url)
    try:
        yield bus
    finally:
        bus.close()


def bus_exists(url: str | None) -> bool:
    """Return whether there is a bus to open. Opening a SQLite file would create it."""
    shown = printable_bus_url(url)
    return not shown.startswith("sqlite:///") or Path(shown.removeprefix("sqlite:///")).exists()


def run_on_bus(
    url: str | None,
    function: Callable[Concatenate[Log, P], Coroutine[object, None, T]],
    *args: P.args,
    **kwargs: P.kwargs,
) -> T:
    """Open the bus and run one function over its log."""
    from magent2.bus.log import run_sync

    with open_bus(url) as bus:
        return run_sync(bus, function, *args, **kwargs)


# --- a gateway to talk to


@dataclass(frozen=True, slots=True)
class GatewayOptions:
    """The gateway that a command talks to."""

    url: str | None
    token: str | None = field(repr=False)

    def connect(self, retry_for_s: float = RETRY_FOR_S) -> Client:
        """A client that retries for this long while the gateway cannot be reached."""
        from magent2.client import Client

        return Client(self.url, self.token, patience_s=retry_for_s)


def token_option(command: F) -> F:
    return click.option(
        "--token",
        metavar="TOKEN",
        envvar="MAGENT2_TOKEN",
        show_envvar=True,
        help="Token of the gateway. Default: the token file in the data folder.",
    )(command)


def gateway_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add `--url` and `--token` to a command, which receives them as `gateway`."""

    @wraps(command)
    def with_gateway(*arguments: object, url: str | None, token: str | None, **options: object) -> R:
        return command(*arguments, gateway=GatewayOptions(url, token), **options)

    url_option = click.option(
        "--url",
        metavar="URL",
        envvar="MAGENT2_URL",
        show_envvar=True,
        help="URL of the gateway. Default: the gateway on this machine.",
    )
    return url_option(token_option(with_gateway))


def default_agent() -> str:
    """The agent that a command talks to when none is named."""
    return os.environ.get("AGENT_NAME", "").strip() or DEFAULT_AGENT


# --- a gateway or worker to run


@dataclass(frozen=True, slots=True)
class ListenOptions:
    """Address of a gateway that a command runs, its token, and the reverse proxy in front of it."""

    host: str
    port: int
    token: str | None = field(default=None, repr=False)
    root_path: str | None = None
    trusted_proxies: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()


_LISTEN_OPTIONS = (
    click.option(
        "--host",
        metavar="HOST",
        default=HOST,
        show_default=True,
        envvar="MAGENT2_HOST",
        show_envvar=True,
        help="Address to listen on.",
    ),
    click.option(
        "--port",
        type=click.IntRange(0, PORT_MAX),
        metavar="PORT",
        default=PORT,
        show_default=True,
        envvar="MAGENT2_PORT",
        show_envvar=True,
        help="Port to listen on; 0 takes any free port.",
    ),
    token_option,
    # The variables of the next three may hold several values with commas between them: `Settings` reads them.
    click.option(
        "--root-path",
        metavar="PATH",
        help="Path under which a reverse proxy serves the gateway, such as /magent2.  [env var: MAGENT2_ROOT_PATH]",
    ),
    click.option(
        "--trusted-proxy",
        "trusted_proxies",
        metavar="ADDRESS",
        multiple=True,
        help="Address or network of a proxy whose X-Forwarded-* headers are trusted. Can be repeated."
        "  [env var: MAGENT2_TRUSTED_PROXIES]",
    ),
    click.option(
        "--allowed-host",
        "allowed_hosts",
        metavar="NAME",
        multiple=True,
        help="Accept requests with this Host header, besides the names of this machine. Can be repeated."
        "  [env var: MAGENT2_ALLOWED_HOSTS]",
    ),
)


def listen_options(command: Callable[..., R]) -> Callable[..., R]:
    """Add the options of a gateway to a command, which receives them as `listen`."""

    @wraps(command)
    def with_listen(
        *arguments: object,
        host: str,
        port: int,
        token: str | None,
        root_path: str | None,
        trusted_proxies: tuple[str, ...],
        allowed_hosts: tuple[str, ...],
        **options: object,
    ) -> R:
        listen = ListenOptions(host, port, token, root_path, trusted_proxies, allowed_hosts)
        return command(*arguments, listen=listen, **options)

    for option in reversed(_LISTEN_OPTIONS):
        with_listen = option(with_listen)
    return with_listen


def process_options(command: F) -> F:
    """Add the numbers of processes that `serve` runs."""
    command = click.option(
        "--gateways",
        metavar="N",
        type=click.IntRange(1, GATEWAYS_MAX),
        envvar="MAGENT2_GATEWAYS",
        show_envvar=True,
        help=f"Gateways to run on the address, each in a process of its own, at most {GATEWAYS_MAX}.",
    )(command)
    return click.option(
        "--workers",
        metavar="N",
        type=click.IntRange(1, WORKERS_MAX),
        envvar="MAGENT2_WORKERS",
        show_envvar=True,
        help=f"Workers to run, each in a process of its own, at most {WORKERS_MAX}.",
    )(command)


def config_option(command: F) -> F:
    return click.option(
        "--config",
        metavar="FILE",
        envvar="MAGENT2_CONFIG",
        show_envvar=True,
        type=click.Path(path_type=Path),
        help="Agents file, as 'magent2 init' writes it. Default: a built-in team.",
    )(command)


def sdk_agents_option(command: F) -> F:
    return click.option(
        "--agents",
        "sdk_agents",
        metavar="MODULE:ATTRIBUTE",
        multiple=True,
        envvar="MAGENT2_AGENTS",
        show_envvar=True,
        help="Serve agents of your own Agents SDK code: an Agent, or a list of them. Can be repeated, or have commas"
        " between several. Modules are looked for in the current folder first.",
    )(command)


def team_options(command: F) -> F:
    """Add the options that choose the agents to serve and their model."""
    command = sdk_agents_option(command)
    command = click.option(
        "--model",
        metavar="MODEL",
        help="Name of a model, 'demo' (built in) or 'local' (a server of your own).  [env var: AGENT_MODEL]",
    )(command)
    command = click.option(
        "--agent",
        "agents",
        metavar="NAME",
        multiple=True,
        help="Serve this agent alone. With --config or --agents: serve this agent of them; can be repeated."
        "  [env var: AGENT_NAME]",
    )(command)
    return config_option(command)
