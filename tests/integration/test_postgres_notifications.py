"""Notifications between processes on PostgreSQL: what is sent, and what a process remembers of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from magent2.bus.operations import Append, Read
from magent2.bus.postgres import PostgresBus
from magent2.bus.postgres_engine import notifications
from magent2.bus.records import NewRecord
from magent2.bus.watch import Watch
from magent2.models.address import topics_of_kind
from tests.support.postgres_server import PostgresServer, Schemas
from tests.support.processes import ProcessGroup
from tests.support.waiting import DEADLINE_S, eventually

pytestmark = pytest.mark.postgres

MANY = 300
SHORT_SWEEP_S = 0.5
SILENT_WRITER = "tests.integration.children.silent_writer"
QUIET_S = 0.2  # without a report, nothing more is on its way


@pytest.fixture
def buses(postgres_server: PostgresServer, postgres_schemas: Schemas) -> Iterator[tuple[PostgresBus, PostgresBus]]:
    """Two processes of one log, as far as notifications are concerned."""
    prefix = postgres_schemas.new_name()
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(closing(PostgresBus(postgres_server.url, prefix=prefix))) for _ in range(2)
        )
        yield first, second


def append(bus: PostgresBus, *topics: str) -> None:
    bus.call(Append(records=tuple(NewRecord(topic, {}) for topic in topics)))


def await_changes(watch: Watch, topics: set[str]) -> None:
    found: set[str] = set()

    def all_reported() -> bool:
        found.update(watch.wait(QUIET_S))
        return found >= topics

    eventually(all_reported)


def await_first_sweep(bus: PostgresBus) -> None:
    """Wait until the bus has reported what may have changed before it listened."""
    thread = bus._hub._thread
    assert thread is not None
    eventually(lambda: thread._sweep_at)


def test_a_process_remembers_nothing_of_topics_that_it_does_not_watch(buses: tuple[PostgresBus, PostgresBus]) -> None:
    writer, other = buses
    with writer.watch(["note:watched"]) as watch:
        append(other, "note:watched")
        assert watch.wait(DEADLINE_S)
        for number in range(MANY):
            append(writer, f"note:{number}")

        thread = writer._hub._thread
        assert thread is not None
        assert thread._seen.keys() <= {"note:watched"}
        eventually(lambda: not thread._unsent)


def test_many_changes_at_once_are_found_by_a_sweep(
    buses: tuple[PostgresBus, PostgresBus], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, other = buses
    monkeypatch.setattr(notifications, "NOTIFICATIONS_MAX", 0)
    monkeypatch.setattr(notifications, "SWEEP_S", 3600.0)
    with other.watch(["note:1", topics_of_kind("memo")]) as watch:
        eventually(lambda: not watch.wait(QUIET_S))  # what is reported at the start

        append(writer, "note:1", "memo:1")

        await_changes(watch, {"note:1", "memo:1"})


def test_a_sweep_finds_what_a_killed_process_has_not_sent(
    postgres_server: PostgresServer,
    postgres_schemas: Schemas,
    process_group: ProcessGroup,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    prefix = postgres_schemas.new_name()
    monkeypatch.setattr(notifications, "SWEEP_S", SHORT_SWEEP_S)
    with (
        closing(PostgresBus(postgres_server.url, prefix=prefix)) as bus,
        bus.watch(["note:1", topics_of_kind("note")]) as watch,
    ):
        await_first_sweep(bus)
        eventually(lambda: not watch.wait(QUIET_S))
        child = process_group.spawn(SILENT_WRITER, url=f"{postgres_server.url}?prefix={prefix}", topic="note:1")
        committed = child.next_report()
        child.kill()

        await_changes(watch, {"note:1"})
        seqs = [record.seq for record in bus.call(Read("note:1")).records]

    assert committed == {"seq": 1, "unsent": ["note:1"]}
    assert seqs == [1]


def test_what_cannot_be_sent_is_bounded(
    buses: tuple[PostgresBus, PostgresBus], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, other = buses
    monkeypatch.setattr(notifications, "UNSENT_TOPICS_MAX", 10)
    topics = [f"note:{number}" for number in range(MANY)]
    with other.watch(topics) as watch:
        eventually(lambda: not watch.wait(QUIET_S))

        append(writer, *topics)

        await_changes(watch, set(topics))


def test_a_long_prefix_in_any_script_has_a_channel(postgres_server: PostgresServer) -> None:
    prefix = "ж" * 31  # 62 bytes
    try:
        with (
            closing(PostgresBus(postgres_server.url, prefix=prefix)) as first,
            closing(PostgresBus(postgres_server.url, prefix=prefix)) as second,
            second.watch(["note:1"]) as watch,
        ):
            eventually(lambda: not watch.wait(QUIET_S))
            append(first, "note:1")
            assert watch.wait(DEADLINE_S) == {"note:1"}
    finally:
        postgres_server.drop_schema(prefix)
