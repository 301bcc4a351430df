"""Sends of a journalled run: the model chooses the conversation, the principal of the run decides if it may."""

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
    """A message of Ann waits for its agent. Bob has a conversation with another agent."""
    bus = MemoryBus()
    send(bus, "go", sending=ANN)
    send(bus, "private", "bobs", BOB, sender="user:bob", recipient="agent:Cy")
    yield bus
    bus.close()


def result_text(script: ToolCallScript) -> str:
    """The result of the call that the model saw."""
    return str(script.results["c1"])


async def test_a_run_writes_to_agents_in_its_own_conversation_for_its_principal(bus: MemoryBus) -> None:
    await work(bus, script_call("chat_send", recipient="agent:Dee", content="news").agent(chat_send))

    (message,) = whole_log(bus, "chat:Dee")
    assert message.headers["principal"] == "user:ann"


@pytest.mark.parametrize(
    "arguments",
    [
        {"recipient": "chat:bobs", "content": "psst"},
        {"recipient": "agent:Cy", "content": "psst", "conversation_id": "bobs"},
        {"recipient": "agent:Dee", "content": "psst", "conversation_id": "bobs"},
    ],
)
async def test_a_run_cannot_write_into_a_conversation_of_another_principal(
    bus: MemoryBus, arguments: dict[str, str]
) -> None:
    script = script_call("chat_send", **arguments)

    await work(bus, script.agent(chat_send))

    assert "no conversation" in result_text(script)
    assert message_contents(bus, "chat:bobs") == message_contents(bus, "chat:Cy") == ["private"]
    assert message_contents(bus, "chat:Dee") == []
    assert outputs(bus) == ["done"]


async def test_a_conversation_that_a_run_starts_belongs_to_its_principal(bus: MemoryBus) -> None:
    script = script_call("chat_send", recipient="agent:Dee", content="news", conversation_id="new")

    await work(bus, script.agent(chat_send))

    (info,) = bus.call(Describe(("stream:new",)))
    text = {"first_text": "news", "last_text": "news"}
    assert info.head == {"owner": "user:ann", "active_agent": "Dee", **text}


async def test_a_run_without_a_principal_writes_anywhere() -> None:
    bus = MemoryBus()
    send(bus, "go")
    send(bus, "private", "bobs", BOB, sender="user:bob", recipient="agent:Cy")

    await work(bus, script_call("chat_send", recipient="chat:bobs", content="from a program").agent(chat_send))

    assert message_contents(bus, "chat:Cy") == ["private", "from a program"]
    bus.close()


class ChangeBeforeAppend(EngineWrapper):
    """Calls `change` between the call of a tool and the append of its result."""

    def __init__(self, engine: MemoryBus, change: Callable[[], object]) -> None:
        super().__init__(engine)
        self._change: Callable[[], object] | None = change

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, OwnedAppend) and operation.conditions and self._change is not None:
            change, self._change = self._change, None
            change()
        return self.inner.call(operation)


async def test_a_send_to_a_conversation_that_another_principal_has_just_started_is_refused(bus: MemoryBus) -> None:
    script = script_call("chat_send", recipient="agent:Dee", content="mine", conversation_id="new")
    changing = ChangeBeforeAppend(bus, lambda: send(bus, "first", "new", BOB, sender="user:bob", recipient="agent:Cy"))

    await work(changing, script.agent(chat_send))

    assert message_contents(bus, "chat:new") == ["first"]
    assert message_contents(bus, "chat:Dee") == []
    assert "nothing was sent" in result_text(script)
