"""Nothing of the package waits for the default executor of an event loop: tools of users may occupy it for minutes."""

from __future__ import annotations

import ast
import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from agents import FunctionTool
from agents.tool_context import ToolContext
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import Route

import magent2
from magent2.agents.create import create_agent
from magent2.bus.memory import MemoryBus
from magent2.connectors.webhook import NameResolver
from magent2.gateway.app import create_app
from magent2.tools.chat.function_tools import set_bus_for_testing
from magent2.tools.interface import RunFacts
from magent2.tools.registry import tool
from tests.support.source import parse_module

PACKAGE = Path(magent2.__file__).parent

# Calls that use the default executor, or the threads of anyio that FastAPI and other libraries share.
NAMES = frozenset(
    {
        "to_thread",
        "getaddrinfo",
        "getnameinfo",
        "create_connection",
        "open_connection",
        "create_datagram_endpoint",
        "sock_connect",
        "sendfile",
        "run_in_threadpool",
        "iterate_in_threadpool",
        "function_tool",
        "FileResponse",
        "StaticFiles",
    }
)
# Calls with these objects before the dot block their own thread and use no executor.
BLOCKING = frozenset({"socket"})

# file:function → why it cannot keep the package waiting
ALLOWED = {
    "bus/v1_adapter.py:V1BusAdapter.acall": "a gateway on a bus of contract v1: no tool runs in its process",
    "bus/v1_adapter.py:PollingWatch.changed": "the same",
    "agents/create.py:_sdk_tool": "functions are made asynchronous first; other callables are the application's",
    "tools/chat/function_tools.py:_chat_send": "the function is asynchronous",
    "runner/demo/model.py:demo_team.current_time": "the function is asynchronous",
    "cli/processes/supervisor.py:Supervisor._run_once": "a socket that is connected already: no name is looked up",
}


class _Uses(ast.NodeVisitor):
    """The functions of a module that use the default executor, as `file:qualified name`."""

    def __init__(self, text: str, file: str) -> None:
        self.found: set[str] = set()
        self._file = file
        self._around: list[str] = []
        self.visit(parse_module(text))

    def _enter(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> None:
        self._around.append(node.name)
        self.generic_visit(node)
        self._around.pop()

    visit_FunctionDef = visit_AsyncFunctionDef = visit_ClassDef = _enter  # noqa: N815  names of `ast`

    def visit_Call(self, node: ast.Call) -> None:
        if self._is_default_executor(node):
            self._note()
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Also a function that is passed on: `partial(asyncio.to_thread, …)`."""
        if node.attr in NAMES and getattr(node.value, "id", "") not in BLOCKING:
            self._note()
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id in NAMES:
            self._note()

    def _is_default_executor(self, node: ast.Call) -> bool:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        executor = node.args[0] if node.args else None
        return called == "run_in_executor" and isinstance(executor, ast.Constant) and executor.value is None

    def _note(self) -> None:
        self.found.add(f"{self._file}:{'.'.join(self._around)}")


def test_no_module_uses_the_default_executor() -> None:
    used: set[str] = set()
    for path in sorted(PACKAGE.rglob("*.py")):
        used |= _Uses(path.read_text(encoding="utf-8"), path.relative_to(PACKAGE).as_posix()).found

    assert used - ALLOWED.keys() == set(), "use FairThreads or an executor of your own, or say why it cannot wait"
    assert ALLOWED.keys() - used == set(), "these places do not use it any more; remove them from the list"


@pytest.mark.parametrize(
    "code",
    [
        "await asyncio.to_thread(read)",
        "await to_thread(read)",
        "await anyio.to_thread.run_sync(read)",
        "await loop.run_in_executor(None, read)",
        "await loop.getaddrinfo(host, 80)",
        "task = partial(asyncio.to_thread, read)",
        "reader, writer = await asyncio.open_connection(host, 80)",
        "await loop.create_connection(Protocol, host, 80)",
    ],
)
def test_the_check_sees_each_form(code: str) -> None:
    assert _Uses(f"async def work():\n    {code}\n", "m.py").found == {"m.py:work"}


@pytest.mark.parametrize("code", ["await loop.run_in_executor(own, read)", "socket.getaddrinfo(host, 80)"])
def test_the_check_accepts_what_uses_no_default_executor(code: str) -> None:
    assert _Uses(f"async def work():\n    {code}\n", "m.py").found == set()


def calls_of(dependant: Dependant) -> Iterator[Callable[..., Any]]:
    """The functions that FastAPI calls for a route: its dependencies and its own."""
    for inner in dependant.dependencies:
        yield from calls_of(inner)
    if dependant.call is not None:
        yield dependant.call


def test_fastapi_calls_no_route_and_no_dependency_on_a_thread() -> None:
    bus = MemoryBus()
    calls: list[Callable[..., Any]] = []
    for route in create_app(bus).routes:
        if isinstance(route, APIRoute):
            calls += calls_of(route.dependant)
        elif isinstance(route, Route) and inspect.isroutine(route.endpoint):
            calls.append(route.endpoint)

    assert len(calls) > 20
    assert {call.__qualname__ for call in calls if not inspect.iscoroutinefunction(call)} == set()
    bus.close()


# --- what runs although the default executor is occupied


@pytest.fixture
async def occupied_executor() -> AsyncIterator[None]:
    """An event loop whose default executor has one thread, which never becomes free."""
    loop, released = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    occupying = loop.run_in_executor(None, released.wait)
    yield
    released.set()
    await occupying


def look(name: str) -> str:
    """Look for a name."""
    return f"found {name}"


async def invoke(made: object, arguments: str) -> object:
    """Call a tool of the SDK as the SDK does."""
    assert isinstance(made, FunctionTool)
    context = ToolContext({"conversation_id": "one"}, tool_name=made.name, tool_call_id="c1", tool_arguments=arguments)
    async with asyncio.timeout(10):
        return await made.on_invoke_tool(context, arguments)


@pytest.mark.usefixtures("occupied_executor")
async def test_a_tool_of_the_registry_runs() -> None:
    async with asyncio.timeout(10):
        assert await tool(look).run({"name": "Emma"}, cast(RunFacts, SimpleNamespace())) == "found Emma"


@pytest.mark.usefixtures("occupied_executor")
async def test_a_function_that_an_agent_of_this_process_got_as_a_tool_runs() -> None:
    (made,) = create_agent("demo", tools=[look]).agent.tools

    assert (made.name, await invoke(made, '{"name": "Emma"}')) == ("look", "found Emma")


@pytest.mark.usefixtures("occupied_executor")
async def test_a_chat_message_is_sent() -> None:
    from magent2.tools.chat.function_tools import chat_send

    bus = MemoryBus()
    set_bus_for_testing(bus)
    try:
        answer = await invoke(chat_send, '{"recipient": "chat:one", "content": "hello"}')
    finally:
        set_bus_for_testing(None)
        bus.close()

    assert isinstance(answer, dict)
    assert answer["ok"] is True


@pytest.mark.usefixtures("occupied_executor")
async def test_the_host_name_of_a_webhook_is_resolved() -> None:
    assert await NameResolver()("localhost", 80)
