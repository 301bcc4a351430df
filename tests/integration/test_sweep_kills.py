"""Processes that sweep, killed and frozen in the middle: another one goes on, and nothing but drafts is lost."""

from __future__ import annotations

import pytest

from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Describe, Read, SetHead
from magent2.bus.records import NewRecord, Record
from tests.support.audit import whole_log
from tests.support.processes import Child, ProcessGroup, freeze_between_commits
from tests.support.waiting import eventually

CHILD = "tests.integration.children.sweeping"
LEASE_S = 1.0
CONVERSATIONS, TOKENS = 12, 30
TOPICS = tuple(f"stream:c{n}" for n in range(CONVERSATIONS))


def fill(engine: Engine) -> None:
    """Conversations with an answer, and an answer that is not complete yet."""
    for topic in TOPICS:
        pieces = [NewRecord(topic, {"event": "token", "n": n}, draft="run-1") for n in range(TOKENS)]
        whole = NewRecord(topic, {"event": "output"}, "out", closes="run-1")
        open_piece = NewRecord(topic, {"event": "token"}, draft="run-2")
        head = SetHead(topic, {"run_status": "running"})
        engine.call(
            Append(records=(NewRecord(topic, {"event": "user_message"}), *pieces, whole, open_piece), heads=(head,))
        )


def drafts(records: list[Record]) -> int:
    return sum(record.draft == "run-1" for record in records)


def start(group: ProcessGroup, url: str, worker: str, waits_at: int | None = None, after: bool = False) -> Child:
    child = group.spawn(CHILD, url=url, worker=worker, lease_s=LEASE_S, waits_at=waits_at, after=after)
    assert child.next_report() == {"ready": True}
    return child


def check(engine: Engine) -> None:
    """Only closed drafts are gone, in every conversation, and no cursor has become invalid."""
    for topic, info in zip(TOPICS, engine.call(Describe(TOPICS)), strict=True):
        assert [record.seq for record in whole_log(engine, topic)] == [1, TOKENS + 2, TOKENS + 3]
        assert (info.floor, info.last) == (0, TOKENS + 3)
        assert [record.seq for record in engine.call(Read(topic, 7)).records] == [TOKENS + 2, TOKENS + 3]


@pytest.mark.parametrize(("step", "after"), [(1, False), (5, False), (5, True), (CONVERSATIONS, True)])
def test_a_sweep_whose_process_is_killed_is_finished_by_another(
    log_url: str, engine: Engine, process_group: ProcessGroup, step: int, after: bool
) -> None:
    fill(engine)
    first = start(process_group, log_url, "first", step, after)
    assert first.next_report() == {"at": step}
    swept = sum(not drafts(whole_log(engine, topic)) for topic in TOPICS)

    first.kill()
    second = start(process_group, log_url, "second")
    ended = second.next_report()

    assert swept == step - (not after)
    assert ended["ended"]
    assert ended["steps"] <= CONVERSATIONS - step + 2  # it went on where the first one had stopped
    check(engine)


def test_a_frozen_sweeper_is_fenced_when_it_resumes(log_url: str, engine: Engine, process_group: ProcessGroup) -> None:
    fill(engine)
    frozen = start(process_group, log_url, "frozen", 3)
    assert frozen.next_report() == {"at": 3}

    freeze_between_commits(frozen, engine)
    second = start(process_group, log_url, "second")
    assert second.next_report()["ended"]
    frozen.resume()
    frozen.write_line("go on")

    # It makes the step that it was in, which has no effect any more, and none after it.
    assert frozen.next_report() == {"fenced": True, "steps": 3}
    check(engine)


def test_a_sweep_goes_on_beside_a_reader_that_follows_the_stream(
    log_url: str, engine: Engine, process_group: ProcessGroup
) -> None:
    fill(engine)
    seen = whole_log(engine, TOPICS[0])[-1].id
    start(process_group, log_url, "sweeper")

    eventually(lambda: not any(drafts(whole_log(engine, topic)) for topic in TOPICS))
    engine.call(Append(records=(NewRecord(TOPICS[0], {"event": "output"}, "next", closes="run-2"),)))

    rest = engine.call(Read(TOPICS[0], seen)).records
    assert [record.id for record in rest] == ["next"]
    assert [record.seq for record in engine.call(Read(TOPICS[0], "@3")).records] == [TOKENS + 2, TOKENS + 3, TOKENS + 4]
