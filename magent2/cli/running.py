"""A gateway, with or without a worker, on one bus and one loop, from the first line that it prints to its way home."""

from __future__ import annotations

import asyncio
import json
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from magent2.bus.connect import connect, default_url, hide_password
from magent2.bus.interface import Engine
from magent2.bus.operations import Info
from magent2.cli.options import AGENT, Listening
from magent2.cli.printing import note
from magent2.errors import SettingsError
from magent2.gateway.access.auth import Access
from magent2.gateway.catalogue import Catalogue
from magent2.gateway.limits.limits import Limits
from magent2.gateway.proxy import Front
from magent2.gateway.server import Gateway, choose_access, choose_front, listen
from magent2.loop import leave_on_signals, read_again_on_signal
from magent2.roster.registry import Registry, reload_now
from magent2.settings import Settings
from magent2.telemetry import Metrics
from magent2.worker.relay import relaying
from magent2.worker.service import WorkerService

if TYPE_CHECKING:
    from magent2.telemetry.otel import Tracer


@dataclass(frozen=True, slots=True)
class Place:
    """Where a gateway listens, on which bus, and who may come in."""

    host: str
    listener: socket.socket
    access: Access
    front: Front
    bus: Engine
    bus_url: str  # as it may be printed
    token_given: bool

    @classmethod
    def open(cls, listening: Listening, bus_url: str | None) -> Place:
        settings = Settings.read()
        where = bus_url or default_url(settings)
        front = choose_front(settings, listening.root_path, listening.trusted_proxies)
        access = choose_access(settings, listening.host, listening.token, listening.allowed_hosts)
        try:
            listener = listen(listening.host, listening.port)
        except SettingsError as error:
            raise SettingsError(f"{error}; --port takes another, 0 any free one") from error
        try:
            bus = connect(where, settings)
        except BaseException:
            listener.close()
            raise
        token_given = (listening.token or settings.token) is not None
        return cls(listening.host, listener, access, front, bus, hide_password(where), token_given)

    @property
    def url(self) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host  # noqa: S104  compared, not bound
        port = self.listener.getsockname()[1]
        place = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        return place + self.front.root_path

    @contextmanager
    def closed_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.listener.close()
            self.bus.close()
            raise


def command_name() -> str:
    """What to type to run this program again."""
    program = sys.argv[0]
    if shutil.which("magent2"):
        return "magent2"
    return "python -m magent2.cli" if program.endswith("__main__.py") else shlex.quote(program)


def greeting(place: Place, agents: Sequence[str] = (), model: str = "", first: str = AGENT) -> str:
    """What a person needs to know: where it is, who answers, how to send the first message."""
    me = command_name()
    url = f" --url {place.url}" if place.url != "http://127.0.0.1:8700" else ""
    token = '"Authorization: Bearer YOUR_TOKEN"' if place.token_given else f'"Authorization: Bearer $({me} token show)"'
    message = {"conversation_id": "c1", "sender": "user:me", "recipient": f"agent:{first}", "content": "hello"}
    lines = [f"gateway  {place.url}/#token={place.access.token}"]
    lines += [f"agents   {', '.join(agents)}", f"model    {model}"] if agents else []
    lines += [
        f"bus      {place.bus_url}",
        "",
        "send the first message:",
        f"  {me} send {shlex.quote(first)} 'hello' --wait{url}",
        f"  curl -H {token} -H 'Content-Type: application/json' \\",
        f"    -d {shlex.quote(json.dumps(message))} {place.url}/send",
    ]
    return "\n".join(lines)


async def keep_house(
    place: Place,
    service: Callable[[], WorkerService] | None,
    ready: Callable[[], None],
    leave: asyncio.Event,
    catalogue: Catalogue | None = None,
    *,
    limits: Limits | None = None,
    metrics: Metrics | None = None,
    tracer: Tracer | None = None,
) -> None:
    """Serve until told to leave: then runs end first, while their streams are still heard, and the gateway last."""
    try:
        await place.bus.acall(Info())
        gateway = Gateway(
            place.bus,
            access=place.access,
            limits=limits,
            catalogue=catalogue,
            metrics=metrics,
            tracer=tracer,
            front=place.front,
        )
        serving = asyncio.create_task(gateway.serve([place.listener]))
        worker = None if service is None else service()
        working = None if worker is None else asyncio.create_task(_work(place.bus, worker))
        leaving = asyncio.create_task(leave.wait())
        ready()
        tasks = [task for task in (serving, working, leaving) if task is not None]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        if worker is not None and working is not None and not working.done():
            await worker.drain()
        gateway.drain()
        ends = await asyncio.gather(serving, *([] if working is None else [working]), return_exceptions=True)
        for end in reversed(ends):
            if end is not None:
                raise end
    finally:
        with suppress(OSError):
            place.listener.close()
        await place.bus.aclose()


async def _work(bus: Engine, worker: WorkerService) -> None:
    async with relaying(bus):
        await worker.run()


def leaving_on_signals(words: str) -> asyncio.Event:
    """Set by the first SIGTERM or Ctrl-C; the second leaves at once."""
    leave = asyncio.Event()

    def told() -> None:
        note(f"magent2: {words}; once more leaves at once")
        leave.set()

    leave_on_signals(told)
    return leave


def reading_on_signal(registry: Registry) -> None:
    """SIGHUP reads the file of agents again, and says what came of it."""
    read_again_on_signal(lambda: note(f"magent2: {reload_now(registry)}"))
