"""Messages that tools send in a journalled run: when they are sent, and where they go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agents import (
    FunctionTool,
    RunContextWrapper,
    function_tool,
)

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Delete, Operation, OwnedAppend, SetHead
from magent2.bus.records import NewRecord
from magent2.mail.headers import ACTIVE_AGENT
from magent2.mail.registration import register_agent
from magent2.tools.chat import chat_send, send_message
from magent2.tools.interface import current_scope
from tests.support.audit import whole_log
from tests.support.engine_wrappers import EngineWrapper
from tests.support.journaled_runs import (
    CrashingBus,
    message_contents,
    recorded,
    script_call,
    tool_steps,
    work,
    work_until_crash,
)
from tests.support.worker_fixture import AGENT, outputs

# --- sends


def post_tool(*messages: tuple[str, str, str]) -> FunctionTool:
    @function_tool
    def post(context: RunContextWrapper[Any]) -> str:
        """Send some messages."""
        for recipient, text, conversation in messages:
            send_message(recipient, text, conversation_id=conversation, context=context.context)
        return "posted"

    return post


class AppendRecorder(EngineWrapper):
    """Stores the topics of each append. Calls `change` before the first append with conditions."""

    def __init__(self, engine: Engine, change: Callable[[], object] | None = None) -> None:
        super().__init__(engine)
        self.appends: list[list[str]] = []
        self.change = change

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, OwnedAppend):
            if operation.conditions and self.change is not None:
                change, self.change = self.change, None
                change()
            self.appends.append([record.topic for record in operation.records])
        return self.inner.call(operation)


async def test_messages_of_a_tool_are_sent_in_the_append_of_its_result(bus: MemoryBus) -> None:
    recording = AppendRecorder(bus)

    await work(recording, script_call("chat_send", recipient="agent:Cy", content="news").agent(chat_send))

    assert message_contents(bus, "chat:Cy") == ["news"]
    (append,) = (topics for topics in recording.appends if "chat:Cy" in topics)
    assert append == ["history:one", "stream:one", "chat:one", "chat:Cy", "stream:one"]
    (message,) = whole_log(bus, "chat:Cy")
    assert recorded(bus)["c1"]["sends"] == [message.payload["id"]]
    assert (message.payload["sender"], message.headers["hops"]) == (f"agent:{AGENT}", 1)


async def test_nothing_is_sent_while_the_tool_still_runs(bus: MemoryBus) -> None:
    sent: list[list[str]] = []

    @function_tool
    def post_and_look(context: RunContextWrapper[Any]) -> str:
        """Send, then look."""
        send_message("agent:Cy", "news", context=context.context)
        sent.append(message_contents(bus, "chat:Cy"))
        return "posted"

    await work(bus, script_call("post_and_look").agent(post_and_look))

    assert sent == [[]]
    assert message_contents(bus, "chat:Cy") == ["news"]


async def test_sends_of_one_call_see_each_other(bus: MemoryBus) -> None:
    """The first makes Cy the active agent of a new conversation, so the second, to that conversation, goes to Cy."""
    post = post_tool(("agent:Cy", "first", "new"), ("chat:new", "second", ""), ("agent:Dee", "third", "new"))

    await work(bus, script_call("post").agent(post))

    assert message_contents(bus, "chat:new") == ["first", "second", "third"]
    assert message_contents(bus, "chat:Cy") == ["first", "second"]
    assert message_contents(bus, "chat:Dee") == ["third"]


async def test_sends_go_to_the_new_active_agent_if_it_has_changed_meanwhile(bus: MemoryBus) -> None:
    def change() -> None:
        record = NewRecord("stream:new", {"event": "session", "conversation_id": "new"})
        bus.call(Append(records=(record,), heads=(SetHead("stream:new", {ACTIVE_AGENT: "Dee"}),)))

    recording = AppendRecorder(bus, change)
    shown = script_call("post")

    await work(recording, shown.agent(post_tool(("agent:Cy", "first", "new"), ("chat:new", "second", ""))))

    assert shown.results == {"c1": "posted"}
    assert message_contents(bus, "chat:new") == ["first", "second"]
    assert message_contents(bus, "chat:Cy") == ["first"]
    assert message_contents(bus, "chat:Dee") == ["second"]


async def test_a_send_to_a_conversation_that_is_an_agent_is_an_error_to_the_model(bus: MemoryBus) -> None:
    run_sync(bus, register_agent, "Cy")
    shown = script_call("chat_send", recipient="chat:Cy", content="news")

    await work(bus, shown.agent(chat_send))

    assert "'Cy' is an agent" in shown.results["c1"]
    assert [status for status, _ in tool_steps(bus)] == ["start", "error"]
    assert message_contents(bus, "chat:Cy") == []


async def test_a_name_that_is_taken_before_the_append_turns_the_result_into_an_error(bus: MemoryBus) -> None:
    recording = AppendRecorder(bus, lambda: run_sync(bus, register_agent, "new"))
    shown = script_call("post")

    await work(recording, shown.agent(post_tool(("agent:Cy", "first", "new"))))

    assert shown.results["c1"].startswith("nothing was sent: 'new' is an agent")
    assert [status for status, _ in tool_steps(bus)] == ["start", "error"]
    assert message_contents(bus, "chat:Cy") == []
    assert outputs(bus) == ["done"]


async def test_a_send_to_a_deleted_conversation_is_an_error_to_the_model(bus: MemoryBus) -> None:
    bus.call(Delete(("stream:gone", "chat:gone", "history:gone"), "gone"))
    shown = script_call("chat_send", recipient="chat:gone", content="news")

    await work(bus, shown.agent(chat_send))

    assert "was deleted" in shown.results["c1"]


async def test_a_conversation_that_is_deleted_before_the_append_turns_the_result_into_an_error(bus: MemoryBus) -> None:
    recording = AppendRecorder(bus, lambda: bus.call(Delete(("stream:gone", "chat:gone", "history:gone"), "gone")))
    shown = script_call("post")

    await work(recording, shown.agent(post_tool(("agent:Cy", "first", "gone"))))

    assert shown.results["c1"].startswith("nothing was sent: 'gone' was deleted")
    assert [status for status, _ in tool_steps(bus)] == ["start", "error"]
    assert message_contents(bus, "chat:Cy") == []
    assert outputs(bus) == ["done"]


async def test_a_tool_call_has_the_same_key_in_every_attempt(bus: MemoryBus) -> None:
    keys: list[str] = []

    @function_tool
    def look() -> str:
        """Look at the key."""
        scope = current_scope()
        assert scope is not None
        keys.append(scope.key)
        return "looked"

    shown = script_call("look")
    await work_until_crash(CrashingBus(bus, on="tool"), shown.agent(look))
    await work(bus, shown.agent(look))

    assert len(keys) == 2
    assert keys[0] == keys[1]
