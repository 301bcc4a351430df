"""Seed 000: the chat tool."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from agents import Agent, RunConfig, Runner
from agents.testing import ScriptedModel, assistant_message, function_call

from magent2.bus.interface import BusMessage
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, SetHead
from magent2.bus.records import NewRecord
from magent2.errors import NameTaken
from magent2.mail.registration import register_agent
from magent2.tools.chat import chat_send, get_bus, send_message, set_bus_for_testing
from magent2.tools.chat import function_tools as tools
from magent2.tools.interface import CallScope, call_scope


class InMemoryBus:
    """A v1 bus and no more: two methods over lists."""

    def __init__(self) -> None:
        self.topics: dict[str, list[BusMessage]] = {}

    def __len__(self) -> int:
        return len(self.topics)

    def publish(self, topic: str, message: BusMessage) -> str:
        self.topics.setdefault(topic, []).append(message)
        return message.id

    def read(self, topic: str, last_id: str | None = None, limit: int = 100) -> Iterable[BusMessage]:
        records = self.topics.get(topic, [])
        if last_id is None:
            return records[-limit:]
        start = [record.id for record in records].index(last_id) + 1
        return records[start : start + limit]


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AGENT_NAME", "CHAT_TOOL_CONVERSATION_ID", "REDIS_URL", "MAGENT2_BUS_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def bus() -> Iterator[InMemoryBus]:
    fresh = InMemoryBus()
    set_bus_for_testing(fresh)
    yield fresh
    set_bus_for_testing(None)


@pytest.fixture
def engine() -> Iterator[MemoryBus]:
    fresh = MemoryBus()
    set_bus_for_testing(fresh)
    yield fresh
    set_bus_for_testing(None)
    fresh.close()


# --- the seed's cases --------------------------------------------------------------------------------------------


def test_a_message_to_a_conversation_is_one_record_there(bus: InMemoryBus) -> None:
    sent = send_message("chat:conv1", "hello")

    assert list(bus.topics) == ["chat:conv1"]
    (record,) = bus.read("chat:conv1")
    assert record.topic == "chat:conv1"
    assert record.payload["id"] == sent["envelope_id"]
    assert record.payload["conversation_id"] == "conv1"
    assert record.payload["recipient"] == "chat:conv1"
    assert record.payload["type"] == "message"
    assert record.payload["content"] == "hello"
    assert record.payload["metadata"] == {}
    assert isinstance(record.payload["created_at"], str)
    assert sent == {"ok": True, "envelope_id": record.payload["id"], "published_to": ["chat:conv1"]}


def test_a_message_to_an_agent_is_in_the_conversation_and_in_the_inbox(
    bus: InMemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAT_TOOL_CONVERSATION_ID", "conv2")

    sent = send_message("agent:DevAgent", "hello")

    assert sent["published_to"] == ["chat:conv2", "chat:DevAgent"]
    (in_conversation,), (in_inbox,) = bus.read("chat:conv2"), bus.read("chat:DevAgent")
    assert in_conversation.payload == in_inbox.payload


@pytest.mark.parametrize("recipient", ["room:123", "agent:", "agent:  ", "chat:", "chat: ", "", "  ", "DevAgent"])
def test_a_recipient_that_is_no_address_is_refused_in_the_seeds_words(
    bus: InMemoryBus, recipient: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAT_TOOL_CONVERSATION_ID", "conv2")

    with pytest.raises(ValueError, match=r"^recipient must be 'chat:\{conversation_id\}' or 'agent:\{Name\}'$"):
        send_message(recipient, "hello")

    assert bus.topics == {}


@pytest.mark.parametrize("content", ["", "  ", "\n\t"])
def test_blank_content_is_refused(bus: InMemoryBus, content: str) -> None:
    with pytest.raises(ValueError, match=r"^content must be non-empty$"):
        send_message("chat:conv1", content)

    assert bus.topics == {}


def test_an_agent_without_a_conversation_is_refused(bus: InMemoryBus) -> None:
    with pytest.raises(ValueError, match=r"^conversation_id not available for agent recipient$"):
        send_message("agent:DevAgent", "hello", conversation_id="  ", context={"conversation_id": ""})

    assert bus.topics == {}


# --- what comes before what --------------------------------------------------------------------------------------


def test_the_explicit_conversation_beats_the_run_and_the_run_beats_the_environment(
    bus: InMemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CHAT_TOOL_CONVERSATION_ID", "from-env")
    context = {"conversation_id": "from-run"}

    explicit = send_message("agent:Dev", "a", conversation_id="explicit", context=context)
    in_a_run = send_message("agent:Dev", "b", context=context)
    outside = send_message("agent:Dev", "c")

    conversations = [sent["published_to"][0] for sent in (explicit, in_a_run, outside)]
    assert conversations == ["chat:explicit", "chat:from-run", "chat:from-env"]


def test_for_a_conversation_the_recipient_is_the_conversation(bus: InMemoryBus) -> None:
    sent = send_message("chat:conv1", "hello", conversation_id="other", context={"conversation_id": "third"})

    assert sent["published_to"] == ["chat:conv1"]
    assert next(iter(bus.read("chat:conv1"))).payload["conversation_id"] == "conv1"


def test_text_and_recipient_are_trimmed(bus: InMemoryBus) -> None:
    send_message(" chat:conv1 ", "  hello \n")

    (record,) = bus.read("chat:conv1")
    assert (record.payload["content"], record.payload["recipient"]) == ("hello", "chat:conv1")


@pytest.mark.parametrize(
    ("context", "name", "sender"),
    [
        ({"agent": "Runner"}, "FromEnv", "agent:Runner"),
        (SimpleNamespace(agent=SimpleNamespace(name="Runner")), "FromEnv", "agent:Runner"),
        ({}, "FromEnv", "agent:FromEnv"),
        (None, " ", "agent:unknown"),
    ],
)
def test_the_sender_is_the_runs_agent_then_the_environments_then_unknown(
    bus: InMemoryBus, monkeypatch: pytest.MonkeyPatch, context: Any, name: str, sender: str
) -> None:
    monkeypatch.setenv("AGENT_NAME", name)

    send_message("chat:conv1", "hello", context=context)

    assert next(iter(bus.read("chat:conv1"))).payload["sender"] == sender


def test_in_a_run_the_runs_bus_is_used_even_while_it_is_empty(bus: InMemoryBus) -> None:
    of_the_run = InMemoryBus()

    send_message("agent:Dev", "hello", context=SimpleNamespace(conversation_id="c", agent="Me", bus=of_the_run))

    assert list(of_the_run.topics) == ["chat:c", "chat:Dev"]
    assert bus.topics == {}


# --- the bus -----------------------------------------------------------------------------------------------------


def test_without_an_injected_bus_the_environments_is_opened_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MAGENT2_BUS_URL", "memory://")
    set_bus_for_testing(None)

    opened = get_bus()

    assert tools._get_bus() is opened
    send_message("chat:conv1", "hello")
    assert len(list(opened.read("chat:conv1"))) == 1
    set_bus_for_testing(None)
    assert get_bus() is not opened
    set_bus_for_testing(None)


def test_an_engine_gets_the_message_in_one_append_under_one_id(engine: MemoryBus) -> None:
    sent = send_message("agent:Dev", "hello", conversation_id="conv")

    assert sent["published_to"] == ["chat:conv", "chat:Dev"]
    assert [engine.read(topic)[0].payload["id"] for topic in sent["published_to"]] == [sent["envelope_id"]] * 2


def test_on_an_engine_a_conversation_without_an_active_agent_gets_one_record(engine: MemoryBus) -> None:
    assert send_message("chat:conv1", "hello")["published_to"] == ["chat:conv1"]


def test_on_an_engine_the_active_agent_hears_of_a_message_to_its_conversation(engine: MemoryBus) -> None:
    first = NewRecord("stream:conv1", {"event": "session"})
    engine.call(Append(records=(first,), heads=(SetHead("stream:conv1", {"active_agent": "Dev"}),)))

    from_another = send_message("chat:conv1", "hello")
    from_itself = send_message("chat:conv1", "hello", context={"agent": "Dev"})

    assert from_another["published_to"] == ["chat:conv1", "chat:Dev"]
    assert from_itself["published_to"] == ["chat:conv1"]


def test_in_a_tool_call_of_a_run_the_message_waits_for_the_calls_result(engine: MemoryBus) -> None:
    facts = SimpleNamespace(conversation_id="conv", agent="Me", run_id="r", bus=engine, hops=0, principal=None)

    with call_scope(CallScope(run=facts, key="r/1/c1")) as scope:
        sent = send_message("agent:Dev", "hello", context=facts)

    (held,) = scope.sends
    topics = [record.topic for record in held.append.records]
    assert topics == [*sent["published_to"], "stream:conv"] == ["chat:conv", "chat:Dev", "stream:conv"]
    assert {record.payload["id"] for record in held.append.records[:2]} == {sent["envelope_id"]}
    assert engine.read("chat:conv") == []


def test_a_conversation_cannot_be_called_like_the_agent(bus: InMemoryBus) -> None:
    with pytest.raises(NameTaken):
        send_message("agent:Dev", "hello", conversation_id="Dev")

    assert bus.topics == {}


def test_a_taken_name_is_a_value_error_like_every_bad_argument(engine: MemoryBus) -> None:
    run_sync(engine, register_agent, "Dev")

    for recipient, conversation in (("chat:Dev", None), ("agent:Other", "Dev"), ("agent:Dev", "Dev")):
        with pytest.raises(ValueError, match="Dev"):
            send_message(recipient, "hello", conversation_id=conversation)


def test_the_conversation_shows_the_message_that_it_gets(engine: MemoryBus) -> None:
    sent = send_message("agent:Dev", "hello", conversation_id="conv")

    (event,) = (record.payload for record in engine.read("stream:conv") if record.payload["event"] == "user_message")
    assert (event["message_id"], event["text"], event["recipient"]) == (sent["envelope_id"], "hello", "agent:Dev")


# --- the decorated tool ------------------------------------------------------------------------------------------


def test_importing_send_message_does_not_import_the_sdk() -> None:
    code = "import sys; from magent2.tools.chat import send_message; sys.exit('agents' in sys.modules)"

    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_tool_asks_the_model_for_recipient_content_and_conversation() -> None:
    assert chat_send.name == "chat_send"
    assert list(chat_send.params_json_schema["properties"]) == ["recipient", "content", "conversation_id", "steer"]


async def call_tool(arguments: dict[str, Any], context: Any) -> str:
    """What the model is told after it called the tool in a real run of the SDK."""
    model = ScriptedModel([[function_call("chat_send", arguments, call_id="c1")], [assistant_message("done")]])
    agent = Agent(name="Me", model=model, tools=[chat_send])
    await Runner.run(agent, "go", context=context, run_config=RunConfig(tracing_disabled=True))
    assert model.last_call is not None
    return str(model.last_call.input[-1]["output"])


async def test_the_tool_finds_conversation_sender_and_bus_in_the_run(bus: InMemoryBus) -> None:
    of_the_run = InMemoryBus()
    context = SimpleNamespace(conversation_id="conv", agent="Me", bus=of_the_run)

    told = await call_tool({"recipient": "agent:Dev", "content": "hello", "conversation_id": None}, context)

    (record,) = of_the_run.read("chat:Dev")
    assert (record.payload["conversation_id"], record.payload["sender"]) == ("conv", "agent:Me")
    assert record.payload["id"] in told


async def test_the_model_is_told_why_a_send_was_refused(bus: InMemoryBus) -> None:
    told = await call_tool({"recipient": "room:1", "content": "hello", "conversation_id": None}, None)

    assert "recipient must be 'chat:{conversation_id}' or 'agent:{Name}'" in told
    assert bus.topics == {}
