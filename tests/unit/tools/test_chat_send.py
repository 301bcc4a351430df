"""`chat_send` as a tool that sends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Delete
from magent2.tools.default_tools import standard_tools
from tests.contracts.sending_tool import SendingToolContract, World
from tests.support.sending import Facts, scope_of


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


class TestChatSend(SendingToolContract):
    @pytest.fixture
    def world(self, bus: MemoryBus) -> World:
        return World(
            Facts(bus),
            standard_tools().get("chat_send"),
            good=[{"recipient": "agent:Bea", "content": "first"}, {"recipient": "chat:one", "content": "second"}],
            bad=[
                {"recipient": "Bea", "content": "x"},
                {"recipient": "agent:", "content": "x"},
                {"recipient": "agent:Bea", "content": "  "},
                {"recipient": "agent:Bea"},
                {"recipient": "agent:Bea", "content": "x", "conversation_id": "Bea"},
                {"recipient": "agent:Bea", "content": "x", "colour": "red"},
            ],
            arrived=lambda: [record.payload["content"] for record in bus.read("chat:Bea")],
            wanted=["first", "second"],
            revoke=lambda: bus.call(Delete(("stream:one", "chat:one", "history:one"), "one")),
            refuses_softly=True,
        )


async def test_a_plain_call_answers_as_it_always_has(bus: MemoryBus) -> None:
    tool = standard_tools().get("chat_send")

    sent = await tool.run({"recipient": "chat:conv1", "content": " hi "}, Facts(bus))
    refused = await tool.run({"recipient": "conv1", "content": "hi"}, Facts(bus))

    (record,) = bus.read("chat:conv1")
    assert sent.tool_message == {"ok": True, "envelope_id": record.id, "published_to": ["chat:conv1"]}
    error = "recipient must be 'chat:{conversation_id}' or 'agent:{Name}'"
    assert refused.tool_message == {"ok": False, "error": error}
    assert record.payload["content"] == "hi"


async def test_a_block_holds_only_so_much(bus: MemoryBus) -> None:
    """Not more than one append can take."""
    scope = scope_of(Facts(bus))
    large = {"recipient": "agent:Bea", "content": "x" * 400_000}
    world = World(Facts(bus), standard_tools().get("chat_send"), [large] * 6, [], list, [])

    with pytest.raises(ValueError, match="one block sends at most 4194304 bytes; send the rest in another block"):
        await world.call_all(scope)

    assert len(scope.sends) == 3  # each is in the conversation, in the inbox and in the stream
