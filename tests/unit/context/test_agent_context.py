"""The life of agents on a bus: who has mail, and what is left when main goes."""

from __future__ import annotations

import re

import pytest

from magent2.context import AgentContext, BusMessage
from magent2.errors import InvalidInput


def message(content: str, target: str | None = None) -> BusMessage:
    return BusMessage(content=content, source="user", target=target)


def contents(messages: list[BusMessage]) -> list[str]:
    return [found.content for found in messages]


async def test_main_has_mail_while_its_context_is_entered() -> None:
    ctx = AgentContext(env={"shell": "sh"})
    assert not ctx.message_bus.subscribers

    async with ctx as entered:
        assert entered is ctx
        assert ctx.env == {"shell": "sh"}
        assert list(ctx.message_bus.subscribers) == ["main"]
        ctx.send_message(message("hi", "main"))
        assert contents(ctx.consume_messages()) == ["hi"]
        assert ctx.consume_messages() == []

    assert not ctx.message_bus.subscribers
    assert len(ctx.message_bus) == 0


async def test_a_subagent_has_an_id_of_its_own_on_the_same_bus() -> None:
    async with AgentContext(env="here") as ctx:
        first, second = (ctx.create_subagent_context("debugger") for _ in range(2))
        assert re.fullmatch(r"debugger-[0-9a-f]{4,}", first.agent_id)
        assert first.agent_id != second.agent_id
        assert (first.env, first.name, first.conversation_id) == ("here", "debugger", ctx.conversation_id)
        assert first.message_bus is ctx.message_bus

        async with first, second:
            ctx.send_message(message("to one", first.agent_id))
            first.send_message(message("to all"))
            assert contents(first.consume_messages()) == ["to one", "to all"]
            assert contents(second.consume_messages()) == ["to all"]

        assert ctx.message_bus.subscribers == ("main",)
        assert contents(ctx.consume_messages()) == ["to all"]


async def test_ids_stay_unique_when_there_are_many() -> None:
    ctx = AgentContext()

    assert len({ctx.create_subagent_context("a").agent_id for _ in range(3000)}) == 3000


async def test_what_a_live_subagent_can_still_read_outlives_main() -> None:
    ctx = AgentContext()
    sub = ctx.create_subagent_context("debugger")
    await ctx.__aenter__()
    await sub.__aenter__()
    ctx.send_message(message("for main", "main"))
    ctx.send_message(message("for sub", sub.agent_id))
    ctx.send_message(message("for all"))

    await ctx.__aexit__(None, None, None)

    assert len(ctx.message_bus) == 2
    assert contents(sub.consume_messages()) == ["for sub", "for all"]
    await sub.__aexit__(None, None, None)
    assert len(ctx.message_bus) == 0


async def test_main_clears_the_bus_of_subscribers_that_have_no_context() -> None:
    ctx = AgentContext()
    sub = ctx.create_subagent_context("debugger")
    async with sub:
        async with ctx:
            ctx.message_bus.subscribe("hand-made")
            ctx.send_message(message("for it", "hand-made"))
            ctx.send_message(message("for all"))
            sub.consume_messages()

        assert list(ctx.message_bus.subscribers) == [sub.agent_id]
        assert len(ctx.message_bus) == 0
        ctx.message_bus.subscribe("hand-made")
        ctx.send_message(message("after main has left"))

    assert not ctx.message_bus.subscribers
    assert len(ctx.message_bus) == 0


async def test_a_subagent_that_leaves_clears_nothing_while_main_is_there() -> None:
    async with AgentContext() as ctx:
        async with ctx.create_subagent_context("a") as sub:
            sub.send_message(BusMessage(id="once", content="x", source=sub.agent_id))
        ctx.send_message(BusMessage(id="once", content="y", source="user"))

        assert contents(ctx.consume_messages()) == ["x"]


async def test_what_is_given_back_is_consumed_again_first() -> None:
    async with AgentContext() as ctx:
        ctx.send_message(message("one"))
        ctx.send_message(message("two"))
        taken = ctx.consume_messages()
        ctx.send_message(message("three"))

        ctx.return_messages(taken)

        assert contents(ctx.consume_messages()) == ["one", "two", "three"]
        assert ctx.consume_messages() == []


async def test_a_context_is_entered_once_at_a_time() -> None:
    ctx = AgentContext()
    async with ctx:
        with pytest.raises(InvalidInput, match="already entered"):
            await ctx.__aenter__()
        ctx.send_message(message("still here", "main"))
        assert contents(ctx.consume_messages()) == ["still here"]

    async with ctx:
        ctx.send_message(message("again", "main"))
        assert contents(ctx.consume_messages()) == ["again"]


@pytest.mark.parametrize("name", ["", " padded ", "line\nbreak", "x" * 1000])
def test_a_subagent_needs_a_name(name: str) -> None:
    with pytest.raises(InvalidInput, match="subagent"):
        AgentContext().create_subagent_context(name)
