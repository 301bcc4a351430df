"""`python -m magent2.gateway`: serve a bus over HTTP until told to stop."""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Sequence

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.errors import InvalidInput, Magent2Error
from magent2.gateway.limits.limits import Limits
from magent2.gateway.server import Gateway, choose_access, choose_front, listen
from magent2.loop import leave_on_signals, run_on_loop
from magent2.machine import check_system
from magent2.roster.limits import parse_limit_variables
from magent2.settings import LOG_FORMATS, Settings
from magent2.telemetry import setup_logging
from magent2.telemetry.tracing import traced_process

FAILED, BAD_SETTINGS = 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        check_system()
        settings = Settings.read()
        options = _parser(settings).parse_args(arguments)
        setup_logging(options.log_format)
        limits = Limits.of(parse_limit_variables(settings.limits))
        access = choose_access(settings, options.host, options.token, options.allowed_host)
        front = choose_front(settings, options.root_path, options.trusted_proxy)
        listener = listen(options.host, options.port)
        bus = connect(options.bus, settings)
    except InvalidInput as error:
        return _complain(error, BAD_SETTINGS)
    except Magent2Error as error:
        return _complain(error, FAILED)
    port = listener.getsockname()[1]
    print(f"magent2 gateway on http://{options.host}:{port}{front.root_path}/#token={access.token}", flush=True)
    with traced_process(settings) as tracer:
        run_on_loop(serve(bus, Gateway(bus, access=access, limits=limits, tracer=tracer, front=front), listener))
    return 0


async def serve(bus: Engine, gateway: Gateway, listener: socket.socket) -> None:
    try:
        leave_on_signals(gateway.drain)
        await gateway.serve([listener])
    finally:
        await bus.aclose()


def _parser(settings: Settings) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m magent2.gateway", description="Serve a bus over HTTP.")
    parser.add_argument("--bus", metavar="URL", help="memory://, sqlite:///…, redis://… (MAGENT2_BUS_URL, REDIS_URL)")
    parser.add_argument("--host", default=settings.host, help="where to listen (MAGENT2_HOST, else %(default)s)")
    parser.add_argument("--port", type=int, default=settings.port, help="0 for a free one (MAGENT2_PORT, %(default)s)")
    parser.add_argument("--token", help="what clients must show (MAGENT2_TOKEN, else the file in the data folder)")
    parser.add_argument("--root-path", metavar="PATH", help="the sub-path a proxy serves it under (MAGENT2_ROOT_PATH)")
    for name, told in (
        ("--trusted-proxy", "an address or network whose X-Forwarded-* count (MAGENT2_TRUSTED_PROXIES)"),
        ("--allowed-host", "a name to answer to besides this machine's (MAGENT2_ALLOWED_HOSTS)"),
    ):
        parser.add_argument(name, metavar="NAME", action="append", default=[], help=f"{told}; may be repeated")
    parser.add_argument("--log-format", choices=LOG_FORMATS, default=settings.log_format)
    return parser


def _complain(error: Magent2Error, code: int) -> int:
    print(f"magent2: {error}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
