from __future__ import annotations

from collections.abc import Iterator

import pytest

from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Claim, Delete, Erase
from magent2.bus.records import ClaimedLane, NewRecord
from magent2.errors import UnknownCursor
from magent2.mail.dead_letters import bury, drop_dead_letter, list_dead_letters, retry_dead_letter
from magent2.mail.delivery import deliver
from magent2.models.address import conversation_topics
from magent2.models.envelope import MessageEnvelope
from tests.support.engine_wrappers import CrashesBefore, ProcessCrashed


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    engine = MemoryBus()
    yield engine
    engine.close()


def claimed(bus: MemoryBus) -> ClaimedLane:
    (lane,) = bus.call(Claim(worker="w", agents=("Dev",), limit=1, lease_s=60)).lanes
    return lane


def buried(bus: MemoryBus) -> MessageEnvelope:
    sent = MessageEnvelope(conversation_id="conv", sender="user:ann", recipient="agent:Dev", content="hi")
    run_sync(bus, deliver, sent)
    lane = claimed(bus)
    told = NewRecord("stream:conv", {"event": "error", "conversation_id": "conv"})
    bus.call(bury(lane.owner, lane.mail[0], "model refused", lane.attempt, (told,)))
    return sent


def test_a_dead_letter_holds_the_mail_as_it_was_and_why(bus: MemoryBus) -> None:
    sent = buried(bus)

    (letter,) = run_sync(bus, list_dead_letters, "Dev")

    assert (letter.reason, letter.attempts, letter.conversation_id) == ("model refused", 1, "conv")
    assert letter.mail["payload"] == sent.model_dump(mode="json")
    assert letter.mail["id"] == sent.id


def test_burying_settles_the_mail_and_tells_the_conversation(bus: MemoryBus) -> None:
    buried(bus)

    assert bus.call(Claim(worker="w", agents=("Dev",), limit=1, lease_s=60)).lanes == ()
    assert bus.read("stream:conv")[0].payload["event"] == "error"


def test_a_retried_letter_is_mail_again_and_off_the_list(bus: MemoryBus) -> None:
    sent = buried(bus)

    run_sync(bus, retry_dead_letter, "Dev", 1)

    lane = claimed(bus)
    assert lane.mail[0].payload["id"] == sent.id
    assert lane.mail[0].headers["retry_of"] == 1
    assert run_sync(bus, list_dead_letters, "Dev") == ()


def test_a_letter_is_retried_once(bus: MemoryBus) -> None:
    buried(bus)
    with pytest.raises(ProcessCrashed):
        run_sync(CrashesBefore(bus, Erase), retry_dead_letter, "Dev", 1)

    run_sync(bus, retry_dead_letter, "Dev", 1)
    with pytest.raises(UnknownCursor, match="retried or dropped"):
        run_sync(bus, retry_dead_letter, "Dev", 1)

    assert len(bus.read("chat:Dev")) == 2


def test_a_dropped_letter_is_gone(bus: MemoryBus) -> None:
    buried(bus)

    run_sync(bus, drop_dead_letter, "Dev", 1)

    assert run_sync(bus, list_dead_letters, "Dev") == ()
    with pytest.raises(UnknownCursor):
        run_sync(bus, drop_dead_letter, "Dev", 1)


def test_deleting_the_conversation_empties_its_letters(bus: MemoryBus) -> None:
    buried(bus)

    bus.call(Delete(conversation_topics("conv"), conversation="conv"))

    assert run_sync(bus, list_dead_letters, "Dev") == ()
    assert bus.read("dead:Dev")[0].erased
