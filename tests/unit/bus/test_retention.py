from __future__ import annotations

from collections.abc import Iterator

import pytest

from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Describe, PutBlob, SetHead
from magent2.bus.records import NewRecord
from magent2.bus.retention import RetentionPolicy, SweepResult, TopicRetention, sweep
from magent2.errors import InvalidInput

NOW_MS = 10**15  # far in the future: everything is old


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    engine = MemoryBus()
    yield engine
    engine.close()


def fill(bus: MemoryBus, topic: str, count: int) -> None:
    bus.call(Append(records=tuple(NewRecord(topic, {"n": n}) for n in range(count))))


def test_a_sweep_without_a_policy_drops_nothing_but_what_is_contained_elsewhere(bus: MemoryBus) -> None:
    fill(bus, "stream:a", 3)
    piece = NewRecord("stream:a", {"text": "he"}, draft="m1")
    whole = NewRecord("stream:a", {"text": "hello"}, closes="m1")
    bus.call(Append(records=(piece, whole)))

    swept = run_sync(bus, sweep, RetentionPolicy(compact_after_s=0), NOW_MS)

    assert swept == SweepResult(topics=1, drafts=1)
    assert [record.seq for record in bus.read("stream:a")] == [1, 2, 3, 5]


def test_a_kind_that_the_policy_names_is_trimmed_and_others_are_not(bus: MemoryBus) -> None:
    fill(bus, "note:a", 5)
    fill(bus, "stream:a", 5)

    run_sync(bus, sweep, RetentionPolicy(keep={"note": TopicRetention(count=2)}), 0)

    assert len(bus.read("note:a")) == 2
    assert len(bus.read("stream:a")) == 5


def test_idle_conversations_expire_when_asked_to(bus: MemoryBus) -> None:
    fill(bus, "stream:old", 1)
    fill(bus, "chat:old", 1)

    swept = run_sync(bus, sweep, RetentionPolicy(expire_idle_s=60), NOW_MS)

    assert swept.expired == 1
    assert all(info.deleted for info in bus.call(Describe(("stream:old", "chat:old"))))


def test_an_active_conversation_does_not_expire(bus: MemoryBus) -> None:
    bus.call(Append(records=(NewRecord("stream:new", {}),), heads=(SetHead("stream:new", {"title": "x"}),)))

    assert run_sync(bus, sweep, RetentionPolicy(expire_idle_s=60), 0).expired == 0


def test_blobs_that_no_record_names_are_removed(bus: MemoryBus) -> None:
    bus.call(PutBlob(b"unnamed"))

    assert run_sync(bus, sweep, RetentionPolicy(blobs_after_s=0), 0).blobs == 1


def test_keeping_by_both_number_and_age_is_refused() -> None:
    with pytest.raises(InvalidInput):
        TopicRetention(count=1, age_s=1)
    with pytest.raises(InvalidInput):
        TopicRetention()
