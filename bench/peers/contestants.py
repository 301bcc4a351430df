"""The contestants: how a client talks to each of them. `bench/peers/README.md` says why so."""

from __future__ import annotations

import asyncio
import getpass
import os
import shutil
import subprocess
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

from bench.peers.contestant import SERVERS, Contestant, Unavailable, deltas, new_port
from bench.peers.http_client import Disconnected, HttpClient, Refused
from bench.peers.processes import START_LIMIT_S, Process
from bench.peers.script import Task
from bench.support.redis_server import OPTIONS as REDIS_OPTIONS

POLL_S = 0.5  # where a client has to ask for the state of a run
CONCURRENT_RUNS = 64  # what a contestant must be allowed to do at a time, where it has a setting for that
USER = "bench"


# --- PostgreSQL --------------------------------------------------------------------------------------------------


async def postgres_server(folder: Path, port: int) -> Process:
    """A PostgreSQL server with its default settings and a database `bench`. Raises Unavailable."""
    initdb, postgres, createdb = (_postgres_program(name) for name in ("initdb", "postgres", "createdb"))
    user = "postgres" if os.getuid() == 0 else getpass.getuser()  # it refuses to run as root
    data = folder / "postgres"
    data.mkdir(mode=0o700)
    shutil.chown(data, user, user)
    for parent in (folder, folder.parent):
        parent.chmod(0o755)  # so that the user of the server reaches its folder
    other = user if os.getuid() == 0 else None
    _run(initdb, "--pgdata", str(data), "--auth", "trust", "--username", USER, user=other, folder=data)
    options = ("-p", str(port), "-c", "listen_addresses=127.0.0.1", "-k", "")
    server = Process((postgres, "-D", str(data), *options), data, folder / "postgres.log", user=other)
    server.start()
    deadline = time.monotonic() + START_LIMIT_S
    while True:
        try:
            _run(createdb, "-h", "127.0.0.1", "-p", str(port), "-U", USER, "bench", user=other, folder=data)
            return server
        except Unavailable:
            if time.monotonic() > deadline:
                server.kill()
                raise
        await asyncio.sleep(POLL_S)


def _run(*command: str, user: str | None, folder: Path) -> None:
    done = subprocess.run(
        command, user=user, cwd=folder, capture_output=True, text=True, timeout=START_LIMIT_S, check=False
    )
    if done.returncode:
        raise Unavailable(f"{Path(command[0]).name} failed: {done.stderr.strip()[-300:]}")


def _postgres_program(name: str) -> str:
    debian = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))  # not on PATH there
    found = shutil.which(name) or (str(debian[-1]) if debian else None)
    if found is None:
        raise Unavailable(f"no {name} on PATH; install PostgreSQL")
    return found


class OnPostgres(Contestant):
    """A contestant with a PostgreSQL server."""

    async def start_stores(self) -> None:
        self._postgres_port = new_port()
        self.stores = [await postgres_server(self.site.folder, self._postgres_port)]

    def postgres_url(self, driver: str) -> str:
        return f"{driver}://{USER}@127.0.0.1:{self._postgres_port}/bench"


# --- magent2 -----------------------------------------------------------------------------------------------------


class Magent2OnSqlite(Contestant):
    """`magent2 serve`: gateway and worker in one process, on its default store."""

    name = "magent2"
    title = "magent2 on SQLite"
    environment = None
    packages = ("magent2-runtime", "openai-agents")
    continues = True
    ready_path = "/ready"
    token = "benchmark-token-of-no-worth"

    def programs(self) -> list[Process]:
        return [self.command("serve", "--port", str(self.site.port))]

    def bus(self) -> str:
        return f"sqlite:///{self.site.folder / 'log.db'}"

    def command(self, name: str, *options: str) -> Process:
        config = str(SERVERS / "magent2" / "magent2.toml")
        variables = {"MAGENT2_DATA_DIR": str(self.site.folder), "MAGENT2_TOKEN": str(self.token)}
        command = (self.site.program("magent2"), name, "--config", config, "--bus", self.bus(), *options)
        return self.process(name, *command, **variables)

    async def ask(self, task: Task) -> AsyncIterator[str]:
        envelope = {
            "id": f"m-{task.conversation}",
            "conversation_id": task.conversation,
            "sender": f"user:{USER}",
            "recipient": "agent:bench",
            "content": task.message(),
        }
        sent = await self.client.json("POST", "/send", envelope)
        async for piece in self._answer(task, sent["seq"]):
            yield piece

    def follow(self, task: Task) -> AsyncIterator[str]:
        return self._answer(task, 0)

    async def ask_again(self, task: Task) -> AsyncIterator[str]:
        async for piece in self.ask(task):  # the id of the envelope makes it harmless
            yield piece

    async def has_message(self, task: Task) -> bool:
        try:
            page = await self.client.json("GET", f"/api/sdk/session/{task.conversation}/events?since=0&limit=5")
        except Refused:
            return False
        return any(task.conversation in str(event.get("text")) for event in page["events"])

    async def _answer(self, task: Task, since: int) -> AsyncIterator[str]:
        async with aclosing(self.client.events("GET", f"/stream/{task.conversation}?since={since}")) as frames:
            async for frame in frames:
                if frame.event == "token":
                    yield frame.json()["text"]
                elif frame.event == "output":
                    return
                elif frame.event == "run" and frame.json()["status"] in ("failed", "stopped"):
                    raise RuntimeError(f"the run ended: {frame.data[:500]}")
        raise Disconnected("the stream ended")


class Magent2OnRedis(Magent2OnSqlite):
    """A gateway and a worker, on a Redis server with an append-only file."""

    name = "magent2-redis"
    title = "magent2 on Redis"

    async def start_stores(self) -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise Unavailable("no redis-server on PATH; run scripts/ensure redis")
        self._redis_port = new_port()
        command = (program, "--port", str(self._redis_port), "--dir", str(self.site.folder), *REDIS_OPTIONS)
        redis = self.process("redis", *command)
        redis.start()
        self.stores = [redis]

    def bus(self) -> str:
        return f"redis://127.0.0.1:{self._redis_port}/0"

    def programs(self) -> list[Process]:
        return [self.command("gateway", "--port", str(self.site.port)), self.command("worker")]


# --- the Agents SDK alone ----------------------------------------------------------------------------------------


class AgentsSdk(Contestant):
    """The SDK behind a route of ours, with its SQLite session."""

    name = "agents-sdk"
    title = "OpenAI Agents SDK alone"
    environment = "agents_sdk"
    packages = ("openai-agents", "openai", "fastapi", "uvicorn")

    def programs(self) -> list[Process]:
        return [self.process("server", self.site.program("python"), str(SERVERS / "agents_sdk.py"))]

    def ask(self, task: Task) -> AsyncIterator[str]:
        return deltas(self.client, "POST", f"/conversations/{task.conversation}/messages", {"text": task.message()})

    def ask_again(self, task: Task) -> AsyncIterator[str]:
        return self.ask(task)  # a run cannot be continued from a session; the user sends the message once more

    async def has_message(self, task: Task) -> bool:
        return task.conversation in str(await self.client.json("GET", f"/conversations/{task.conversation}"))


# --- agno --------------------------------------------------------------------------------------------------------


class Agno(Contestant):
    """AgentOS on SQLite with `checkpoint="tool-batch"`; a client continues a run by its id."""

    name = "agno"
    title = "agno AgentOS"
    environment = "agno"
    packages = ("agno", "openai", "fastapi", "uvicorn")

    def programs(self) -> list[Process]:
        return [self.process("server", self.site.program("python"), str(SERVERS / "agno_os.py"))]

    async def start(self) -> None:
        self._runs: dict[str, str] = {}  # by conversation: the client knows them from the first event
        await super().start()

    async def ask(self, task: Task) -> AsyncIterator[str]:
        form = {"message": task.message(), "stream": "true", "session_id": task.conversation, "user_id": USER}
        async for piece in self._run(task, "/agents/bench/runs", form):
            yield piece

    async def ask_again(self, task: Task) -> AsyncIterator[str]:
        if task.conversation in self._runs and await self.has_message(task):
            path = f"/agents/bench/runs/{self._runs[task.conversation]}/continue"
            pieces = self._run(task, path, {"stream": "true", "session_id": task.conversation, "user_id": USER})
        else:
            pieces = self.ask(task)
        async for piece in pieces:
            yield piece

    async def has_message(self, task: Task) -> bool:
        try:
            runs = await self.client.json("GET", f"/sessions/{task.conversation}/runs?type=agent")
        except Refused:
            return False
        return task.conversation in str(runs)

    async def _run(self, task: Task, path: str, form: dict[str, str]) -> AsyncIterator[str]:
        async with aclosing(self.client.events("POST", path, form=form)) as frames:
            async for frame in frames:
                said = frame.json()
                if "run_id" in said:
                    self._runs.setdefault(task.conversation, said["run_id"])
                if frame.event == "RunContent":
                    yield said.get("content") or ""
                elif frame.event == "RunError":
                    raise RuntimeError(frame.data[:500])
                elif frame.event == "RunCompleted":
                    return
        raise RuntimeError("the stream ended without RunCompleted")


class AgnoWithQueue(OnPostgres, Agno):
    """The same with runs in the background through the durable queue, which needs PostgreSQL or Redis."""

    name = "agno-queue"
    title = "agno AgentOS, queue"
    continues = True

    def programs(self) -> list[Process]:
        command = (self.site.program("python"), str(SERVERS / "agno_os.py"))
        return [self.process("server", *command, BENCH_DATABASE_URL=self.postgres_url("postgresql+psycopg"))]

    async def ask(self, task: Task) -> AsyncIterator[str]:
        form = {"message": task.message(), "session_id": task.conversation, "user_id": USER}
        async for piece in self._run(task, "/agents/bench/runs", {**form, "stream": "true", "background": "true"}):
            yield piece

    async def follow(self, task: Task) -> AsyncIterator[str]:
        run = self._runs.get(task.conversation)
        if run is None:  # the server died before it could tell the client
            (found, *_) = await self.client.json("GET", f"/sessions/{task.conversation}/runs?type=agent")
            run = found["run_id"]
        while True:
            state = await self.client.json("GET", f"/agents/bench/runs/{run}?session_id={task.conversation}")
            if state["status"] == "COMPLETED":
                yield state["content"]
                return
            if state["status"] not in ("PENDING", "RUNNING"):
                raise RuntimeError(f"the run is {state['status']}")
            await asyncio.sleep(POLL_S)


# --- google-adk --------------------------------------------------------------------------------------------------


class Adk(Contestant):
    """`adk api_server` with sessions in SQLite and a resumable app; a client resumes an invocation by its id."""

    name = "google-adk"
    title = "google-adk on SQLite"
    environment = "adk"
    packages = ("google-adk", "openai", "fastapi", "uvicorn")
    ready_path = "/list-apps"

    def programs(self) -> list[Process]:
        options = ("--port", str(self.site.port), "--session_service_uri", self.database_url())
        command = (
            self.site.program("adk"),
            "api_server",
            *options,
            "--log_level",
            "warning",
            str(SERVERS / "adk_agents"),
        )
        return [self.process("server", *command)]

    def database_url(self) -> str:
        return f"sqlite+aiosqlite:///{self.site.folder / 'adk.db'}"

    async def start(self) -> None:
        self._invocations: dict[str, str] = {}
        await super().start()

    def _session(self, task: Task) -> str:
        return f"/apps/bench_agent/users/{USER}/sessions/{task.conversation}"

    async def ask(self, task: Task) -> AsyncIterator[str]:
        await self.client.json("POST", self._session(task), {})
        said = {"role": "user", "parts": [{"text": task.message()}]}
        async for piece in self._run(task, {"new_message": said}):
            yield piece

    async def ask_again(self, task: Task) -> AsyncIterator[str]:
        if task.conversation in self._invocations:
            pieces = self._run(task, {"invocation_id": self._invocations[task.conversation]})
        elif await self._has_session(task):
            said = {"role": "user", "parts": [{"text": task.message()}]}
            pieces = self._run(task, {"new_message": said})
        else:
            pieces = self.ask(task)
        async for piece in pieces:
            yield piece

    async def _has_session(self, task: Task) -> bool:
        try:
            await self.client.json("GET", self._session(task))
        except Refused:
            return False
        return True

    async def has_message(self, task: Task) -> bool:
        try:
            session = await self.client.json("GET", self._session(task))
        except Refused:
            return False
        return any(event.get("author") == "user" for event in session["events"])

    async def _run(self, task: Task, body: dict[str, Any]) -> AsyncIterator[str]:
        asked = {"app_name": "bench_agent", "user_id": USER, "session_id": task.conversation, "streaming": True, **body}
        text = ""
        async for frame in self.client.events("POST", "/run_sse", asked):
            said = frame.json()
            if "error" in said:
                raise RuntimeError(frame.data[:500])
            if "invocationId" in said:
                self._invocations.setdefault(task.conversation, said["invocationId"])
            pieces = [part["text"] for part in (said.get("content") or {}).get("parts") or [] if part.get("text")]
            if said.get("partial"):
                for piece in pieces:
                    text += piece
                    yield piece
            elif pieces and not text:  # an answer that was not streamed
                yield "".join(pieces)


class AdkOnPostgres(OnPostgres, Adk):
    """The same with the `DatabaseSessionService` on PostgreSQL."""

    name = "google-adk-postgres"
    title = "google-adk on PostgreSQL"

    def database_url(self) -> str:
        return self.postgres_url("postgresql+asyncpg")


# --- langgraph-api -----------------------------------------------------------------------------------------------


class LangGraph(Contestant):
    """`langgraph dev`: the API server with the in-memory runtime."""

    name = "langgraph"
    title = "langgraph-api, in memory"
    environment = "langgraph"
    packages = ("langgraph-api", "langgraph-runtime-inmem", "langgraph", "langchain", "langchain-openai")
    continues = True  # as far as its state was on disk: it is written every ten seconds
    ready_path = "/ok"

    async def start(self) -> None:
        self._runs: dict[str, str] = {}
        await super().start()

    def programs(self) -> list[Process]:
        for file in (*(SERVERS / "langgraph_app").iterdir(), SERVERS / "work.py"):
            if file.is_file():
                shutil.copy(file, self.site.folder)  # the server looks for the graph in the current folder
        options = ("--no-browser", "--no-reload", "--n-jobs-per-worker", str(CONCURRENT_RUNS))
        command = (self.site.program("langgraph"), "dev", *options, "--port", str(self.site.port))
        return [self.process("server", *command)]

    async def ask(self, task: Task) -> AsyncIterator[str]:
        await self.client.json("POST", "/threads", {"thread_id": _thread(task), "if_exists": "do_nothing"})
        said = {"messages": [{"role": "user", "content": task.message()}]}
        async for piece in self._run(task, said):
            yield piece

    async def ask_again(self, task: Task) -> AsyncIterator[str]:
        # A run without input goes on from the last checkpoint of the thread.
        pieces = self._run(task, None) if await self.has_message(task) else self.ask(task)
        async for piece in pieces:
            yield piece

    async def follow(self, task: Task) -> AsyncIterator[str]:
        """Join the run. Raises Refused if the server does not know it any more."""
        run = self._runs.get(task.conversation, str(uuid.uuid4()))  # a run that never began is unknown too
        state = await self.client.json("GET", f"/threads/{_thread(task)}/runs/{run}/join")
        yield _text_of(state["messages"][-1]["content"])

    async def has_message(self, task: Task) -> bool:
        try:
            state = await self.client.json("GET", f"/threads/{_thread(task)}/state")
        except Refused:
            return False
        return task.conversation in str(state.get("values"))

    async def _run(self, task: Task, said: object) -> AsyncIterator[str]:
        body = {"assistant_id": "bench", "input": said, "stream_mode": ["messages-tuple"]}
        async for frame in self.client.events("POST", f"/threads/{_thread(task)}/runs/stream", body):
            if frame.event == "error":
                raise RuntimeError(frame.data[:500])
            if frame.event == "metadata":
                self._runs[task.conversation] = frame.json()["run_id"]
            elif frame.event == "messages":
                message, _ = frame.json()
                if message["type"] == "AIMessageChunk" and message["content"]:
                    yield _text_of(message["content"])


def _thread(task: Task) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_URL, task.conversation))  # the server takes nothing else


def _text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


# --- DBOS --------------------------------------------------------------------------------------------------------


class DbosOnSqlite(Contestant):
    """A workflow behind a route; DBOS recovers workflows when it is launched."""

    name = "dbos"
    title = "DBOS on SQLite"
    environment = "dbos"
    packages = ("dbos", "openai", "fastapi", "uvicorn")
    continues = True

    def database_url(self) -> str:
        return ""  # the default: a SQLite file in the current folder

    def programs(self) -> list[Process]:
        command = (self.site.program("python"), str(SERVERS / "dbos_app.py"))
        return [self.process("server", *command, BENCH_DATABASE_URL=self.database_url())]

    def ask(self, task: Task) -> AsyncIterator[str]:
        return deltas(self.client, "POST", f"/conversations/{task.conversation}/messages", {"text": task.message()})

    def ask_again(self, task: Task) -> AsyncIterator[str]:
        return self.ask(task)  # the id of the workflow makes it harmless

    def follow(self, task: Task) -> AsyncIterator[str]:
        return deltas(self.client, "GET", f"/conversations/{task.conversation}/stream")

    async def has_message(self, task: Task) -> bool:
        found = await self.client.json("GET", f"/conversations/{task.conversation}")
        return found["status"] is not None


class DbosOnPostgres(OnPostgres, DbosOnSqlite):
    """The same on a PostgreSQL server with its default settings."""

    name = "dbos-postgres"
    title = "DBOS on PostgreSQL"

    def database_url(self) -> str:
        return self.postgres_url("postgresql")


# --- Restate -----------------------------------------------------------------------------------------------------


class Restate(Contestant):
    """A Restate server, and the service that it calls; the kill hits the service."""

    name = "restate"
    title = "Restate"
    environment = "restate"
    packages = ("restate-sdk", "hypercorn", "openai")
    continues = True
    streams = False

    async def start_stores(self) -> None:
        program = self.site.environment / "node_modules" / ".bin" / "restate-server"
        if not program.exists():
            raise Unavailable("the npm package of restate-server is not installed")
        self._admin, ingress, fabric = HttpClient(new_port()), HttpClient(new_port()), new_port()
        self._ingress = ingress
        settings = {
            "RESTATE_LISTEN_MODE": "tcp",
            "RESTATE_ADMIN__BIND_ADDRESS": f"127.0.0.1:{self._admin.port}",
            "RESTATE_INGRESS__BIND_ADDRESS": f"127.0.0.1:{ingress.port}",
            "RESTATE_BIND_ADDRESS": f"127.0.0.1:{fabric}",
            "RESTATE_BASE_DIR": str(self.site.folder / "restate"),
            "RESTATE_LOG_FILTER": "warn",
        }
        server = self.process("restate-server", str(program), "--no-logo", **settings)
        server.start()
        self.stores = [server]
        await server.ready(self._admin, "/health")

    def programs(self) -> list[Process]:
        bind = ("--bind", f"127.0.0.1:{self.site.port}", "--workers", "1")
        command = (self.site.program("python"), "-m", "hypercorn", *bind, "restate_app:app")
        return [self.process("server", *command, PYTHONPATH=str(SERVERS))]

    async def start(self) -> None:
        await super().start()
        await self._admin.json("POST", "/deployments", {"uri": f"http://127.0.0.1:{self.site.port}"})

    async def ask(self, task: Task) -> AsyncIterator[str]:
        yield await self._ingress.json("POST", f"/Conversation/{task.conversation}/message", task.message())

    def ask_again(self, task: Task) -> AsyncIterator[str]:
        return self.ask(task)

    async def has_message(self, task: Task) -> bool:
        return bool(await self._ingress.json("POST", f"/Conversation/{task.conversation}/history"))


CONTESTANTS: tuple[type[Contestant], ...] = (
    Magent2OnSqlite,
    Magent2OnRedis,
    AgentsSdk,
    Agno,
    AgnoWithQueue,
    Adk,
    AdkOnPostgres,
    LangGraph,
    DbosOnSqlite,
    DbosOnPostgres,
    Restate,
)
