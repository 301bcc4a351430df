"""What the benchmark asks of a contestant, the same for all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from bench.peers.http_client import HttpClient
from bench.peers.processes import Process
from bench.peers.script import Task
from bench.support.redis_server import free_port

SERVERS = Path(__file__).parent / "servers"
PLACEHOLDER = "unused"  # the scripted model takes any key


class Unavailable(RuntimeError):
    """The contestant cannot run on this machine. The message says why."""


@dataclass(frozen=True, slots=True)
class Site:
    """Where one start of a contestant lives: a new folder, its environment, the port of the model."""

    folder: Path
    environment: Path  # with bin/python
    model_port: int
    port: int

    def program(self, name: str) -> str:
        return str(self.environment / "bin" / name)

    def variables(self) -> dict[str, str]:
        """The model's address, and every telemetry off: the network is not part of the measurement."""
        return {
            "BENCH_MODEL_PORT": str(self.model_port),
            "BENCH_PORT": str(self.port),
            "OPENAI_API_KEY": PLACEHOLDER,
            "OPENAI_BASE_URL": f"http://127.0.0.1:{self.model_port}/v1",
            "OPENAI_AGENTS_DISABLE_TRACING": "1",
            "AGNO_TELEMETRY": "false",
            "LANGSMITH_TRACING": "false",
            "LANGGRAPH_CLI_NO_ANALYTICS": "1",
            "RESTATE_DISABLE_TELEMETRY": "true",
            "DO_NOT_TRACK": "1",
        }


class Contestant(ABC):
    """One framework on one store.

    `stores` are servers that hold its data and survive the kill. `serving` is what the kill hits.
    `continues` says whether an unfinished run goes on after a restart without a request of the client.
    `streams` says whether the pieces of an answer reach the client while the model sends them.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    environment: ClassVar[str | None]  # the requirements file; None is the project's own environment
    packages: ClassVar[tuple[str, ...]]  # whose versions the report names
    continues: ClassVar[bool] = False
    streams: ClassVar[bool] = True
    ready_path: ClassVar[str] = "/health"
    token: ClassVar[str | None] = None

    def __init__(self, site: Site) -> None:
        self.site = site
        self.client = HttpClient(site.port, self.token)
        self.stores: list[Process] = []
        self.serving: list[Process] = []

    async def start(self) -> None:
        """Raises DidNotStart or Unavailable."""
        await self.start_stores()
        self.serving = self.programs()
        await self.serve()

    async def serve(self) -> None:
        for process in self.serving:
            process.start()
        await self.serving[0].ready(self.client, self.ready_path)

    def kill(self) -> None:
        for process in self.serving:
            process.kill()

    def stop(self) -> None:
        for process in [*self.serving, *reversed(self.stores)]:
            process.stop()

    def pids(self) -> list[int]:
        return [process.pid for process in [*self.serving, *self.stores] if process.pid is not None]

    async def start_stores(self) -> None:
        """Start the servers that hold the data; none for a contestant whose store is a file."""
        self.stores = []

    def process(self, name: str, *command: str, **variables: str) -> Process:
        """A program in the folder of the site, with a log that survives restarts."""
        everything = {**self.site.variables(), **variables}
        return Process(command, self.site.folder, self.site.folder / f"{name}.log", everything)

    @abstractmethod
    def programs(self) -> list[Process]:
        """The serving processes; the first one answers on the port of the site."""

    @abstractmethod
    def ask(self, task: Task) -> AsyncIterator[str]:
        """Start a conversation with a message; the pieces of the answer until it is complete.

        Raises Disconnected when the server goes away, Refused when it answers with an error.
        """

    @abstractmethod
    def ask_again(self, task: Task) -> AsyncIterator[str]:
        """What the documentation tells a client to do about a run that was cut off and does not go on."""

    @abstractmethod
    async def has_message(self, task: Task) -> bool:
        """Whether the message of the user is stored."""

    def follow(self, task: Task) -> AsyncIterator[str]:
        """The answer of a run that goes on by itself, from its first piece. Only if `continues`."""
        raise NotImplementedError(f"a run of {self.name} does not go on by itself")


async def deltas(client: HttpClient, method: str, path: str, body: object = None) -> AsyncIterator[str]:
    """The stream of the routes that were written for the comparison: `delta` for a piece, `output` at the end."""
    async with aclosing(client.events(method, path, body)) as frames:
        async for frame in frames:
            said = frame.json()
            if "output" in said:
                return
            yield said["delta"]
    raise RuntimeError(f"{path} ended without an output")


def new_port() -> int:
    return free_port()
