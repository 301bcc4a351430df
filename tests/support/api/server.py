"""`/api` on real sockets: a bus, a worker with a team, and two gateways, in one background thread.

One gateway has long timeouts, the other short ones.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from types import MappingProxyType

import httpx2
import pytest

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.memory import MemoryBus
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.sqlite import SqliteBus
from magent2.directory.keys import create_key
from magent2.gateway.catalogue import Catalogue
from magent2.gateway.limits import DEFAULT_RATES, GatewayLimits, RequestRate
from magent2.gateway.server import Gateway, listen
from magent2.roster.agents_file import default_roster
from magent2.roster.registry import Registry
from magent2.roster.spec import AgentSpec, Roster, Scenario
from magent2.runner.demo.model import DemoModel
from magent2.runner.team.runner import TeamRunner
from magent2.tools.default_tools import STANDARD
from magent2.tools.registry import ToolRegistry, tool
from magent2.worker.service import WorkerService
from tests.support.engines import NewEngine
from tests.support.keys import ACCESS, ADMIN
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.runners import FailingRunner
from tests.support.waiting import DEADLINE_S
from tests.support.worker_fixture import LEASE_S, until

UNHURRIED = MappingProxyType(dict.fromkeys(DEFAULT_RATES, RequestRate(per_s=1e6, burst=1_000_000)))
PATIENT = GatewayLimits(wait_max_s=DEADLINE_S, rates=UNHURRIED, drain_s=1.0)
HASTY = replace(PATIENT, wait_max_s=0.05, text_max_chars=20, body_max_bytes=2000, file_max_bytes=1000)

BROKEN = AgentSpec("broken", role="Never answers.", tools=("weather",))


@tool
async def hold() -> str:
    """Wait to be stopped."""
    await asyncio.Event().wait()
    return "never"


@tool
def trip() -> str:
    """Fail."""
    raise ValueError("tripped")


def team() -> Roster:
    """The default team with more tools for its general agent (wait, fail, send), and an agent that always fails."""
    roster = default_roster()
    general = roster.agent(None, "general")
    changed = roster.with_agent(replace(general, tools=(*general.tools, "hold", "trip", "chat_send")))
    ruins = Scenario("ruins", {"broken": BROKEN}, root="broken")
    return replace(changed, scenarios={**changed.scenarios, "ruins": ruins})


@dataclass(slots=True)
class ApiServer:
    bus: Engine
    url: str
    hasty_url: str
    ann: dict[str, str]
    bob: dict[str, str]
    admin: dict[str, str]

    def client(self, headers: dict[str, str] | None = None, *, hasty: bool = False) -> httpx2.Client:
        url = self.hasty_url if hasty else self.url
        chosen = self.ann if headers is None else headers
        return httpx2.Client(base_url=url, headers=chosen, timeout=30, verify=False)


def shared_engines(kind: str, request: pytest.FixtureRequest) -> NewEngine:
    """Return functions that open engines which outlive a test."""
    if kind == "memory":
        return MemoryBus
    if kind == "sqlite":
        folder = request.getfixturevalue("tmp_path_factory").mktemp("api")
        return lambda: SqliteBus(folder / "log.db")
    if kind == "postgres":
        postgres: PostgresServer = request.getfixturevalue("postgres_server")
        return lambda: connect(f"{postgres.url}?prefix=api{uuid.uuid4().hex}")
    server: RedisServer = request.getfixturevalue("redis_server")
    return lambda: RedisBus(server.url, prefix=uuid.uuid4().hex)


@contextmanager
def api_server(new_engine: NewEngine) -> Iterator[ApiServer]:
    """Run the servers for the duration of a test."""
    served = _Thread(new_engine)
    served.start()
    try:
        yield served.wait()
    finally:
        served.stop()


class _Thread(threading.Thread):
    def __init__(self, new_engine: NewEngine) -> None:
        super().__init__(name="api-server", daemon=True)
        self._new_engine = new_engine
        self._ready = threading.Event()
        self._error: BaseException | None = None
        self._site: ApiServer | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._over = asyncio.Event()

    def run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001 - told to the test, which is in another thread
            self._error = error
        finally:
            self._ready.set()

    def wait(self) -> ApiServer:
        self._ready.wait(DEADLINE_S * 3)
        if self._site is None:
            raise AssertionError("the servers did not start") from self._error
        return self._site

    def stop(self) -> None:
        if self._loop is not None and self.is_alive():
            self._loop.call_soon_threadsafe(self._over.set)
        self.join(DEADLINE_S * 3)
        assert not self.is_alive(), "the servers did not stop"
        if self._error is not None:
            raise AssertionError("the servers failed") from self._error

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        bus = self._new_engine()
        async with _at_work(bus), _gateway(bus, PATIENT) as url, _gateway(bus, HASTY) as hasty_url:
            keys = [await create_key(Log(bus), (f"user:{name}",)) for name in ("ann", "bob")]
            ann, bob = ({"authorization": f"Bearer {made.text}"} for made in keys)
            self._site = ApiServer(bus, url, hasty_url, ann, bob, ADMIN)
            self._ready.set()
            await self._over.wait()
        await bus.aclose()


@asynccontextmanager
async def _at_work(bus: Engine) -> AsyncIterator[None]:
    runner = TeamRunner(team(), ToolRegistry([*STANDARD, hold, trip]), kind="demo", model=DemoModel())
    runners = {name: runner for name in runner.agents() if name != "broken"}
    service = WorkerService(bus, {**runners, "broken": FailingRunner(RuntimeError("broken"))}, lease_s=LEASE_S)
    task = asyncio.create_task(service.run())
    try:
        yield
    finally:
        draining = asyncio.create_task(service.drain(0.0))
        await asyncio.wait_for(task, DEADLINE_S)
        draining.cancel()
        await runner.aclose()


@asynccontextmanager
async def _gateway(bus: Engine, limits: GatewayLimits) -> AsyncIterator[str]:
    gateway = Gateway(bus, access=ACCESS, limits=limits, catalogue=Catalogue(Registry.of(team()), kind="demo"))
    listener = listen("127.0.0.1", 0)
    port = listener.getsockname()[1]
    task = asyncio.create_task(gateway.serve([listener]))
    await until(lambda: gateway.started)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        gateway.drain()
        await task
