"""A stream of events: in order, complete before an error is raised, and steered."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from agents import Agent, ModelSettings, ModelTracing, RunConfig, RunContextWrapper
from agents import Runner as SDKRunner
from agents.run import CallModelData, ModelInputData
from agents.testing import ModelCall, ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseTextDeltaEvent

from magent2.agents import AgentRuntime, Streamer, StreamEvent, create_agent, inject_bus_messages, stream_agent
from magent2.agents.injection import BusInjection, BusModel
from magent2.context import AgentContext, BusMessage
from magent2.errors import InvalidInput, ModelError, ModelUnavailable, TemplateRefused
from magent2.events import ErrorEvent, HandoffEvent, MessageEvent, MessageReceivedEvent, OutputEvent, TokenEvent
from tests.support.waiting import until


def say(text: str) -> list[Any]:
    return [assistant_message(text)]


def call(name: str, **arguments: Any) -> list[Any]:
    return [function_call(name, arguments, call_id=f"call-{name}-{arguments}")]


def message(content: str, **fields: Any) -> BusMessage:
    return BusMessage(**{"content": content, "source": "user", "target": "main", **fields})


def blocks(model: ScriptedModel, number: int) -> list[str]:
    """The texts of the messages that the model saw in its n-th call."""
    asked = model.calls[number].input
    assert not isinstance(asked, str)
    contents = [str(item.get("content", "")) for item in asked]
    return [content.split("\n")[1] for content in contents if content.startswith("<bus-message")]


async def read(runtime: AgentRuntime, prompt: str = "go", **options: Any) -> list[StreamEvent]:
    async with stream_agent(runtime, prompt, **options) as streamer:
        return [event async for event in streamer]


def look(ctx: RunContextWrapper[AgentContext], tell: str) -> str:
    """Send a message, as if it came from a person while the tool ran."""
    ctx.context.send_message(message(tell))
    return "seen"


async def test_events_come_in_order_with_the_agent_they_belong_to() -> None:
    model = ScriptedModel([[assistant_message("I look", item_id="m1"), *call("look", tell="hurry")], say("done")])
    events = await read(create_agent(model, tools=[look], name="coder"))

    assert {(event.agent_id, event.agent_name) for event in events} == {("main", "coder")}
    kinds = [event.event.event for event in events if not isinstance(event.event, TokenEvent)]  # type: ignore[attr-defined]
    assert kinds == ["message", "tool_step", "tool_step", "message_received", "output"]
    said = [event.event for event in events if isinstance(event.event, MessageEvent | OutputEvent)]
    assert [event.text for event in said] == ["I look", "done"]


async def test_a_message_is_seen_by_the_next_call_and_every_one_after() -> None:
    model = ScriptedModel([call("look", tell="first"), call("look", tell="second"), say("done")])
    runtime = create_agent(model, tools=[look])
    runtime.ctx.send_message(message("before"))

    events = await read(runtime)

    assert [blocks(model, number) for number in range(3)] == [
        ["before"],
        ["before", "first"],
        ["before", "first", "second"],
    ]
    received = [event.event for event in events if isinstance(event.event, MessageReceivedEvent)]
    assert [[one.content for one in event.messages] for event in received] == [["before"], ["first"], ["second"]]
    assert all(event.message_ids == tuple(one.id for one in event.messages) for event in received)


async def test_a_message_that_comes_during_the_last_answer_is_answered_too() -> None:
    runtime: AgentRuntime

    def late(call: ModelCall) -> Any:
        runtime.ctx.send_message(message("wait"))
        return say("my last word")

    model = ScriptedModel([ModelStep.respond(late), say("and one more")])
    runtime = create_agent(model)

    events = await read(runtime)

    assert blocks(model, 1) == ["wait"]
    said = [event.event for event in events if isinstance(event.event, MessageEvent | OutputEvent)]
    assert [(event.event, event.text) for event in said] == [("message", "my last word"), ("output", "and one more")]


async def test_a_message_without_a_turn_left_waits_for_the_next_stream() -> None:
    runtime: AgentRuntime

    def late(call: ModelCall) -> Any:
        runtime.ctx.send_message(message("wait"))
        return say("my last word")

    model = ScriptedModel([ModelStep.respond(late), say("later")])
    runtime = create_agent(model, max_turns=1)

    events = await read(runtime)
    assert isinstance(events[-1].event, OutputEvent)
    await read(runtime)

    assert (blocks(model, 0), blocks(model, 1)) == ([], ["wait"])


async def test_an_error_is_raised_at_the_end_after_all_that_came_before_it() -> None:
    async def broken(call: ModelCall) -> AsyncIterator[Any]:
        for number in range(50):  # at once, so that the SDK would drop those that nobody has read
            yield delta(f"{number} ")
        raise ConnectionError("gone")

    runtime = create_agent(ScriptedModel([ModelStep.stream(broken)]))
    read_before: list[StreamEvent] = []

    with pytest.raises(ModelUnavailable, match="the model did not answer: ConnectionError") as raised:
        await read_into(read_before, runtime)
    assert str(raised.value.__cause__) == "gone"

    texts = [event.event.text for event in read_before if isinstance(event.event, TokenEvent)]
    assert texts == [f"{number} " for number in range(50)]


async def read_into(events: list[StreamEvent], runtime: AgentRuntime) -> None:
    async with stream_agent(runtime, "go") as streamer:
        ended = [event async for event in streamer]  # an error does not show in here
        events += ended


def delta(text: str) -> ResponseTextDeltaEvent:
    return ResponseTextDeltaEvent(
        type="response.output_text.delta",
        delta=text,
        item_id="m",
        output_index=0,
        content_index=0,
        logprobs=[],
        sequence_number=0,
    )


async def test_the_readers_own_error_goes_before_the_runs() -> None:
    runtime = create_agent(ScriptedModel([ModelStep.raise_error(ConnectionError("gone"))]))

    async def read_and_raise() -> None:
        async with stream_agent(runtime, "go") as streamer:
            async for _ in streamer:
                pass
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        await read_and_raise()


async def test_a_run_without_a_key_says_so_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)

    with pytest.raises(ModelError, match="OPENAI_API_KEY"):
        await read(create_agent("openai:gpt-4o"))


async def test_what_a_failed_call_saw_is_seen_once_by_the_next_stream() -> None:
    model = ScriptedModel([call("look", tell="second"), ModelStep.raise_error(ConnectionError()), say("done")])
    runtime = create_agent(model, tools=[look])
    runtime.ctx.send_message(message("first"))

    with pytest.raises(ModelUnavailable):
        await read(runtime)
    await read(runtime)

    assert [blocks(model, number) for number in range(3)] == [["first"], ["first", "second"], ["second"]]


async def test_what_an_answer_saw_is_not_shown_again_though_the_run_failed_after_it() -> None:
    model = ScriptedModel([call("look", tell="second"), say("done")])
    runtime = create_agent(model, tools=[look], max_turns=1)
    runtime.ctx.send_message(message("first"))

    with pytest.raises(ModelError, match="AGENT_MAX_TURNS"):
        await read(runtime)
    await read(runtime)

    assert (blocks(model, 0), blocks(model, 1)) == (["first"], ["second"])


async def test_a_message_is_reported_after_all_earlier_events() -> None:
    reported: list[object] = []

    async def wait_for_events() -> None:
        reported.append("all before")

    async with AgentContext() as ctx:
        ctx.send_message(message("one"))
        injection = BusInjection(ctx, reported.append, wait_for_events)
        asked = ModelInputData(input=[], instructions=None)
        await injection(CallModelData(model_data=asked, agent=create_agent("demo").agent, context=ctx))

    assert reported[0] == "all before"
    assert isinstance(reported[1], MessageReceivedEvent)


async def test_the_history_of_a_failed_stream_has_what_was_asked_and_what_an_answer_saw() -> None:
    model = ScriptedModel([call("look", tell="second"), ModelStep.raise_error(ConnectionError()), say("done")])
    runtime = create_agent(model, tools=[look])
    runtime.ctx.send_message(message("first"))
    streams: list[Streamer] = []

    async def keep() -> None:
        async with stream_agent(runtime, "go") as streamer:
            streams.append(streamer)
            async for _ in streamer:
                pass

    with pytest.raises(ModelUnavailable):
        await keep()
    await read(runtime, "again", history=streams[0].history)

    asked = model.calls[2].input
    assert not isinstance(asked, str)
    assert [str(item.get("content")).split("\n")[-2:] for item in asked] == [
        ["go"],
        ["first", "</bus-message>"],
        ["again"],
        ["second", "</bus-message>"],
    ]


async def test_leaving_early_stops_the_run_and_keeps_the_unseen() -> None:
    stopped = asyncio.Event()

    async def slow(call: ModelCall) -> AsyncIterator[Any]:
        try:
            yield delta("one ")
            await asyncio.Event().wait()
        finally:
            stopped.set()

    model = ScriptedModel([ModelStep.stream(slow), say("done")])
    runtime = create_agent(model)
    runtime.ctx.send_message(message("first"))

    async with stream_agent(runtime, "go") as streamer:
        async for event in streamer:
            if isinstance(event.event, TokenEvent):
                break
    assert stopped.is_set()
    await read(runtime)

    assert blocks(model, 1) == ["first"]


async def test_an_agents_own_broadcast_is_not_injected_back() -> None:
    def shout(ctx: RunContextWrapper[AgentContext]) -> str:
        """Tell everybody."""
        ctx.context.send_message(message("own", source="main", target=None))
        ctx.context.send_message(message("other", source="b", target=None))
        return "told"

    model = ScriptedModel([call("shout"), say("done")])
    runtime = create_agent(model, tools=[shout])
    runtime.ctx.message_bus.subscribe("b")

    await read(runtime)

    assert blocks(model, 1) == ["other"]
    assert [one.content for one in runtime.ctx.message_bus.consume("b")] == ["own", "other"]


async def test_a_message_that_cannot_be_rendered_does_not_affect_others() -> None:
    model = ScriptedModel([say("done")])
    runtime = create_agent(model)
    bad = message("bad", template="{{ content | truncate(1) }}")
    for one in (message("one"), bad, message("two")):
        runtime.ctx.send_message(one)

    events = await read(runtime)

    assert blocks(model, 0) == ["one", "two"]
    received, error = events[0].event, events[1].event
    assert isinstance(received, MessageReceivedEvent)
    assert [one.content for one in received.messages] == ["one", "two"]
    assert isinstance(error, ErrorEvent)
    assert error.code == "template_refused"
    assert bad.id in error.message


async def test_a_hostile_template_does_not_get_as_far() -> None:
    runtime = create_agent("demo")

    with pytest.raises(TemplateRefused, match="arithmetic"):
        runtime.ctx.send_message(message("x", template='{{ "a"*(10**8) }}'))


async def test_an_event_says_how_many_messages_were_lost() -> None:
    runtime = create_agent("demo", ctx=AgentContext(maxlen=2))
    for number in range(5):
        runtime.ctx.send_message(message(str(number)))

    events = await read(runtime)

    received = events[0].event
    assert isinstance(received, MessageReceivedEvent)
    assert ([one.content for one in received.messages], received.lost) == (["3", "4"], 3)


async def test_one_runtime_has_one_stream_at_a_time() -> None:
    runtime = create_agent("demo")

    async with stream_agent(runtime, "one") as streamer:
        with pytest.raises(InvalidInput, match="a stream already"):
            async with stream_agent(runtime, "two"):
                pass
        events = [event async for event in streamer]

    assert isinstance(events[-1].event, OutputEvent)
    assert events[-1].event.text == "one"
    assert (await read(runtime, "two"))[-1].event.text == "two"  # type: ignore[attr-defined]


async def test_history_goes_on_where_the_last_stream_ended() -> None:
    model = ScriptedModel([say("one"), say("two")])
    runtime = create_agent(model)
    runtime.ctx.send_message(message("hint"))
    async with stream_agent(runtime, "first") as streamer:
        assert [event async for event in streamer][-1].event.event == "output"  # type: ignore[attr-defined]

    await read(runtime, "second", history=streamer.history)

    asked = model.calls[1].input
    assert not isinstance(asked, str)
    assert [item.get("role") for item in asked] == ["user", "user", "assistant", "user"]
    assert blocks(model, 1) == ["hint"]
    assert streamer.output == "one"


async def test_a_subagent_streams_under_its_own_id() -> None:
    main = create_agent("demo")
    async with main.ctx.create_subagent_context("debugger") as sub:
        runtime = create_agent("demo", ctx=sub, name="debugger")
        main.ctx.send_message(message("Check for memory leaks", source="main", target=sub.agent_id))
        events = await read(runtime)

    assert {(event.agent_id, event.agent_name) for event in events} == {(sub.agent_id, "debugger")}
    assert isinstance(events[0].event, MessageReceivedEvent)
    assert "Check for memory leaks" in events[-1].event.text  # type: ignore[attr-defined]
    assert main.ctx.consume_messages() == []


async def test_another_agent_goes_on_and_reads_the_same_mail() -> None:
    model = ScriptedModel([call("look", tell="hurry"), say("done")])
    sales = create_agent(model, name="sales", tools=[look])
    desk = create_agent("demo", name="desk", handoffs=[sales])
    sales.agent.handoffs.append(desk.agent)  # and back, in a circle

    events = await read(desk, "talk to sales")

    assert blocks(model, 1) == ["hurry"]
    assert [event.agent_name for event in events if isinstance(event.event, OutputEvent)] == ["sales"]
    assert {event.agent_id for event in events} == {"main"}
    assert [(one.source, one.target) for event in events if isinstance(one := event.event, HandoffEvent)] == [
        ("desk", "sales")
    ]


async def test_a_prompt_is_text_or_items() -> None:
    runtime = create_agent("demo")

    with pytest.raises(InvalidInput, match="not a int"):
        await read(runtime, 7)  # type: ignore[arg-type]
    events = await read(runtime, [{"role": "user", "content": "hello"}])  # type: ignore[arg-type]

    assert events[-1].event.text == "hello"  # type: ignore[attr-defined]


async def test_a_thread_may_steer() -> None:
    model = ScriptedModel([call("wait"), say("done")])
    arrived = threading.Event()

    def wait() -> str:
        """Wait until the person has typed."""
        arrived.wait(10)
        return "typed"

    def type_something(ctx: AgentContext) -> None:
        ctx.send_message(message("from a thread"))
        arrived.set()

    runtime = create_agent(model, tools=[wait])
    person = threading.Thread(target=type_something, args=(runtime.ctx,))
    person.start()

    await read(runtime)

    person.join()
    assert "from a thread" in blocks(model, 1)


@pytest.mark.parametrize("streamed", [True, False])
async def test_the_filter_alone_serves_a_run_of_the_sdk(streamed: bool) -> None:
    model = ScriptedModel([call("look", tell="second"), say("done")])
    reported: list[Any] = []
    async with AgentContext() as ctx:
        ctx.send_message(message("first"))
        agent = create_agent(model, tools=[look], ctx=ctx).agent
        config = RunConfig(call_model_input_filter=inject_bus_messages(ctx, reported.append), tracing_disabled=True)
        await run_with(agent, ctx, config, streamed)

    assert [blocks(model, number) for number in range(2)] == [["first"], ["first", "second"]]
    assert [type(event) for event in reported] == [MessageReceivedEvent] * 2


async def run_with(agent: Agent[Any], ctx: AgentContext, config: RunConfig, streamed: bool) -> None:
    if not streamed:
        await SDKRunner.run(agent, "go", context=ctx, run_config=config)
        return
    async for _ in SDKRunner.run_streamed(agent, "go", context=ctx, run_config=config).stream_events():
        pass


# --- a run that the caller starts with the SDK


UNTRACED = RunConfig(tracing_disabled=True)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_run_of_the_sdk_gets_the_messages_of_the_agent(streamed: bool) -> None:
    model = ScriptedModel([call("look", tell="second"), say("done"), say("next")])
    runtime = create_agent(model, tools=[look])
    runtime.ctx.send_message(message("first"))

    await run_with(runtime.agent, runtime.ctx, UNTRACED, streamed)
    runtime.ctx.send_message(message("third"))
    await run_with(runtime.agent, runtime.ctx, UNTRACED, streamed)

    assert [blocks(model, number) for number in range(3)] == [["first"], ["first", "second"], ["third"]]


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_call_that_failed_in_a_run_of_the_sdk_has_read_nothing(streamed: bool) -> None:
    failure = ModelStep.raise_error(ConnectionError("gone"))
    model = ScriptedModel([call("look", tell="second"), failure, say("done")])
    runtime = create_agent(model, tools=[look])
    runtime.ctx.send_message(message("first"))

    with pytest.raises(ConnectionError, match="gone"):
        await run_with(runtime.agent, runtime.ctx, UNTRACED, streamed)
    await run_with(runtime.agent, runtime.ctx, UNTRACED, streamed)

    assert [blocks(model, number) for number in range(3)] == [["first"], ["first", "second"], ["second"]]


async def test_after_a_handoff_in_a_run_of_the_sdk_the_next_agent_gets_the_messages_to_the_first() -> None:
    model = ScriptedModel([call("look", tell="hurry"), say("done")])
    sales = create_agent(model, name="sales", tools=[look])
    desk = create_agent("demo", name="desk", handoffs=[sales])
    sales.ctx.send_message(message("for a run of its own"))

    await SDKRunner.run(desk.agent, "talk to sales", context=desk.ctx, run_config=UNTRACED)

    assert (blocks(model, 0), blocks(model, 1)) == ([], ["hurry"])


async def test_runs_of_one_agent_at_the_same_time_do_not_share_what_they_have_read() -> None:
    second_has_begun = asyncio.Event()

    async def wait() -> str:
        """Wait for the other run."""
        await second_has_begun.wait()
        return "waited"

    def begin(call: ModelCall) -> Any:
        second_has_begun.set()
        return say("second")

    model = ScriptedModel([call("wait"), ModelStep.respond(begin), say("first")])
    runtime = create_agent(model, tools=[wait])
    runtime.ctx.send_message(message("one"))

    first = asyncio.create_task(SDKRunner.run(runtime.agent, "go", run_config=UNTRACED))
    await until(lambda: len(model.calls) == 1)
    await SDKRunner.run(runtime.agent, "go too", run_config=UNTRACED)
    await first

    assert [blocks(model, number) for number in range(3)] == [["one"], [], ["one"]]


async def test_a_model_that_is_called_outside_a_run_leaves_messages_unread() -> None:
    model = ScriptedModel([say("done")])
    runtime = create_agent(model)
    runtime.ctx.send_message(message("first"))
    bus_model = runtime.agent.model
    assert isinstance(bus_model, BusModel)

    none = {"previous_response_id": None, "conversation_id": None, "prompt": None}
    await bus_model.get_response(None, "hi", ModelSettings(), [], None, [], ModelTracing.DISABLED, **none)

    assert model.calls[0].input == "hi"
    assert [one.content for one in runtime.ctx.consume_messages()] == ["first"]


async def test_a_stream_that_ended_leaves_nothing_on_the_bus() -> None:
    runtime = create_agent("demo")
    runtime.ctx.send_message(message("one"))
    runtime.ctx.send_message(message("for nobody", target="gone"))

    await read(runtime)

    assert len(runtime.ctx.message_bus) == 0
