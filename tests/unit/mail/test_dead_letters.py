from __future__ import annotations

from collections.abc import Iterator

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Claim, Delete, Erase
from magent2.bus.records import ClaimedLane, NewRecord
from magent2.errors import InvalidInput, UnknownCursor
from magent2.mail.dead_letters import (
    DEAD_PAGE,
    DeadLetterAction,
    DeadLetterBatch,
    DeadLetterCursor,
    DeadLetterFilter,
    bury,
    drop_dead_letter,
    list_dead_letters,
    process_dead_letters,
    retry_dead_letter,
)
from magent2.mail.delivery import deliver
from magent2.models.address import conversation_topics
from magent2.models.envelope import MessageEnvelope
from tests.support.audit import whole_log
from tests.support.engine_wrappers import CrashesBefore, ProcessCrashed
from tests.support.engines import ENGINES, new_engines


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
    assert letter.mail["payload"]["id"] == sent.id


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


# --- many at once

ALL = DeadLetterFilter()


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    yield engine
    engine.close()


def bury_mail(engine: Engine, text: str, agent: str = "Dev", reason: str = "model refused") -> None:
    """Send a message in a conversation of its own, and bury it."""
    run_sync(
        engine,
        deliver,
        MessageEnvelope(conversation_id=f"c-{text}", sender="user:ann", recipient=f"agent:{agent}", content=text),
    )
    (lane,) = engine.call(Claim(worker="w", agents=(agent,), limit=1, lease_s=60)).lanes
    engine.call(bury(lane.owner, lane.mail[0], reason, lane.attempt))


def process_all(engine: Engine, action: DeadLetterAction, chosen: DeadLetterFilter) -> list[DeadLetterBatch]:
    batches: list[DeadLetterBatch] = []
    after: DeadLetterCursor | None = None
    while True:
        batches.append(run_sync(engine, process_dead_letters, action, chosen, after))
        if batches[-1].next is None:
            return batches
        after = DeadLetterCursor.parse(str(batches[-1].next))


def left(engine: Engine, agent: str = "Dev") -> list[str]:
    records = [record for record in whole_log(engine, f"dead:{agent}") if not record.erased]
    return [record.payload["mail"]["payload"]["content"] for record in records]


def inbox(engine: Engine, agent: str = "Dev") -> list[str]:
    return [record.payload["content"] for record in whole_log(engine, f"chat:{agent}")]


def test_conditions_combine(engine: Engine) -> None:
    bury_mail(engine, "old")
    (old,) = run_sync(engine, list_dead_letters, "Dev")
    for text, agent, reason in (("a", "Dev", "HTTP 503"), ("b", "Dev", "refused"), ("c", "Ops", "HTTP 503")):
        bury_mail(engine, text, agent, reason)
    chosen = DeadLetterFilter("Dev", old.buried_ms, "503")

    (batch,) = process_all(engine, "retry", chosen)

    assert [letter.mail["payload"]["content"] for letter in batch.letters] == ["a"]
    assert (left(engine), left(engine, "Ops")) == (["old", "b"], ["c"])
    assert inbox(engine) == ["old", "a", "b", "a"]


def test_letters_from_before_a_time_are_left_out(engine: Engine) -> None:
    bury_mail(engine, "old")
    (old,) = run_sync(engine, list_dead_letters, "Dev")

    (batch,) = process_all(engine, "drop", DeadLetterFilter(since_ms=old.buried_ms + 1))

    assert batch.letters == ()
    assert left(engine) == ["old"]


@pytest.mark.parametrize("action", ["retry", "drop"])
def test_all_letters_of_all_agents_go_in_batches(engine: Engine, action: DeadLetterAction) -> None:
    texts = [f"t{number}" for number in range(DEAD_PAGE + 5)]
    for text in texts:
        bury_mail(engine, text)
    bury_mail(engine, "other", "Ops")

    batches = process_all(engine, action, ALL)

    assert [len(batch.letters) for batch in batches] == [DEAD_PAGE, 6]
    assert (left(engine), left(engine, "Ops")) == ([], [])
    again = 2 if action == "retry" else 1
    assert sorted(inbox(engine)) == sorted(texts * again)
    assert inbox(engine, "Ops") == ["other"] * again


def test_a_dry_run_names_the_letters_and_changes_nothing(bus: MemoryBus) -> None:
    bury_mail(bus, "a")

    batch = run_sync(bus, process_dead_letters, "drop", ALL, dry_run=True)

    assert [letter.mail["payload"]["content"] for letter in batch.letters] == ["a"]
    assert (left(bus), inbox(bus)) == (["a"], ["a"])


def test_a_batch_that_was_cut_short_retries_each_letter_once_when_it_is_run_again(bus: MemoryBus) -> None:
    for text in ("a", "b"):
        bury_mail(bus, text)
    with pytest.raises(ProcessCrashed):
        run_sync(CrashesBefore(bus, Erase), process_dead_letters, "retry", ALL)

    (batch,) = process_all(bus, "retry", ALL)

    assert len(batch.letters) == 2
    assert inbox(bus) == ["a", "b", "a", "b"]


def test_letters_that_are_buried_meanwhile_are_left_for_the_next_time(bus: MemoryBus) -> None:
    for number in range(DEAD_PAGE + 1):
        bury_mail(bus, f"t{number}")
    first = run_sync(bus, process_dead_letters, "drop", ALL)
    bury_mail(bus, "late")

    second = run_sync(bus, process_dead_letters, "drop", ALL, first.next)

    assert (len(second.letters), second.next) == (1, None)
    assert left(bus) == ["late"]


def test_a_letter_that_the_log_refuses_is_reported_and_stays_and_the_others_go_on(bus: MemoryBus) -> None:
    for text in ("a", "b"):
        bury_mail(bus, text)
    (refused, _) = run_sync(bus, list_dead_letters, "Dev")
    # The id of the retry is taken by another body.
    taken = NewRecord("chat:Dev", {"other": 1}, id=f"retry:{refused.seq}:{refused.mail['id']}")
    bus.call(Append(records=(taken,)))

    (batch,) = process_all(bus, "retry", ALL)

    assert [letter.seq for letter in batch.letters] == [2]
    assert [letter.seq for letter, _ in batch.refused] == [refused.seq]
    assert left(bus) == ["a"]


@pytest.mark.parametrize("text", ["", "1", "1-2", "1-2-", "x-2-Dev", "-1-2-Dev"])
def test_a_cursor_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput, match="use 'next' of the batch before"):
        DeadLetterCursor.parse(text)


def test_a_cursor_of_another_agent_is_refused(bus: MemoryBus) -> None:
    with pytest.raises(InvalidInput, match="use 'next' of the batch before"):
        run_sync(bus, process_dead_letters, "drop", DeadLetterFilter("Dev"), DeadLetterCursor("Ada", 0, 1))
