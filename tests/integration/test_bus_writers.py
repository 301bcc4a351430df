"""Several processes write to one log and are killed at random moments."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.operations import Describe
from tests.support.audit import (
    append_findings,
    assert_clean,
    sequence_findings,
    series_findings,
    share_findings,
    whole_log,
)
from tests.support.numbered_appends import append_id, numbered_append
from tests.support.processes import Child, ProcessGroup

WRITER = "tests.integration.children.writer"
FOLLOWER = "tests.integration.children.follower"
TOPICS = ("stream:one", "history:one", "chat:one")

WRITERS = 4
APPENDS_TOGETHER = 500  # of each writer, while all of them write

ALIVE = 3  # writers at any time while some are killed
KILLS = 50
KILLS_SOAK = 1000
APPENDS_BEFORE_KILL_MAX = 12
BURST = 40  # appends at a time, so that the log stays small while others are started
WITHOUT_END = 10**9


@dataclass
class Writer:
    """A writer's series of appends, carried on by one process after another."""

    name: str
    child: Child
    acknowledged: int = 0
    seqs: dict[int, int] = field(default_factory=dict)

    def note(self, message: dict[str, Any]) -> None:
        if "n" in message:
            self.acknowledged = message["n"]
            self.seqs[message["n"]] = message["seq"]

    def write(self, appends: int) -> None:
        """Wait until so many more are acknowledged."""
        target = self.acknowledged + appends
        while self.acknowledged < target:
            self.note(self.child.next_report())

    def note_the_rest(self) -> None:
        for message in self.child.final_reports():
            self.note(message)


def begin(
    process_group: ProcessGroup, url: str, name: str, topics: tuple[str, ...], burst: int, start: int = 1
) -> Child:
    return process_group.spawn(WRITER, url=url, name=name, topics=topics, burst=burst, start=start, patient=False)


def test_four_writers_make_one_unbroken_sequence_and_none_starves(
    log_url: str, engine: Engine, process_group: ProcessGroup
) -> None:
    topic = TOPICS[0]
    follower = process_group.spawn(FOLLOWER, url=log_url, topic=topic)
    names = [f"w{number}" for number in range(WRITERS)]
    writers = [Writer(name, begin(process_group, log_url, name, (topic,), WITHOUT_END)) for name in names]
    for writer in writers:
        assert writer.child.next_report() == {"ready": writer.name}
    for writer in writers:
        writer.child.write_line("go")
    for writer in writers:
        writer.write(1)

    begun = engine.call(Describe((topic,)))[0].last
    for writer in writers:
        writer.write(APPENDS_TOGETHER)
    end = engine.call(Describe((topic,)))[0].last
    for writer in writers:
        writer.child.write_line("stop")
    for writer in writers:
        assert writer.child.finish() == 0, writer.child.errors()
        writer.note_the_rest()

    records = whole_log(engine, topic)
    assert_clean(sequence_findings(records) + series_findings(records))
    if log_url.startswith("sqlite"):
        # The lock of the file must be fair. A server serves its clients in turn, but so fast that on a busy machine a
        # third of the log can be written while one of the writers does not run.
        together = [record.payload["writer"] for record in records[begun:end]]
        assert_clean(share_findings(together, all_writers=set(names)))
    assert {record.id: record.seq for record in records} == {
        append_id(writer.name, n): seq for writer in writers for n, seq in writer.seqs.items()
    }
    assert follower.next_report() == {"ready": True}
    assert [follower.next_report() for _ in records] == [{"seq": record.seq, "id": record.id} for record in records]


def kill_writers(kills: int, url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random) -> None:
    """Each killed writer is followed by one that begins with the append that was not acknowledged.

    They take turns, so that the next victims start while the others write.
    """
    names = [f"w{number}" for number in range(ALIVE)]
    writers = [Writer(name, begin(process_group, url, name, TOPICS, BURST)) for name in names]
    for number in range(kills):
        for writer in writers:
            writer.child.write_line("go")
        victim = writers[number % ALIVE]
        victim.write(rng.randint(1, APPENDS_BEFORE_KILL_MAX))
        kill(victim)
        victim.child = begin(process_group, url, victim.name, TOPICS, BURST, victim.acknowledged + 1)
    for writer in writers:
        kill(writer)
    audit_kills(engine, writers)


def kill(writer: Writer) -> None:
    writer.child.kill()
    writer.note_the_rest()


def audit_kills(engine: Engine, writers: list[Writer]) -> None:
    acknowledged = [append_id(writer.name, n) for writer in writers for n in range(1, writer.acknowledged + 1)]
    for writer in writers:
        again = numbered_append(TOPICS, writer.name, writer.acknowledged)
        assert engine.call(again).repeat
        assert engine.call(again).seqs[0] == writer.seqs[writer.acknowledged]
    logs = {topic: whole_log(engine, topic) for topic in TOPICS}
    assert_clean(append_findings(logs, acknowledged))
    for records in logs.values():
        assert_clean(series_findings(records))


def test_a_writer_killed_at_any_moment_leaves_all_of_an_append_or_none(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    kill_writers(KILLS, log_url, engine, process_group, rng)


@pytest.mark.soak
def test_many_writers_killed_at_any_moment_leave_all_of_an_append_or_none(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    kill_writers(KILLS_SOAK, log_url, engine, process_group, rng)
