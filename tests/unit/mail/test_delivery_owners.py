"""Whose conversation it is decides who may write into it, in the append itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Append, Delete, Describe
from magent2.errors import IdConflict, NameTaken, NotYours, TopicDeleted
from magent2.mail.conversation_state import ActiveAgentCache
from magent2.mail.delivery import DeliveryResult, SendOptions, deliver
from magent2.mail.registration import register_agent
from magent2.models.envelope import MessageEnvelope
from tests.support.engine_wrappers import BeforeFirst, OperationCounter
from tests.support.engines import DISTINCT_ENGINES, new_engines

ANN, BOB = "user:ann", "user:bob"


@pytest.fixture(params=DISTINCT_ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


def mail(principal: str | None, **fields: Any) -> MessageEnvelope:
    given = {"conversation_id": "conv", "sender": principal or "user:root", "recipient": "agent:Dev", "content": "hi"}
    return MessageEnvelope(**{**given, **fields})


def post(
    bus: Engine, principal: str | None, active_agents: ActiveAgentCache | None = None, **fields: Any
) -> DeliveryResult:
    return run_sync(bus, deliver, mail(principal, **fields), SendOptions(principal=principal), active_agents)


def head(bus: Engine, conversation: str = "conv") -> Mapping[str, Any]:
    return bus.call(Describe((f"stream:{conversation}",)))[0].head


def count(bus: Engine, topic: str) -> int:
    return len(list(bus.read(topic)))


@pytest.fixture(params=["looking", "guessing"])
def active_agents(request: pytest.FixtureRequest) -> ActiveAgentCache | None:
    return ActiveAgentCache() if request.param == "guessing" else None


def test_the_first_sender_owns_a_conversation(bus: Engine, active_agents: ActiveAgentCache | None) -> None:
    post(bus, ANN, active_agents)
    post(bus, ANN, active_agents, recipient="chat:conv")

    assert head(bus) == {"active_agent": "Dev", "owner": ANN}
    assert count(bus, "chat:Dev") == 2


def test_a_conversation_begun_without_an_agent_is_owned_too(
    bus: Engine, active_agents: ActiveAgentCache | None
) -> None:
    post(bus, ANN, active_agents, recipient="chat:conv")
    post(bus, ANN, active_agents, recipient="chat:conv")

    assert head(bus) == {"owner": ANN}
    with pytest.raises(NotYours):
        post(bus, BOB, active_agents, recipient="chat:conv")


@pytest.mark.parametrize("fields", [{}, {"recipient": "chat:conv"}, {"type": "control", "content": "stop"}])
def test_another_persons_conversation_takes_nothing_of_others(
    bus: Engine, active_agents: ActiveAgentCache | None, fields: dict[str, Any]
) -> None:
    post(bus, ANN, active_agents)

    with pytest.raises(NotYours):
        post(bus, BOB, active_agents, **fields)

    assert count(bus, "chat:conv") == count(bus, "chat:Dev") == 1
    assert count(bus, "control:Dev") == 0


@pytest.mark.parametrize("recipient", ["agent:Dev", "chat:conv"])
def test_a_conversation_without_an_owner_is_not_for_the_taking(
    bus: Engine, active_agents: ActiveAgentCache | None, recipient: str
) -> None:
    post(bus, None, active_agents, recipient=recipient)

    with pytest.raises(NotYours):
        post(bus, ANN, active_agents)

    assert "owner" not in head(bus)


def test_trusted_code_writes_anywhere_and_changes_no_owner(bus: Engine, active_agents: ActiveAgentCache | None) -> None:
    post(bus, ANN, active_agents)
    post(bus, None, active_agents)

    assert head(bus)["owner"] == ANN


def test_a_command_begins_no_conversation(bus: Engine) -> None:
    with pytest.raises(NotYours):
        post(bus, ANN, type="control", content="stop")

    assert count(bus, "control:Dev") == 0


def test_the_owner_may_command(bus: Engine) -> None:
    post(bus, ANN)

    post(bus, ANN, type="control", content="stop")

    assert count(bus, "control:Dev") == 1


def test_an_id_that_is_known_elsewhere_tells_a_stranger_nothing(
    bus: Engine, active_agents: ActiveAgentCache | None
) -> None:
    post(bus, ANN, active_agents, id="m1")

    with pytest.raises(NotYours):
        post(bus, BOB, active_agents, id="m1", content="other")
    with pytest.raises(IdConflict):
        post(bus, ANN, active_agents, id="m1", content="other")


def test_a_repeat_of_the_first_message_is_a_repeat(bus: Engine, active_agents: ActiveAgentCache | None) -> None:
    first = post(bus, ANN, active_agents, id="m1")

    again = post(bus, ANN, active_agents, id="m1")

    assert again.appended.repeat
    assert again.appended.seqs == first.appended.seqs


def test_names_of_agents_and_deleted_conversations_are_told_as_such(
    bus: Engine, active_agents: ActiveAgentCache | None
) -> None:
    run_sync(bus, register_agent, "Ops")
    post(bus, ANN, active_agents)
    bus.call(Delete(("stream:conv", "chat:conv", "history:conv"), conversation="conv"))

    with pytest.raises(NameTaken):
        post(bus, ANN, active_agents, conversation_id="Ops")
    with pytest.raises(TopicDeleted):
        post(bus, ANN, active_agents)


def test_the_inbox_of_an_unregistered_agent_is_no_conversation(bus: Engine) -> None:
    post(bus, ANN)

    with pytest.raises(NotYours):
        post(bus, BOB, conversation_id="Dev", recipient="chat:Dev")


def test_of_two_who_begin_at_the_same_moment_one_owns_it_and_the_other_is_refused(bus: Engine) -> None:
    racing = BeforeFirst(bus, Append, lambda: post(bus, ANN))

    with pytest.raises(NotYours):
        run_sync(racing, deliver, mail(BOB), SendOptions(principal=BOB))

    assert head(bus)["owner"] == ANN
    assert count(bus, "chat:conv") == 1


def test_a_known_conversation_takes_one_append(bus: Engine) -> None:
    active_agents = ActiveAgentCache()
    counting = OperationCounter(bus)

    for number in range(3):
        run_sync(counting, deliver, mail(ANN, id=f"m{number}"), SendOptions(principal=ANN), active_agents)

    assert counting.kinds == ["Append"] * 3


@pytest.mark.parametrize("recipient", ["agent:Dev", "chat:conv"])
def test_a_guess_that_a_conversation_is_new_takes_nothing_that_is_there(bus: Engine, recipient: str) -> None:
    post(bus, None, recipient=recipient)

    with pytest.raises(NotYours):
        post(bus, ANN, ActiveAgentCache(), recipient="chat:conv")

    assert count(bus, "chat:conv") == 1
    assert "owner" not in head(bus)


@pytest.mark.parametrize("recipient", ["agent:Dev", "chat:conv"])
def test_what_trusted_code_begins_at_the_same_moment_is_not_for_the_taking(bus: Engine, recipient: str) -> None:
    racing = BeforeFirst(bus, Append, lambda: post(bus, None, recipient=recipient))

    with pytest.raises(NotYours):
        run_sync(racing, deliver, mail(BOB, recipient="chat:conv"), SendOptions(principal=BOB))

    assert count(bus, "chat:conv") == 1
