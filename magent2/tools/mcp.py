"""MCP servers: programs or addresses that offer tools.

A process connects to a server when one of its tools is first needed, and stays connected. A server that cannot be
reached has no tools. The connection is tried again after `RETRY_S`, and a turn waits at most `CONNECT_MAX_S` for it.

`grants_of` in `registry.py` decides which of their tools an agent may use. The model sees the tool `files.read` as
`files__read`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from agents import FunctionTool
from agents.mcp import (
    MCPServer,
    MCPServerStdio,
    MCPServerStdioParams,
    MCPServerStreamableHttp,
    MCPServerStreamableHttpParams,
    MCPUtil,
)

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

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as McpTool

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
class _ConnectedServer:
    """A connected server and its tools."""

    server: _Stdio | _Http
    functions: Mapping[str, FunctionTool]  # by the server's own names


@dataclass(slots=True)
class _Connection:
    """One server on one event loop. One task opens and closes it, as the MCP client requires."""

    facts: ServerFacts
    loop: asyncio.AbstractEventLoop
    connected: _ConnectedServer | None = None
    task: asyncio.Task[None] | None = None
    close_requested: asyncio.Event = field(default_factory=asyncio.Event)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    retry_at: float = 0.0

    async def get(self) -> _ConnectedServer | None:
        """The connected server; `None` if it cannot be reached now."""
        async with self.lock:
            is_running = self.task is not None and not self.task.done()
            if self.connected is not None and not self.connected.server.failed and is_running:
                return self.connected
            if time.monotonic() < self.retry_at:
                return None
            await self._disconnect()
            self.connected = await self._connect()
            return self.connected

    async def close(self) -> None:
        async with self.lock:
            await self._disconnect()

    async def _connect(self) -> _ConnectedServer | None:
        self.close_requested = asyncio.Event()
        ready: asyncio.Future[_ConnectedServer] = self.loop.create_future()
        self.task = asyncio.create_task(self._run(ready, self.close_requested), name=f"mcp-{self.facts.name}")
        await asyncio.wait((ready, self.task), return_when=asyncio.FIRST_COMPLETED)
        if ready.done() and not ready.cancelled():
            return ready.result()
        self.retry_at = time.monotonic() + RETRY_S
        return None

    async def _run(self, ready: asyncio.Future[_ConnectedServer], close_requested: asyncio.Event) -> None:
        """Connect, set `ready`, and stay connected until `close_requested` is set."""
        try:
            server = make_server(self.facts)
            try:
                async with asyncio.timeout(CONNECT_MAX_S):
                    await server.connect()  # type: ignore[no-untyped-call]
                    tools = await server.list_tools()
                ready.set_result(_connected(self.facts, server, tools))
                await close_requested.wait()
            finally:
                await server.cleanup()  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001  a server may fail in any way; agents continue without its tools
            facts = {"server": self.facts.name, "retry_in_s": RETRY_S, "error": f"{type(error).__name__}: {error}"}
            log.error("cannot connect to an MCP server; its tools are missing", extra=facts)  # noqa: TRY400

    async def _disconnect(self) -> None:
        task, self.task, self.connected = self.task, None, None
        if task is None:
            return
        self.close_requested.set()
        _, late = await asyncio.wait({task}, timeout=CLOSE_MAX_S)
        if late:
            log.error("an MCP server did not close in time", extra={"server": self.facts.name})
            task.cancel()
            await asyncio.wait({task}, timeout=CLOSE_MAX_S)


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
        return [self._definition(*function) for function in await self._granted(grants)]

    async def _granted(self, grants: Grants) -> list[tuple[str, str, FunctionTool]]:
        servers = await asyncio.gather(*(self._connect(name) for name in grants))
        functions: dict[str, tuple[str, str, FunctionTool]] = {}
        for (name, granted), server in zip(grants.items(), servers, strict=True):
            for tool, function in (server.functions if server is not None else {}).items():
                if granted is not None and tool not in granted:
                    continue
                if function.name in functions:
                    log.warning("two MCP tools have one name", extra={"server": name, "tool": tool})
                else:
                    functions[function.name] = name, tool, function
        return list(functions.values())

    def _definition(self, server: str, tool: str, function: FunctionTool) -> ToolDefinition:
        async def execute(raw: ToolArguments, context: ToolExecutionContext) -> ToolExecutionResult[str]:
            text = await self.call(server, tool, dict(raw))
            return ToolExecutionResult(text, text)

        signature = ToolSignature(function.name, function.description, function.params_json_schema)
        return ToolDefinition(signature, {"type": "string"}, execute)

    async def call(self, server: str, tool: str, arguments: JsonObject) -> str:
        """Run a tool and return its text. The caller has checked that the agent may use it."""
        connected = await self._connect(server)
        if connected is None:
            raise McpFailed(f"the MCP server {server!r} cannot be used now; try again in {RETRY_S:g} s")
        if tool not in connected.functions:
            names = ", ".join(connected.functions) or "none"
            raise UnknownTool(f"the MCP server {server!r} has no tool {tool[:80]!r}; its tools: {names}")
        check_arguments(f"{server}.{tool}", connected.functions[tool].params_json_schema, arguments)
        return text_of(await connected.server.call_tool(tool, arguments))

    async def aclose(self) -> None:
        """Close the servers that were opened on this event loop."""
        loop = asyncio.get_running_loop()
        own = [name for name, connection in self._connections.items() if connection.loop is loop]
        await asyncio.gather(*(self._connections.pop(name).close() for name in own))

    async def _connect(self, name: str) -> _ConnectedServer | None:
        facts = self._facts.get(name)
        if facts is None:
            log.warning("an agent names an MCP server that is not configured", extra={"server": name})
            return None
        connection, loop = self._connections.get(name), asyncio.get_running_loop()
        if connection is None or connection.facts != facts or connection.loop is not loop:
            self._connections[name] = _Connection(facts, loop)
            if connection is not None and connection.loop is loop:
                await connection.close()
        return await self._connections[name].get()


def make_server(facts: ServerFacts) -> _Stdio | _Http:
    if facts.url is not None:
        http: MCPServerStreamableHttpParams = {
            "url": facts.url,
            "headers": dict(facts.headers),
            "timeout": CONNECT_MAX_S,
        }
        return _Http(http, name=facts.name, cache_tools_list=True, client_session_timeout_seconds=CALL_MAX_S)
    if not facts.command:
        raise InvalidInput(f"MCP server {facts.name!r} has neither a command nor a url")
    program, *arguments = facts.command
    stdio: MCPServerStdioParams = {"command": program, "args": arguments, "env": dict(facts.env)}
    return _Stdio(stdio, name=facts.name, cache_tools_list=True, client_session_timeout_seconds=CALL_MAX_S)


class _ErrorResults(MCPServer):
    """Raises results that are errors as `McpFailed`. A call that gets no result marks the connection as failed."""

    failed = False

    async def call_tool(
        self, tool_name: str, arguments: JsonObject | None, meta: JsonObject | None = None
    ) -> CallToolResult:
        try:
            result = await super().call_tool(tool_name, arguments, meta)  # type: ignore[safe-super]
        except Exception:
            self.failed = True
            raise
        if getattr(result, "is_error", None) or getattr(result, "isError", None):
            raise McpFailed(text_of(result) or "the tool failed without a message")
        return result


class _Stdio(_ErrorResults, MCPServerStdio):
    pass


class _Http(_ErrorResults, MCPServerStreamableHttp):
    pass


def _connected(facts: ServerFacts, server: _Stdio | _Http, tools: Sequence[McpTool]) -> _ConnectedServer:
    if len(tools) > TOOLS_MAX:
        log.warning("an MCP server offers too many tools", extra={"server": facts.name, "tools": len(tools)})
    allowed = [tool for tool in tools[:TOOLS_MAX] if facts.tools is None or tool.name in facts.tools]
    return _ConnectedServer(server, {tool.name: _function(facts.name, server, tool) for tool in allowed})


def _function(name: str, server: MCPServer, tool: McpTool) -> FunctionTool:
    def explain(context: object, error: Exception) -> str:
        return f"{name}.{tool.name} failed: {error}"

    return MCPUtil.to_function_tool(
        tool,
        server,
        convert_schemas_to_strict=False,
        failure_error_function=explain,
        tool_name_override=model_name(name, tool.name),
    )


def text_of(result: CallToolResult) -> str:
    """The text of a result; a part that is not text is replaced by its type in brackets."""
    parts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
    return "\n".join(parts)
