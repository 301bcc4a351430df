"""`chat_send` as a steer, and `message_status`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from agents import FunctionTool

from magent2.bus.interface import BusMessage
from magent2.bus.memory import MemoryBus
from magent2.mail.delivery import SendOptions
from magent2.mail.headers import STEER
from magent2.models.envelope import MessageEnvelope
from magent2.runner.build import function_tool_of
from magent2.runner.context import RunContext
from magent2.tools.chat import chat_send, send_message
from magent2.tools.chat.function_tools import chat_send_definition
from magent2.tools.messaging.read_tools import UNKNOWN_MESSAGE, message_status
from magent2.worker.lane_run import Outcome
from tests.support.audit import whole_log
from tests.support.journaled_runs import (
    CrashingBus,
    context_of,
    message_contents,
    recorded,
    script_call,
    work,
    work_until_crash,
)
from tests.support.runners import AsyncRunner, output
from tests.support.steerable_run import SteerableAgent, shown_steers, steer
from tests.support.worker_fixture import AGENT, run_worker, send, until

ANN = SendOptions(principal="user:ann")


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    send(bus, "go", sending=ANN)
    yield bus
    bus.close()


def sent(bus: MemoryBus) -> dict[str, Any]:
    """What the tool has answered."""
    found: dict[str, Any] = json.loads(recorded(bus)["c1"]["output"])
    return found


@pytest.mark.parametrize("tool", [chat_send, function_tool_of(chat_send_definition())], ids=["own", "registered"])
async def test_a_steer_goes_out_at_once_and_once_though_its_call_is_run_again(
    bus: MemoryBus, tool: FunctionTool
) -> None:
    shown = script_call("chat_send", recipient="agent:Bea", content="hurry", steer=True)

    assert await work_until_crash(CrashingBus(bus, on="tool"), shown.agent(tool))
    (early,) = whole_log(bus, "chat:Bea")
    await work(bus, shown.agent(tool))

    (letter,) = whole_log(bus, "chat:Bea")
    assert letter.id == early.id
    assert letter.payload["id"] == sent(bus)["envelope_id"]
    assert (letter.headers[STEER], letter.headers["principal"], letter.headers["hops"]) == (True, "user:ann", 1)


async def test_an_agent_steers_another_at_work_in_its_conversation(bus: MemoryBus) -> None:
    talk = SteerableAgent(turns=1, name="Bea")
    shown = script_call("chat_send", recipient="chat:one", content="in Celsius", steer=True)
    send(bus, "go", sending=ANN, recipient="agent:Bea")
    async with run_worker(bus, talk.runner, agent="Bea") as service:
        await talk.at(0)
        assert await work(bus, shown.agent(chat_send)) is Outcome.ANSWERED
        talk.open()
        await until(lambda: service.outcomes[Outcome.ANSWERED])

    assert shown_steers(talk.requests[1]) == [(f"agent:{AGENT}", "in Celsius")]
    assert sent(bus)["published_to"] == ["chat:one", "chat:Bea"]


async def test_an_agent_steers_a_run_that_a_raw_publish_has_begun(bus: MemoryBus) -> None:
    """The conversation's own topic has no record of the mail that the run answers, so no cursor points to it."""
    talk = SteerableAgent(turns=1, name="Bea")
    shown = script_call("chat_send", recipient="agent:Bea", content="in Celsius", steer=True)
    mail = MessageEnvelope(conversation_id="one", sender="user:ann", recipient="agent:Bea", content="go")
    bus.publish("chat:Bea", BusMessage("chat:Bea", mail.model_dump(mode="json"), mail.id))
    async with run_worker(bus, talk.runner, agent="Bea") as service:
        await talk.at(0)
        assert await work(bus, shown.agent(chat_send)) is Outcome.ANSWERED
        talk.open()
        await until(lambda: service.outcomes[Outcome.ANSWERED])

    assert sent(bus)["ok"], sent(bus)
    assert shown_steers(talk.requests[1]) == [(f"agent:{AGENT}", "in Celsius")]


async def test_what_cannot_be_steered_is_told_to_the_model(bus: MemoryBus) -> None:
    shown = script_call("chat_send", recipient="agent:Bea", content="x" * 30_000, steer=True)

    await work(bus, shown.agent(chat_send))

    assert (sent(bus)["ok"], message_contents(bus, "chat:Bea")) == (False, [])
    assert "at most" in sent(bus)["error"]


def test_outside_a_run_a_steer_is_sent_with_its_flag(bus: MemoryBus) -> None:
    send_message("agent:Bea", "hello", conversation_id="one", context={"bus": bus}, steer=True)

    (letter,) = whole_log(bus, "chat:Bea")
    assert letter.headers == {STEER: True}


# --- message_status


def status(context: RunContext, envelope_id: str, conversation_id: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = message_status(context, envelope_id, conversation_id)
    return found


async def test_an_agent_learns_what_became_of_what_it_sent(bus: MemoryBus) -> None:
    context = context_of(bus)
    steered = steer(bus, "hurry", recipient="agent:Bea", sender=f"agent:{AGENT}")

    waiting = status(context, steered.envelope_id)
    async with run_worker(bus, AsyncRunner(answer), agent="Bea") as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED])
    answered = status(context, steered.envelope_id)

    assert (waiting["ok"], waiting["status"], waiting["waiting"]) == (True, "accepted", 1)
    assert (answered["status"], answered["receipts"][0]["agent"]) == ("answered", "Bea")


async def answer(envelope: MessageEnvelope, context: RunContext) -> Any:
    yield output(envelope, "done")


@pytest.mark.parametrize(
    ("sender", "principal", "known"),
    [
        (f"agent:{AGENT}", "user:ann", True),
        (f"agent:{AGENT}", "user:bob", False),
        (f"agent:{AGENT}", None, False),
        ("agent:Bea", "user:ann", False),
        ("user:ann", "user:ann", False),
    ],
)
def test_of_other_conversations_it_learns_only_of_its_own_sends(
    bus: MemoryBus, sender: str, principal: str | None, known: bool
) -> None:
    context = context_of(bus)
    context.principal = "user:ann"
    name = send(bus, "news", "two", SendOptions(principal=principal), sender=sender, recipient="agent:Cy")

    found = status(context, name, "two")

    assert found["ok"] is known
    assert known or found == {"ok": False, "error": UNKNOWN_MESSAGE}


@pytest.mark.parametrize("name", ["never-sent", ""])
def test_an_unknown_id_is_refused_with_a_reason(bus: MemoryBus, name: str) -> None:
    assert status(context_of(bus), name)["ok"] is False


def test_a_model_is_offered_nothing_of_the_run_itself() -> None:
    assert set(message_status.params_schema["properties"]) == {"envelope_id", "conversation_id"}
