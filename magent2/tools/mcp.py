"""MCP servers: programs or addresses that offer tools.

A process connects to a server when one of its tools is first needed, and stays connected. A server that cannot be
reached has no tools. The connection is tried again after `RETRY_S`, and a turn waits at most `CONNECT_MAX_S` for it.

All runs of a process share the connection to a server. A connection that breaks takes no new calls: they open another
one. It is closed after its last running call. So no call ends because a call of another run has failed.

`grants_of` in `registry.py` decides which of their tools an agent may use. The model sees the tool `files.read` as
`files__read`.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeAlias

from agents import FunctionTool
from agents.mcp import (
    MCPServer,
    MCPServerStdio,
    MCPServerStdioParams,
    MCPServerStreamableHttp,
    MCPServerStreamableHttpParams,
    MCPUtil,
)
from mcp import MCPError
from mcp.types import CONNECTION_CLOSED, INTERNAL_ERROR, INVALID_REQUEST, PARSE_ERROR, REQUEST_TIMEOUT

from magent2.errors import ArgumentsError, InvalidInput, Magent2Error, ToolError, UnknownTool
from magent2.models.json_types import JsonObject
from magent2.tools.definition import (
    ToolArguments,
    ToolDefinition,
    ToolExecutionContext,
    ToolExecutionResult,
    ToolSignature,
    check_arguments,
)
from magent2.tools.interface import context_without_scope, current_scope, tool_failure
from magent2.tools.registry import Grants

if TYPE_CHECKING:
    from mcp.types import CallToolResult
    from mcp.types import Tool as McpTool

CONNECT_MAX_S = 10.0  # from the start of a server to the list of its tools
CALL_MAX_S = 120.0
RETRY_S = 30.0  # how long a server that failed is not tried again
CLOSE_MAX_S = 10.0
TOOLS_MAX = 200  # of one server
MCP_REASON_MAX_CHARS = 300  # of the reason why a server cannot be used
IDEMPOTENCY_KEY = "magent2/idempotency-key"  # in `_meta` of a call: the same in every attempt at it
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
    """A server cannot be used, or answered a call with an error of the protocol."""


class McpToolError(ToolError):
    """A tool of a server failed. Its text is the result that the server gave for the model."""


Reconnect: TypeAlias = "Callable[[], Awaitable[_ConnectedServer | None]]"  # to the server as configured now


def model_name(server: str, tool: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]", "_", f"{server}__{tool}")[:NAME_MAX_CHARS]


@dataclass(slots=True)
class _ConnectedServer:
    """A connected server and its tools."""

    server: _Stdio | _Http
    functions: Mapping[str, FunctionTool]  # by the server's own names


@dataclass(slots=True)
class _Connection:
    """One server on one event loop. For each connection, one task opens and closes it, as the MCP client requires."""

    facts: ServerFacts
    loop: asyncio.AbstractEventLoop
    reconnect: Reconnect
    connected: _ConnectedServer | None = None
    # The tasks of all connections that are not closed yet, with the event that closes each: the current one, and broken
    # ones that still have running calls.
    tasks: dict[asyncio.Task[None], asyncio.Event] = field(default_factory=dict)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    retry_at: float = 0.0
    failure: Exception | None = None  # why the last connection could not be opened
    replaced: bool = False  # by one with another configuration

    async def get(self) -> _ConnectedServer | None:
        """The connected server; `None` if it cannot be reached now."""
        async with self.lock:
            if self.connected is not None and not self.connected.server.retired:
                return self.connected
            if time.monotonic() < self.retry_at:
                return None
            self.connected = await self._connect()
            if self.replaced:  # meanwhile
                self.replace()
            return self.connected

    def replace(self) -> None:
        """Take no new calls, and close the connection after the running ones: another `_Connection` takes its place."""
        self.replaced = True
        if self.connected is not None:
            self.connected.server.retire()

    async def close(self) -> None:
        """Close all connections now, also those with running calls."""
        async with self.lock:
            self.connected = None
            for close_requested in self.tasks.values():
                close_requested.set()
            if not self.tasks:
                return
            _, late = await asyncio.wait(list(self.tasks), timeout=CLOSE_MAX_S)
            for task in late:
                log.error("an MCP server did not close in time", extra={"server": self.facts.name})
                task.cancel()
            if late:
                await asyncio.wait(late, timeout=CLOSE_MAX_S)

    async def _connect(self) -> _ConnectedServer | None:
        close_requested = asyncio.Event()
        ready: asyncio.Future[_ConnectedServer | None] = self.loop.create_future()
        task = asyncio.create_task(
            self._run(ready, close_requested), name=f"mcp-{self.facts.name}", context=context_without_scope()
        )
        self.tasks[task] = close_requested
        task.add_done_callback(lambda ended: self.tasks.pop(ended, None))
        try:
            await asyncio.wait((ready, task), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            ready.cancel()  # the run that asked was stopped: no call will use this connection, so it closes itself
            raise
        connected = ready.result() if ready.done() else None
        if connected is None:
            self.retry_at = time.monotonic() + RETRY_S
        return connected

    async def _run(self, ready: asyncio.Future[_ConnectedServer | None], close_requested: asyncio.Event) -> None:
        """Connect, set `ready`, and stay connected until `close_requested` is set. `ready` is `None` if that fails."""
        try:
            server = make_server(self.facts)
            server.close_requested, server.reconnect = close_requested, self.reconnect
            try:
                async with asyncio.timeout(CONNECT_MAX_S):
                    await server.connect()  # type: ignore[no-untyped-call]
                    tools = await server.list_tools()
                self.failure = None
                if not ready.cancelled():
                    ready.set_result(_connected(self.facts, server, tools))
                    await close_requested.wait()
            except Exception as error:
                self.failure = error  # before `ready`, whose waiter reports it
                raise
            finally:
                server.retired = True
                if not ready.done():  # the turn that waits must not wait for the end of a server that hangs
                    ready.set_result(None)
                await server.cleanup()  # type: ignore[no-untyped-call]
        except Exception as error:  # noqa: BLE001  a server may fail in any way; agents continue without its tools
            self.failure = self.failure or error
            facts = {"server": self.facts.name, "retry_in_s": RETRY_S, "error": one_line(error)}
            log.error("cannot connect to an MCP server; its tools are missing", extra=facts)  # noqa: TRY400


class McpServers:
    """The configured servers, for all agents of a process."""

    def __init__(self, servers: Mapping[str, ServerFacts] | None = None) -> None:
        self._facts: Mapping[str, ServerFacts] = dict(servers or {})
        self._connections: dict[str, _Connection] = {}
        self._replaced: list[_Connection] = []  # of earlier configurations, until their running calls have ended

    def follow(self, servers: Mapping[str, ServerFacts]) -> None:
        """Use another configuration. A server whose settings changed is connected again; its running calls go on."""
        self._facts = dict(servers)

    async def tools(self, grants: Grants) -> list[FunctionTool]:
        """The granted tools of the servers that can be reached now, under the names that a model knows."""
        return [function for _, _, function in await self._granted(grants)]

    def unavailable(self, grants: Grants) -> dict[str, str]:
        """The granted servers that could not be reached when they were last needed, and why, in words for a user."""
        failures = {name: self._failure(name) for name in grants}
        return {name: plain_reason(error) for name, error in failures.items() if error is not None}

    async def probe(self, name: str) -> int:
        """Connect to a server and return the number of its tools. Raises `McpFailed` with the reason in one line."""
        connected = await self._connect(name)
        if connected is None:
            error = self._failure(name)
            raise McpFailed("it is not configured" if error is None else one_line(error))
        return len(connected.functions)

    def _failure(self, name: str) -> Exception | None:
        connection = self._connections.get(name)
        return None if connection is None or connection.connected is not None else connection.failure

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
            raise _unavailable(server, self._failure(server))
        if tool not in connected.functions:
            names = ", ".join(connected.functions) or "none"
            raise UnknownTool(f"the MCP server {server!r} has no tool {tool[:80]!r}; its tools: {names}")
        check_arguments(f"{server}.{tool}", connected.functions[tool].params_json_schema, arguments)
        return text_of(await connected.server.call_tool(tool, arguments))

    async def aclose(self) -> None:
        """Close the servers that were opened on this event loop."""
        loop = asyncio.get_running_loop()
        own = [name for name, connection in self._connections.items() if connection.loop is loop]
        closing = [self._connections.pop(name) for name in own]
        closing += [connection for connection in self._replaced if connection.loop is loop]
        self._replaced = [connection for connection in self._replaced if connection.loop is not loop]
        await asyncio.gather(*(connection.close() for connection in closing))

    async def _connect(self, name: str) -> _ConnectedServer | None:
        facts = self._facts.get(name)
        if facts is None:
            log.warning("an agent names an MCP server that is not configured", extra={"server": name})
            return None
        connection, loop = self._connections.get(name), asyncio.get_running_loop()
        if connection is None or connection.facts != facts or connection.loop is not loop:
            self._connections[name] = _Connection(facts, loop, partial(self._connect, name))
            if connection is not None and connection.loop is loop:
                connection.replace()
                self._replaced = [*(known for known in self._replaced if known.tasks), connection]
        return await self._connections[name].get()


async def probe_servers(servers: Mapping[str, ServerFacts]) -> dict[str, int | McpFailed]:
    """Connect to all servers once. Return the number of tools of each, or why it cannot be used."""
    mcp = McpServers(servers)

    async def probe(name: str) -> int | McpFailed:
        try:
            return await mcp.probe(name)
        except McpFailed as error:
            return error

    try:
        return dict(zip(servers, await asyncio.gather(*map(probe, servers)), strict=True))
    finally:
        await mcp.aclose()


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


class _SharedServer(MCPServer):
    """A server whose connection several runs use.

    A call that the server has answered with an error leaves the connection as it is. A call without an answer breaks
    the connection. A call of a run carries its idempotency key in `_meta`: after a crash it is
    made again under the same key.
    """

    close_requested: asyncio.Event
    reconnect: Reconnect
    # Errors that say that a call got no answer. All others come from a server that works.
    broken_codes: frozenset[int] = frozenset({CONNECTION_CLOSED, REQUEST_TIMEOUT})
    retired = False  # takes no new calls
    running = 0  # calls

    def retire(self) -> None:
        """Take no new calls, and close the connection after the running ones."""
        self.retired = True
        if not self.running:
            self.close_requested.set()

    async def call_tool(
        self, tool_name: str, arguments: JsonObject | None, meta: JsonObject | None = None
    ) -> CallToolResult:
        if self.retired:  # a run got its tools before the connection broke
            current = await self.reconnect()
            if current is None:
                raise _unavailable(self.name)
            return await current.server.call_tool(tool_name, arguments, meta)
        self._check_required(tool_name, arguments or {})
        scope = current_scope()
        if scope is not None:
            meta = {**(meta or {}), IDEMPOTENCY_KEY: scope.key}
        self.running += 1
        try:
            result = await super().call_tool(tool_name, arguments, meta)  # type: ignore[safe-super]
        except MCPError as error:
            if error.code in self.broken_codes:
                self.retired = True
                raise
            raise McpFailed(f"the MCP server {self.name!r} answered with error {error.code}") from error
        except Exception:
            self.retired = True
            raise
        finally:
            self.running -= 1
            if self.retired:
                self.retire()
        if getattr(result, "is_error", None) or getattr(result, "isError", None):
            raise McpToolError(text_of(result) or "the tool failed without a message")
        return result

    def _check_required(self, tool_name: str, arguments: JsonObject) -> None:
        """Refuse a call without a required argument here: the SDK's error for it looks like that of a connection."""
        schema = next((tool.input_schema for tool in self.cached_tools or () if tool.name == tool_name), {})
        missing = [name for name in schema.get("required", ()) if name not in arguments]
        if missing:
            raise ArgumentsError(f"{self.name}.{tool_name} needs {', '.join(map(repr, missing))}")


class _Stdio(_SharedServer, MCPServerStdio):
    pass


class _Http(_SharedServer, MCPServerStreamableHttp):
    # The client reports an HTTP error or an unknown session (after a restart of the server) with these codes.
    broken_codes = _SharedServer.broken_codes | {INVALID_REQUEST, INTERNAL_ERROR, PARSE_ERROR}


def _unavailable(server: str, error: Exception | None = None) -> McpFailed:
    why = "" if error is None else f" ({plain_reason(error)})"
    return McpFailed(f"the MCP server {server!r} cannot be used now{why}; try again in {RETRY_S:g} s")


def one_line(error: BaseException) -> str:
    """An error for the operator, in one line. Of a group of errors, the first that is no cancellation."""
    error = _root(error)
    return f"{type(error).__name__}: {' '.join(str(error).split()) or 'no message'}"[:MCP_REASON_MAX_CHARS]


def plain_reason(error: BaseException) -> str:
    """Why a server cannot be used, in words for a user. The text of the error may hold an address or a secret."""
    error = _root(error)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if isinstance(status, int):
        return f"it answered with status {status}"
    if isinstance(error, FileNotFoundError | PermissionError):
        return "its program cannot be started"
    if isinstance(error, TimeoutError):
        return f"it did not answer within {CONNECT_MAX_S:g} s"
    return "it cannot be reached"


def _root(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        own = [one for one in error.exceptions if not isinstance(one, asyncio.CancelledError)]
        error = (own or list(error.exceptions))[0]
    return error


def _connected(facts: ServerFacts, server: _Stdio | _Http, tools: Sequence[McpTool]) -> _ConnectedServer:
    if len(tools) > TOOLS_MAX:
        log.warning("an MCP server offers too many tools", extra={"server": facts.name, "tools": len(tools)})
    allowed = [tool for tool in tools[:TOOLS_MAX] if facts.tools is None or tool.name in facts.tools]
    return _ConnectedServer(server, {tool.name: _function(facts.name, server, tool) for tool in allowed})


def _function(name: str, server: MCPServer, tool: McpTool) -> FunctionTool:
    def explain(context: object, error: Exception) -> str:
        own = error.__cause__ if isinstance(error.__cause__, Magent2Error) else error  # the SDK wraps some errors
        return f"{name}.{tool.name} failed: {tool_failure(f'{name}.{tool.name}', own).text}"

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
