"""A model chooses where it writes; for whom it works decides where it may."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Describe, Operation, OwnedAppend
from magent2.mail.delivery import SendOptions
from magent2.tools.chat import chat_send
from tests.support.audit import whole_log
from tests.support.engine_wrappers import EngineWrapper
from tests.support.journaled_runs import ToolCallScript, message_contents, script_call, work
from tests.support.worker_fixture import outputs, send

ANN, BOB = SendOptions(principal="user:ann"), SendOptions(principal="user:bob")


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    """Ann's message waits for its agent; Bob has a conversation too, with another."""
    bus = MemoryBus()
    send(bus, "go", sending=ANN)
    send(bus, "private", "bobs", BOB, sender="user:bob", recipient="agent:Cy")
    yield bus
    bus.close()


def said(shown: ToolCallScript) -> str:
    """What the model was told of its call."""
    return str(shown.results["c1"])


async def test_a_run_writes_to_agents_in_its_own_conversation_for_whom_it_works(bus: MemoryBus) -> None:
    await work(bus, script_call("chat_send", recipient="agent:Dee", content="news").agent(chat_send))

    (letter,) = whole_log(bus, "chat:Dee")
    assert letter.headers["principal"] == "user:ann"


@pytest.mark.parametrize(
    "arguments",
    [
        {"recipient": "chat:bobs", "content": "psst"},
        {"recipient": "agent:Cy", "content": "psst", "conversation_id": "bobs"},
        {"recipient": "agent:Dee", "content": "psst", "conversation_id": "bobs"},
    ],
)
async def test_a_run_cannot_write_into_anothers_conversation(bus: MemoryBus, arguments: dict[str, str]) -> None:
    shown = script_call("chat_send", **arguments)

    await work(bus, shown.agent(chat_send))

    assert "no conversation" in said(shown)
    assert message_contents(bus, "chat:bobs") == message_contents(bus, "chat:Cy") == ["private"]
    assert message_contents(bus, "chat:Dee") == []
    assert outputs(bus) == ["done"]


async def test_a_conversation_that_a_run_begins_belongs_to_whom_it_works_for(bus: MemoryBus) -> None:
    shown = script_call("chat_send", recipient="agent:Dee", content="news", conversation_id="new")

    await work(bus, shown.agent(chat_send))

    (info,) = bus.call(Describe(("stream:new",)))
    assert info.head == {"owner": "user:ann", "active_agent": "Dee"}


async def test_a_run_without_a_principal_writes_to_every_conversation() -> None:
    bus = MemoryBus()
    send(bus, "go")
    send(bus, "private", "bobs", BOB, sender="user:bob", recipient="agent:Cy")

    await work(bus, script_call("chat_send", recipient="chat:bobs", content="from the house").agent(chat_send))

    assert message_contents(bus, "chat:Cy") == ["private", "from the house"]
    bus.close()


class Meanwhile(EngineWrapper):
    """Something happens between the call of a tool and the append of its result."""

    def __init__(self, engine: MemoryBus, happen: Callable[[], object]) -> None:
        super().__init__(engine)
        self._happen: Callable[[], object] | None = happen

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, OwnedAppend) and operation.conditions and self._happen is not None:
            happen, self._happen = self._happen, None
            happen()
        return self.inner.call(operation)


async def test_a_conversation_that_another_began_meanwhile_takes_nothing(bus: MemoryBus) -> None:
    shown = script_call("chat_send", recipient="agent:Dee", content="mine", conversation_id="new")
    late = Meanwhile(bus, lambda: send(bus, "first", "new", BOB, sender="user:bob", recipient="agent:Cy"))

    await work(late, shown.agent(chat_send))

    assert message_contents(bus, "chat:new") == ["first"]
    assert message_contents(bus, "chat:Dee") == []
    assert "nothing was sent" in said(shown)
