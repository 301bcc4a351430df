from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from magent2.bus.log import Log, run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Claim, Describe, Read, SetHead
from magent2.bus.records import ClaimedLane, NewRecord
from magent2.errors import AddressError, HopsExceeded, IdConflict, NameTaken
from magent2.mail import delivery
from magent2.mail.addressing import inbox_id
from magent2.mail.delivery import HOPS_MAX, DeliveryResult, SendOptions
from magent2.mail.headers import MAIL_SEEN
from magent2.mail.registration import register_agent
from magent2.models.envelope import MessageEnvelope
from tests.support.engine_wrappers import BeforeFirst


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    engine = MemoryBus()
    yield engine
    engine.close()


def envelope(recipient: str = "agent:Dev", **fields: Any) -> MessageEnvelope:
    return MessageEnvelope(**{"conversation_id": "conv", "sender": "user:ann", "recipient": recipient, **fields})


def deliver(bus: MemoryBus, message: MessageEnvelope, **sending: Any) -> DeliveryResult:
    return run_sync(bus, delivery.deliver, message, SendOptions(**sending))


def claim(bus: MemoryBus, agent: str = "Dev") -> tuple[ClaimedLane, ...]:
    return bus.call(Claim(worker="w", agents=(agent,), limit=10, lease_s=60)).lanes


def active(bus: MemoryBus, conversation: str = "conv") -> object:
    return bus.call(Describe((f"stream:{conversation}",)))[0].head.get("active_agent")


def test_mail_to_an_agent_lies_in_the_conversation_and_in_its_inbox(bus: MemoryBus) -> None:
    sent = envelope(content="hi")

    delivered = deliver(bus, sent)

    assert delivered.topics == ("chat:conv", "chat:Dev")
    for topic, record_id in zip(delivered.topics, (sent.id, inbox_id("conv", sent.id)), strict=True):
        (record,) = bus.read(topic)
        assert record.id == record_id
        assert record.payload == sent.model_dump(mode="json")


def test_mail_that_is_in_two_topics_opens_one_lane(bus: MemoryBus) -> None:
    deliver(bus, envelope())

    (lane,) = claim(bus)

    assert lane.owner.conversation == "conv"
    assert lane.pending == 1


def test_the_first_agent_addressed_becomes_active_and_stays_so(bus: MemoryBus) -> None:
    deliver(bus, envelope("agent:Dev"))
    deliver(bus, envelope("agent:Ops"))

    assert active(bus) == "Dev"


def test_mail_to_a_conversation_goes_to_its_active_agent(bus: MemoryBus) -> None:
    deliver(bus, envelope("agent:Dev"))

    delivered = deliver(bus, envelope("chat:conv"))

    assert delivered.agent == "Dev"
    assert delivered.topics == ("chat:conv", "chat:Dev")


def test_a_persons_mail_with_no_active_agent_goes_to_the_default(bus: MemoryBus) -> None:
    delivered = deliver(bus, envelope("chat:conv"), default_agent="Desk")

    assert delivered.agent == "Desk"
    assert active(bus) == "Desk"


def test_an_agents_mail_without_an_active_agent_reaches_no_inbox(bus: MemoryBus) -> None:
    delivered = deliver(bus, envelope("chat:conv", sender="agent:Other"), default_agent="Desk")

    assert delivered.topics == ("chat:conv",)
    assert active(bus) is None


def test_an_agents_own_message_opens_no_lane_of_its_own(bus: MemoryBus) -> None:
    deliver(bus, envelope("agent:Dev"))
    claim(bus)

    delivered = deliver(bus, envelope("chat:conv", sender="agent:Dev"))
    deliver(bus, envelope("agent:Dev", sender="agent:Dev"))

    assert delivered.topics == ("chat:conv",)
    assert claim(bus) == ()


def test_control_goes_to_the_agent_alone_and_ahead_of_its_mail(bus: MemoryBus) -> None:
    deliver(bus, envelope("agent:Dev"))

    delivered = deliver(bus, envelope("chat:conv", type="control", content="stop"))
    (lane,) = claim(bus)

    assert delivered.topics == ("control:Dev",)
    assert [record.topic for record in lane.mail] == ["control:Dev", "chat:Dev"]


def test_a_command_says_which_mail_its_sender_can_have_meant(bus: MemoryBus) -> None:
    deliver(bus, envelope(content="before"))
    deliver(bus, envelope(type="control", content="stop"))
    deliver(bus, envelope(content="after"))

    (lane,) = claim(bus)
    stop, before, after = lane.mail
    assert (stop.headers[MAIL_SEEN], before.seq, after.seq) == (1, 1, 2)


def test_control_mail_without_an_active_agent_is_refused(bus: MemoryBus) -> None:
    with pytest.raises(AddressError, match="no agent is active"):
        deliver(bus, envelope("chat:conv", type="control"))


def test_a_repeat_that_leaves_out_the_same_defaults_is_the_same(bus: MemoryBus) -> None:
    first = deliver(bus, envelope(id="m1", content="hi"))

    again = deliver(bus, envelope(id="m1", content="hi", metadata={}, type="message"))

    assert again.appended.repeat
    assert again.appended.seqs == first.appended.seqs
    assert len(bus.read("chat:Dev")) == 1


def test_the_same_id_with_another_text_is_a_conflict(bus: MemoryBus) -> None:
    deliver(bus, envelope(id="m1", content="hi"))

    with pytest.raises(IdConflict):
        deliver(bus, envelope(id="m1", content="bye"))


def test_principal_steer_and_hops_are_headers_not_metadata(bus: MemoryBus) -> None:
    deliver(bus, envelope(), principal="user:ann", steer=True, hops=3)

    (record,) = bus.read("chat:Dev")

    assert dict(record.headers) == {"principal": "user:ann", "steer": True, "hops": 3}
    assert record.payload["metadata"] == {}


def test_mail_passed_on_too_often_is_refused(bus: MemoryBus) -> None:
    with pytest.raises(HopsExceeded):
        deliver(bus, envelope(), hops=HOPS_MAX + 1)

    assert bus.read("chat:Dev") == []


def test_an_event_rides_in_the_same_append(bus: MemoryBus) -> None:
    event = NewRecord("stream:conv", {"event": "user_message", "conversation_id": "conv"})
    title = SetHead("stream:conv", {"title": "Hello"})

    deliver(bus, envelope(), with_records=(event,), with_heads=(title,))

    assert bus.call(Describe(("stream:conv",)))[0].head == {"title": "Hello", "active_agent": "Dev"}
    assert len(bus.read("stream:conv")) == 1


def test_a_conversation_cannot_take_the_name_of_an_agent(bus: MemoryBus) -> None:
    run_sync(bus, register_agent, "Dev")

    with pytest.raises(NameTaken):
        deliver(bus, envelope("agent:Ops", conversation_id="Dev"))
    with pytest.raises(NameTaken):
        deliver(bus, envelope("agent:conv"))

    assert bus.read("chat:Ops") == []


def test_an_agent_cannot_take_the_name_of_a_conversation(bus: MemoryBus) -> None:
    deliver(bus, envelope())

    with pytest.raises(NameTaken):
        run_sync(bus, register_agent, "conv")


def test_an_agent_can_be_enlisted_again_with_mail_waiting(bus: MemoryBus) -> None:
    deliver(bus, envelope())

    run_sync(bus, register_agent, "Dev", {"model": "one"})
    run_sync(bus, register_agent, "Dev", {"model": "two"})

    assert bus.call(Describe(("agent:Dev",)))[0].last == 1


@pytest.mark.parametrize("recipient", ["room:1", "agent:", "chat: ", "", "Dev"])
def test_a_recipient_that_is_no_address_is_refused(bus: MemoryBus, recipient: str) -> None:
    with pytest.raises(AddressError, match="recipient must be"):
        deliver(bus, envelope(recipient))


def test_a_recipient_of_another_conversation_is_refused(bus: MemoryBus) -> None:
    with pytest.raises(AddressError, match="differ"):
        deliver(bus, envelope("chat:elsewhere"))


def test_a_switch_of_agents_under_a_delivery_is_seen(bus: MemoryBus) -> None:
    deliver(bus, envelope("agent:Dev"))

    def switch() -> None:
        handoff = NewRecord("stream:conv", {"event": "handoff"})
        bus.call(Append(records=(handoff,), heads=(SetHead("stream:conv", {"active_agent": "Ops"}),)))

    delivered = run_sync(BeforeFirst(bus, Append, switch), delivery.deliver, envelope("chat:conv"))

    assert delivered.agent == "Ops"
    assert bus.read("chat:Ops")[0].payload["recipient"] == "chat:conv"


async def test_the_same_flow_runs_on_a_loop(bus: MemoryBus) -> None:
    delivered = await delivery.deliver(Log(bus), envelope())

    page = await bus.acall(Read("chat:Dev"))
    assert page.records[0].payload["id"] == delivered.envelope_id
