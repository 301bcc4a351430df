"""The description of the message bus that this one is built to: its examples run as printed, its tables hold."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from magent2.agents import create_agent, stream_agent
from magent2.context import AgentContext, BusMessage, MessageBus
from magent2.events import StreamEvent, TokenEvent
from tests.support.model_server import ModelServer, Reply
from tests.support.source import parse_module

PAGE = (Path(__file__).parents[1] / "fixtures/message_bus.md").read_text()
BLOCK = re.compile(r"^#+ ([^\n]+)\n(?:(?!^#+ ).)*?```python\n(.*?)```", re.S | re.M)
EXAMPLES = dict(BLOCK.findall(PAGE))
ROW = re.compile(r"^\| `([^`]+)` +\|", re.M)
WORK = "# ... subagent work ..."  # where the page leaves a body to its reader


async def run(name: str, names: dict[str, Any], **changed: str) -> dict[str, Any]:
    """Run an example, with what it takes for granted in `names`."""
    code = EXAMPLES[name]
    for old, new in changed.items():
        code = code.replace({"work": WORK}[old], new)
    compiled = compile(code, name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    awaited = eval(compiled, names)
    if inspect.iscoroutine(awaited):
        await awaited
    return names


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., ModelServer]]:
    """A server that the SDK finds by itself."""
    servers: list[ModelServer] = []

    def serve(*replies: Reply) -> ModelServer:
        server = ModelServer(replies)
        servers.append(server.__enter__())
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        return server

    yield serve
    for server in servers:
        server.__exit__(None, None, None)


def test_every_example_of_the_page_has_a_test() -> None:
    tested = {
        "Sending Messages",
        "Subscriber Lifecycle",
        "Manual Bus Operations",
        "Send Idempotency",
        "Consume Idempotency",
        "Idempotency Scope",
        "User Steering (CLI/TUI)",
        "Multi-Agent Coordination",
        "Filter Integration",
        "Events",
        "BusMessage",
    }

    assert EXAMPLES.keys() == tested
    assert len(EXAMPLES) == PAGE.count("```python")


async def test_sending_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[BusMessage] = []
    leave = AgentContext.__aexit__

    async def look(self: AgentContext, *error: Any) -> None:
        taken.extend(self.consume_messages())
        await leave(self, *error)

    monkeypatch.setattr(AgentContext, "__aexit__", look)
    names = await run("Sending Messages", {"env": object()})

    assert [message.render() for message in taken] == [
        "Focus on security issues",
        "System alert",
        "[URGENT] Stop current task",
        "Important message",
    ]
    assert taken[-1].id == "unique-id-123"
    assert len(names["ctx"].message_bus) == 0


async def test_subscriber_lifecycle() -> None:
    during: list[tuple[str, ...]] = []

    names = await run("Subscriber Lifecycle", {"env": None, "AgentContext": AgentContext, "during": during},
                      work="during.append(ctx.message_bus.subscribers)")  # fmt: skip

    (subscribers,) = during
    assert subscribers[0] == "main"
    assert re.fullmatch(r"debugger-\w{4}", subscribers[1])
    assert names["ctx"].message_bus.subscribers == ()


async def test_manual_bus_operations(capsys: pytest.CaptureFixture[str]) -> None:
    names = await run("Manual Bus Operations", {})

    assert capsys.readouterr().out == "Hello\n"
    assert names["bus"].maxlen == 100
    assert len(names["bus"]) == 1  # consumed, and still in the queue
    assert "pending" not in names


async def test_send_idempotency() -> None:
    bus = MessageBus()
    bus.subscribe("main")

    await run("Send Idempotency", {"bus": bus, "BusMessage": BusMessage})

    assert [message.content for message in bus.consume("main")] == ["Hello"]


async def test_consume_idempotency() -> None:
    async with AgentContext() as ctx:
        ctx.send_message(BusMessage(id="abc", content="Hello", source="user"))
        first, second = EXAMPLES["Consume Idempotency"].split("# Second call")
        names: dict[str, Any] = {"ctx": ctx}

        exec(first, names)
        assert [(message.id, message.content) for message in names["messages"]] == [("abc", "Hello")]
        exec("# Second call" + second, names)
        assert names["messages"] == []


async def test_idempotency_scope() -> None:
    looking = type("Looking", (MessageBus,), {"__init__": subscribed})

    names = await run("Idempotency Scope", {"MessageBus": looking, "BusMessage": BusMessage})

    queue = [message.id for message in names["bus"].peek("all")]
    assert f"Queue now: {queue}".replace("'", '"') in EXAMPLES["Idempotency Scope"]
    assert len(names["bus"]) == 2


def subscribed(self: MessageBus, maxlen: int) -> None:
    """A bus that somebody has listened to from its beginning."""
    MessageBus.__init__(self, maxlen)
    self.subscribe("all")


async def test_user_steering(model: Callable[..., ModelServer]) -> None:
    gate = threading.Event()
    server = model(Reply("I begin to look", gate=gate), Reply("Security it is"))
    names: dict[str, Any] = {"events": []}
    typing: list[asyncio.Task[None]] = []

    def handle_event(event: StreamEvent) -> None:
        names["events"].append(event)
        if isinstance(event.event, TokenEvent) and not typing:  # the agent is at work: the person types
            typed: Coroutine[Any, Any, None] = names["on_user_input"]("Focus on security")
            typing.append(asyncio.create_task(typed))
            typing[0].add_done_callback(lambda _: gate.set())

    names["handle_event"] = handle_event
    await run("User Steering (CLI/TUI)", names)

    assert [request["model"] for request in server.requests] == ["gpt-4o"] * 2
    assert "bus-message" not in str(server.requests[0]["input"])
    assert server.requests[1]["input"][-1] == {
        "role": "user",
        "content": '<bus-message source="user">\nFocus on security\n</bus-message>',
    }
    assert names["events"][-1].event.text == "Security it is"
    assert {(event.agent_id, event.agent_name) for event in names["events"]} == {("main", "assistant")}


async def test_multi_agent_coordination() -> None:
    async with AgentContext() as ctx:
        bus = ctx.message_bus
        bus.subscribe("debugger-a7b9")
        bus.subscribe("writer-0001")

        await run("Multi-Agent Coordination", {"ctx": ctx, "BusMessage": BusMessage})

        read = {name: [message.content for message in bus.consume(name)] for name in bus.subscribers}
    assert read == {
        "main": ["Low memory warning"],
        "debugger-a7b9": ["Check for memory leaks", "Low memory warning"],
        "writer-0001": ["Low memory warning"],
    }


async def test_filter_integration(model: Callable[..., ModelServer]) -> None:
    shown = EXAMPLES["Filter Integration"].split("Messages appear as:\n")[1].replace("# ", "").strip()
    server = model(Reply("stopped"))
    runtime = create_agent("openai:gpt-4o")
    runtime.ctx.send_message(
        BusMessage(content="Stop current task", source="user", target="main", template="[URGENT] {{ content }}")
    )

    async with stream_agent(runtime, "go") as streamer:
        async for _ in streamer:
            pass

    assert server.requests[0]["input"] == [{"role": "user", "content": "go"}, {"role": "user", "content": shown}]


async def test_events(capsys: pytest.CaptureFixture[str]) -> None:
    runtime = create_agent("demo")
    runtime.ctx.send_message(BusMessage(content="hurry", source="ops", template="{{ content | upper }}"))

    async with stream_agent(runtime, "go") as streamer:
        await run("Events", {"streamer": streamer})

    assert capsys.readouterr().out == "[ops] HURRY\n"


def test_the_reference_of_bus_message() -> None:
    (printed,) = parse_module(EXAMPLES["BusMessage"]).body
    assert isinstance(printed, ast.ClassDef)
    fields = [line for line in printed.body if isinstance(line, ast.AnnAssign)]

    hints = get_type_hints(BusMessage)
    for line in fields:
        assert isinstance(line.target, ast.Name)
        found = hints[line.target.id]
        assert ast.unparse(line.annotation) == getattr(found, "__name__", str(found))
    assert [ast.unparse(line.target) for line in fields] == list(BusMessage.model_fields)
    optional = {ast.unparse(line.target) for line in fields if line.value is not None} | {"id", "timestamp"}
    assert optional == {name for name, field in BusMessage.model_fields.items() if not field.is_required()}
    assert get_type_hints(BusMessage.render)["return"] is str


@pytest.mark.parametrize("row", ROW.findall(PAGE))
def test_every_method_of_the_tables_is_there(row: str) -> None:
    name, _, arguments = row.partition("(")
    home = AgentContext if name.endswith(("_messages", "_message")) else MessageBus

    parameters = inspect.signature(getattr(home, name)).parameters.values()

    wanted = [part.split(":")[0].split("=")[0].strip() for part in arguments.split(")")[0].split(",") if part]
    assert [parameter.name for parameter in parameters if parameter.name != "self"] == wanted
