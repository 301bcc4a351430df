"""MCP servers: programs or addresses that offer tools.

A server is connected when one of its tools is first needed, once per process, and stays connected. A server that cannot
be reached has no tools; it is tried again after `RETRY_S`, and a turn waits at most `CONNECT_MAX_S` for it.

`grants_of` in `registry.py` says which of their tools an agent may use. A model knows a tool `files.read` as
`files__read`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from agents import FunctionTool
from agents.mcp import MCPServer, MCPServerStdio, MCPServerStreamableHttp, MCPUtil

from magent2.errors import InvalidInput, Magent2Error, UnknownTool
from magent2.models.json_types import JsonObject
from magent2.tools.definition import (
    ToolArguments,
    ToolDefinition,
    ToolExecutionContext,
    ToolExecutionResult,
    ToolSignature,
    check_arguments,
)
from magent2.tools.registry import Grants

CONNECT_MAX_S = 10.0  # from the start of a server to the list of its tools
CALL_MAX_S = 120.0
RETRY_S = 30.0  # how long a server that failed is not tried again
CLOSE_MAX_S = 10.0
TOOLS_MAX = 200  # of one server
NAME_MAX_CHARS = 64  # limit of models for the name of a function

log = logging.getLogger(__name__)


class ServerFacts(Protocol):
    """How to reach a server: a program to start, or an address."""

    @property
    def name(self) -> str: ...
    @property
    def command(self) -> Sequence[str]: ...
    @property
    def url(self) -> str | None: ...
    @property
    def env(self) -> Mapping[str, str]: ...
    @property
    def headers(self) -> Mapping[str, str]: ...
    @property
    def tools(self) -> Sequence[str] | None: ...


class McpFailed(Magent2Error):
    """A server failed to run a tool."""


def model_name(server: str, tool: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{tool}")[:NAME_MAX_CHARS]


@dataclass(slots=True)
class _Open:
    """A connected server and its tools."""

    server: _Stdio | _Http
    functions: Mapping[str, FunctionTool]  # by the server's own names


@dataclass(slots=True)
class _Connection:
    """One server on one event loop. One task opens and closes it, as the MCP client requires."""

    facts: ServerFacts
    loop: asyncio.AbstractEventLoop
    opened: _Open | None = None
    holding: asyncio.Task[None] | None = None
    leave: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    retry_at: float = 0.0

    async def get(self) -> _Open | None:
        """The connected server; `None` if it cannot be reached now."""
        async with self.lock:
            if self.opened is not None and not self.opened.server.failed and not _over(self.holding):
                return self.opened
            if time.monotonic() < self.retry_at:
                return None
            await self._let_go()
            self.opened = await self._connect()
            return self.opened

    async def close(self) -> None:
        async with self.lock:
            await self._let_go()

    async def _connect(self) -> _Open | None:
        self.leave = asyncio.Event()
        ready: asyncio.Future[_Open] = self.loop.create_future()
        self.holding = asyncio.create_task(self._hold(ready, self.leave), name=f"mcp-{self.facts.name}")
        waited: set[asyncio.Future[Any]] = {ready, self.holding}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if ready.done() and not ready.cancelled():
            return ready.result()
        self.retry_at = time.monotonic() + RETRY_S
        return None

    async def _hold(self, ready: asyncio.Future[_Open], leave: asyncio.Event) -> None:
        try:
            await self._serve(make_server(self.facts), ready, leave)
        except Exception as error:  # noqa: BLE001  a server may fail in any way; agents continue without its tools
            facts = {"server": self.facts.name, "retry_in_s": RETRY_S, "error": f"{type(error).__name__}: {error}"}
            log.error("cannot connect to an MCP server; its tools are missing", extra=facts)  # noqa: TRY400

    async def _serve(self, server: _Stdio | _Http, ready: asyncio.Future[_Open], leave: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(CONNECT_MAX_S):
                await server.connect()  # type: ignore[no-untyped-call]
                listed = await server.list_tools()
            ready.set_result(_opened(self.facts, server, listed))
            await leave.wait()
        finally:
            await server.cleanup()  # type: ignore[no-untyped-call]

    async def _let_go(self) -> None:
        held, self.holding, self.opened = self.holding, None, None
        if held is None:
            return
        self.leave.set()
        _, late = await asyncio.wait({held}, timeout=CLOSE_MAX_S)
        if late:
            log.error("an MCP server did not close in time", extra={"server": self.facts.name})
            held.cancel()
            await asyncio.wait({held}, timeout=CLOSE_MAX_S)


def _over(task: asyncio.Task[None] | None) -> bool:
    return task is None or task.done()


class McpServers:
    """The configured servers, for all agents of a process."""

    def __init__(self, servers: Mapping[str, ServerFacts] | None = None) -> None:
        self._facts: Mapping[str, ServerFacts] = dict(servers or {})
        self._connections: dict[str, _Connection] = {}

    def follow(self, servers: Mapping[str, ServerFacts]) -> None:
        """Use another configuration. A server whose settings changed is connected again."""
        self._facts = dict(servers)

    async def tools(self, grants: Grants) -> list[FunctionTool]:
        """The granted tools of the servers that can be reached now, under the names that a model knows."""
        return [function for _, _, function in await self._granted(grants)]

    async def definitions(self, grants: Grants) -> list[ToolDefinition]:
        """The same tools as Python blocks call them."""
        return [self._definition(*found) for found in await self._granted(grants)]

    async def _granted(self, grants: Grants) -> list[tuple[str, str, FunctionTool]]:
        found = await asyncio.gather(*(self._open(name) for name in grants))
        functions: dict[str, tuple[str, str, FunctionTool]] = {}
        for (name, granted), opened in zip(grants.items(), found, strict=True):
            for tool, function in (opened.functions if opened is not None else {}).items():
                if granted is not None and tool not in granted:
                    continue
                if function.name in functions:
                    log.warning("two MCP tools have one name", extra={"server": name, "tool": tool})
                else:
                    functions[function.name] = name, tool, function
        return list(functions.values())

    def _definition(self, server: str, tool: str, function: FunctionTool) -> ToolDefinition:
        async def execute(given: ToolArguments, context: ToolExecutionContext) -> ToolExecutionResult[str]:
            text = await self.call(server, tool, dict(given))
            return ToolExecutionResult(text, text)

        signature = ToolSignature(function.name, function.description, function.params_json_schema)
        return ToolDefinition(signature, {"type": "string"}, execute)

    async def call(self, server: str, tool: str, arguments: JsonObject) -> str:
        """Run a tool and return its text. The caller has checked that the agent may use it."""
        opened = await self._open(server)
        if opened is None:
            raise McpFailed(f"the MCP server {server!r} cannot be used now; try again in {RETRY_S:g} s")
        if tool not in opened.functions:
            there = ", ".join(opened.functions) or "none"
            raise UnknownTool(f"the MCP server {server!r} has no tool {tool[:80]!r}; there is: {there}")
        check_arguments(f"{server}.{tool}", opened.functions[tool].params_json_schema, arguments)
        return text_of(await opened.server.call_tool(tool, arguments))

    async def aclose(self) -> None:
        """Close the servers that were opened on this event loop."""
        loop = asyncio.get_running_loop()
        own = [name for name, connection in self._connections.items() if connection.loop is loop]
        await asyncio.gather(*(self._connections.pop(name).close() for name in own))

    async def _open(self, name: str) -> _Open | None:
        facts = self._facts.get(name)
        if facts is None:
            log.warning("an agent names an MCP server that is not configured", extra={"server": name})
            return None
        known, loop = self._connections.get(name), asyncio.get_running_loop()
        if known is None or known.facts != facts or known.loop is not loop:
            self._connections[name] = _Connection(facts, loop)
            if known is not None and known.loop is loop:
                await known.close()
        return await self._connections[name].get()


def make_server(facts: ServerFacts) -> _Stdio | _Http:
    if facts.url is not None:
        http: Any = {"url": facts.url, "headers": dict(facts.headers), "timeout": CONNECT_MAX_S}
        return _Http(http, name=facts.name, cache_tools_list=True, client_session_timeout_seconds=CALL_MAX_S)
    if not facts.command:
        raise InvalidInput(f"MCP server {facts.name!r} has neither a command nor a url")
    program, *arguments = facts.command
    stdio: Any = {"command": program, "args": arguments, "env": dict(facts.env)}
    return _Stdio(stdio, name=facts.name, cache_tools_list=True, client_session_timeout_seconds=CALL_MAX_S)


class _Failing(MCPServer):
    """Raises results that are errors. A call that gets no result marks the connection as failed."""

    failed = False

    async def call_tool(self, *arguments: Any, **options: Any) -> Any:
        try:
            result = await super().call_tool(*arguments, **options)  # type: ignore[safe-super]
        except Exception:
            self.failed = True
            raise
        if getattr(result, "is_error", None) or getattr(result, "isError", None):
            raise McpFailed(text_of(result) or "the tool failed without a message")
        return result


class _Stdio(_Failing, MCPServerStdio):
    pass


class _Http(_Failing, MCPServerStreamableHttp):
    pass


def _opened(facts: ServerFacts, server: _Stdio | _Http, listed: Sequence[Any]) -> _Open:
    if len(listed) > TOOLS_MAX:
        log.warning("an MCP server offers too many tools", extra={"server": facts.name, "tools": len(listed)})
    allowed = [tool for tool in listed[:TOOLS_MAX] if facts.tools is None or tool.name in facts.tools]
    functions = {tool.name: _function(facts.name, server, tool) for tool in allowed}
    return _Open(server, functions)


def _function(name: str, server: MCPServer, tool: Any) -> FunctionTool:
    def explain(context: Any, error: Exception) -> str:
        return f"{name}.{tool.name} failed: {error}"

    return MCPUtil.to_function_tool(
        tool,
        server,
        convert_schemas_to_strict=False,
        failure_error_function=explain,
        tool_name_override=model_name(name, tool.name),
    )


def text_of(result: Any) -> str:
    """The text of a result; a part that is not text is replaced by its type in brackets."""
    parts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
    return "\n".join(parts)
