"""The gateway as an HTTP server: sockets, connection limits and graceful shutdown."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import Generator, Sequence
from dataclasses import replace

import uvicorn
from fastapi import FastAPI

from magent2.bus.interface import Bus
from magent2.bus.memory import MemoryBus
from magent2.errors import SettingsError
from magent2.gateway.access.auth import Access, parse_hosts
from magent2.gateway.access.keys import keep_token_registered
from magent2.gateway.app import create_app
from magent2.gateway.catalogue import Catalogue
from magent2.gateway.limits import DESCRIPTORS_KEPT, GatewayLimits
from magent2.gateway.limits.open_counts import LimitShare
from magent2.gateway.limits.protocol import ConnectionTable, protocol_with_limits
from magent2.gateway.proxy import ProxySettings
from magent2.gateway.services import Services
from magent2.gateway.shared_listener import SharedListener
from magent2.machine import raise_open_files
from magent2.settings import Settings, is_loopback
from magent2.telemetry import Metrics
from magent2.telemetry.tracing import NO_TRACER, Tracer
from magent2.token import TokenFile, check_token

BACKLOG = 1024


class _Server(uvicorn.Server):
    """A uvicorn server without signal handlers: the command that runs it has its own.

    With a `share`, it serves sockets that other gateways serve too.
    """

    share: LimitShare | None = None
    shared: tuple[SharedListener, ...] = ()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self.share is None or self.share.gateways == 1 or sockets is None:
            await super().startup(sockets)
            return
        await super().startup([])
        self.shared = tuple(SharedListener(one, self.share, self._create_protocol) for one in sockets)

    def _create_protocol(self) -> asyncio.Protocol:
        # As in `startup` of uvicorn.
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state, _loop=None
        )
        return made

    def stop_accepting(self) -> None:
        """Leave new connections to the other gateways of the address."""
        for listener in self.shared:
            listener.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class Gateway:
    """Serves a bus over HTTP until it is drained.

    `share` is its part in the limits of an address that several gateways serve.
    """

    def __init__(
        self,
        bus: Bus,
        *,
        access: Access | None = None,
        limits: GatewayLimits | None = None,
        catalogue: Catalogue | None = None,
        metrics: Metrics | None = None,
        tracer: Tracer = NO_TRACER,
        proxy: ProxySettings | None = None,
        share: LimitShare | None = None,
    ) -> None:
        proxy = proxy or ProxySettings()
        fitted = fit_open_files(limits or GatewayLimits())
        # The open files of one process do not limit what all gateways of the address accept together.
        self.limits = fitted if share is None else limits or GatewayLimits()
        share = share or LimitShare()
        self._token = access.watched if access is not None else None
        self.app: FastAPI = create_app(
            bus,
            access=access,
            limits=self.limits,
            catalogue=catalogue,
            metrics=metrics,
            tracer=tracer,
            proxy=proxy,
            share=share,
        )
        table = ConnectionTable(
            self.limits, proxy, self.app.state.services.metrics, share, own_max=fitted.connections_max
        )
        self._server = _Server(
            uvicorn.Config(
                self.app,
                http=protocol_with_limits(table),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,  # `ProxySettings` reads them: gateway/proxy.py
                backlog=BACKLOG,
                timeout_keep_alive=math.ceil(self.limits.keep_alive_s),
                timeout_graceful_shutdown=math.ceil(self.limits.drain_s),
            )
        )
        self._server.share = share

    @property
    def started(self) -> bool:
        return self._server.started

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self._server.server_state.connections)

    async def serve(self, sockets: Sequence[socket.socket]) -> None:
        """Serve these sockets until `drain`, then close them."""
        services: Services = self.app.state.services
        registration: asyncio.Task[None] | None = None
        try:
            services.rates.open()
            if self._token is not None and services.has_keys and not isinstance(services.bus, MemoryBus):
                # A bus in memory has no other gateways that could accept the token.
                registration = asyncio.create_task(
                    keep_token_registered(services.bus, self._token), name="magent2-token"
                )
            await self._server.serve(list(sockets))
        finally:
            self._server.stop_accepting()
            if registration is not None:
                registration.cancel()
            services.rates.close()
            services.streams.close()

    def drain(self) -> None:
        """Start a graceful shutdown: end the streams, answer the requests in progress, then stop."""
        self.app.state.services.streams.drain()
        self.app.state.services.replies.drain()
        self._server.stop_accepting()
        self._server.should_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. Port 0 chooses a free port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # asyncio sets TCP_NODELAY on accepted connections only if the protocol is named. Without it a response can wait
    # 40 ms for the client's acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise SettingsError(f"cannot listen on {host} port {port}: {error.strerror or error}") from error
    listener.setblocking(False)
    return listener


def choose_access(settings: Settings, host: str, token: str | None = None, hosts: Sequence[str] = ()) -> Access:
    """Choose the access rules: the given token, or the one in the token file, which is created if it does not exist.

    `hosts` are names that the gateway answers to besides those of this machine.
    """
    names = parse_hosts(hosts or settings.allowed_hosts)
    given = token or settings.token
    loopback = is_loopback(host)
    if given is not None:
        access = Access.by_token(check_token(given), loopback=loopback)
    else:
        access = Access.by_file(TokenFile.within(settings.data_dir), loopback=loopback)
    return replace(access, hosts=names)


def choose_proxy_settings(
    settings: Settings, root_path: str | None = None, trusted: Sequence[str] = ()
) -> ProxySettings:
    """Return the proxy settings of the command line, else of the environment."""
    return ProxySettings.parse(
        root_path if root_path is not None else settings.root_path, trusted or settings.trusted_proxies
    )


def fit_open_files(limits: GatewayLimits) -> GatewayLimits:
    """Raise the limit of open files, and allow no more connections than it permits."""
    return limits.with_connections(min(limits.connections_max, max(1, raise_open_files() - DESCRIPTORS_KEPT)))
