"""The requests of steered runs, as a real model server receives them over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from agents import ModelSettings, RunContextWrapper
from agents.retry import ModelRetrySettings

from magent2.agents import AgentRuntime, StreamEvent, create_agent, stream_agent
from magent2.context import AgentContext, BusMessage
from magent2.errors import ModelUnavailable
from magent2.events import MessageReceivedEvent, OutputEvent, TokenEvent
from tests.support.model_server import Call, ModelServer, Reply

Serve = Callable[..., ModelServer]

HINT = {"role": "user", "content": '<bus-message source="user">\n[URGENT] Stop &lt;now&gt;\n</bus-message>'}


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Serve]:
    servers: list[ModelServer] = []

    def start(*replies: Reply) -> ModelServer:
        servers.append(ModelServer(replies).__enter__())
        monkeypatch.setenv("OPENAI_BASE_URL", servers[-1].url)
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        return servers[-1]

    yield start
    for server in servers:
        server.__exit__(None, None, None)


def hint() -> BusMessage:
    return BusMessage(content="Stop <now>", source="user", target="main", template="[URGENT] {{ content }}")


def steer(ctx: RunContextWrapper[AgentContext]) -> str:
    """While this runs, a person writes."""
    ctx.context.send_message(hint())
    return "steered"


def look(number: int) -> str:
    """Do some work."""
    return f"looked {number}"


def work(number: int) -> Reply:
    return Reply(calls=[Call("look", {"number": number}, id=f"look-{number}")])


async def read(runtime: AgentRuntime, prompt: str = "go") -> list[StreamEvent]:
    async with stream_agent(runtime, prompt) as streamer:
        return [event async for event in streamer]


def agent(**options: Any) -> AgentRuntime:
    return create_agent("openai:gpt-4o", tools=[steer, look], **options)


def hints(server: ModelServer) -> list[int]:
    """How often the message stands in each request."""
    return [request["input"].count(HINT) for request in server.requests]


async def test_a_message_stands_in_the_next_request_and_in_every_later_one_at_its_place(serve: Serve) -> None:
    server = serve(Reply(calls=[Call("steer", id="steer-1")]), work(1), work(2), Reply("done"))

    await read(agent())

    assert hints(server) == [0, 1, 1, 1]
    for request in server.requests[1:]:
        kinds = [item.get("type", item.get("role")) for item in request["input"]]
        assert kinds[:3] == ["user", "function_call", "function_call_output"]
        assert request["input"][3] == HINT
    for earlier, later in zip(server.requests, server.requests[1:], strict=False):
        assert later["input"][: len(earlier["input"])] == earlier["input"]  # the model's past does not change


async def test_a_message_sent_before_the_stream_is_in_the_first_request(serve: Serve) -> None:
    server = serve(Reply("done"))
    runtime = agent()
    runtime.ctx.send_message(hint())

    events = await read(runtime)

    assert server.requests[0]["input"] == [{"role": "user", "content": "go"}, HINT]
    assert isinstance(events[0].event, MessageReceivedEvent)


@pytest.mark.parametrize("by", ["client", "sdk"])
async def test_a_retry_of_the_model_shows_a_message_once(serve: Serve, by: str) -> None:
    failing = Reply(status=503, ask_again=by == "client")
    server = serve(Reply(calls=[Call("steer", id="steer-1")]), failing, work(1), Reply("done"))
    policy = ModelRetrySettings(max_retries=2, backoff={"initial_delay": 0.0}, policy=always)
    settings = ModelSettings(retry=policy) if by == "sdk" else None

    events = await read(agent(model_settings=settings))

    assert hints(server) == [0, 1, 1, 1]  # the second of these is the one that failed
    assert sum(isinstance(event.event, MessageReceivedEvent) for event in events) == 1
    assert isinstance(events[-1].event, OutputEvent)


def always(context: object) -> bool:
    return True


async def test_a_message_that_a_broken_answer_saw_is_shown_again_and_once(serve: Serve) -> None:
    server = serve(Reply("one two three", break_after=2), Reply("done"))
    runtime = agent()
    runtime.ctx.send_message(hint())

    with pytest.raises(ModelUnavailable):
        await read(runtime)
    events = await read(runtime, "again")

    assert hints(server) == [1, 1]
    assert isinstance(events[-1].event, OutputEvent)


async def test_a_message_during_the_last_answer_is_answered_in_the_same_stream(serve: Serve) -> None:
    gate = threading.Event()
    server = serve(Reply("one two", gate=gate), Reply("stopped"))
    runtime = agent()
    sent = False

    async with stream_agent(runtime, "go") as streamer:
        async for event in streamer:
            if isinstance(event.event, TokenEvent) and not sent:
                runtime.ctx.send_message(hint())
                sent = True
                gate.set()

    assert hints(server) == [0, 1]
    assert streamer.output == "stopped"


async def test_leaving_the_stream_early_closes_the_connection_to_the_model(serve: Serve) -> None:
    gate = threading.Event()
    server = serve(Reply("word " * 2000, gate=gate))

    async with stream_agent(agent(), "go") as streamer:
        async for event in streamer:
            if isinstance(event.event, TokenEvent):
                break
    gate.set()

    assert server.hung_up.wait(10)
