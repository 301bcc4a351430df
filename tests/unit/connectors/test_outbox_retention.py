from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Append, Describe, GetBlob, PutBlob, Read, SweepBlobs, Trim
from magent2.bus.sqlite import SqliteBus
from magent2.connectors import relay as relays
from magent2.connectors.interface import Attachment, OutgoingMessage
from magent2.connectors.outbox import (
    DELIVERED_KEPT_S,
    OutboxEvent,
    OutboxIndex,
    OutboxLine,
    old_items,
    plan_trim,
    queue_records,
    retry_item,
    state_record,
    trim_outbox,
)
from magent2.directory.connectors import Capabilities, find_connector, register_connector
from magent2.errors import BlobMissing
from magent2.sessions.store import create_session
from tests.support.engine_wrappers import BeforeFirst
from tests.support.engines import ENGINES, new_engines, spoil_next_record
from tests.support.fake_receivers import FakeConnector
from tests.support.waiting import until
from tests.unit.connectors.test_relay import relaying, states

TOPIC = "outbox:hook"
NOW_MS = 10_000_000


@pytest.fixture(params=ENGINES)
def bus(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = new_engines(request.param, request)()
    run_sync(engine, create_session, "one", "user:ann")
    run_sync(engine, register_connector, "hook", "kept", Capabilities())
    yield engine
    engine.close()


def put(bus: Engine, text: str, state: OutboxEvent | None = None, blob: bytes | None = None) -> str:
    """A message, and what became of it."""
    connector = run_sync(bus, find_connector, "hook").state
    files = () if blob is None else (Attachment("a.txt", bus.call(PutBlob(blob)), "text/plain", len(blob)),)
    key = f"m-{text}"
    message = OutgoingMessage(key, "hook", "ann", "one", "Ada", text, "2026-01-01T00:00:00+00:00", None, files)
    body, job = queue_records(message, connector)
    ended = [] if state is None else [state_record(key, "hook", state)]
    bus.call(Append(records=(body, *ended, *([job] if state is None else []))))
    return key


def later(seconds: float = DELIVERED_KEPT_S + 60) -> int:
    return round((time.time() + seconds) * 1000)


# --- decisions


def test_what_is_old_or_too_many_may_go_and_nothing_that_waits() -> None:
    done = {"old": NOW_MS - 2000, "young": NOW_MS - 500, "younger": NOW_MS - 100, "waits": None}

    assert old_items(done, NOW_MS, kept_s=1.0, kept_max=9) == {"old"}
    assert old_items(done, NOW_MS, kept_s=9.0, kept_max=1) == {"old", "young"}
    assert old_items(done, NOW_MS, kept_s=9.0, kept_max=3) == frozenset()


def test_behind_what_stays_the_old_is_emptied() -> None:
    lines = [
        OutboxLine(3, "a"),
        OutboxLine(4, "gone before"),
        OutboxLine(5, None),
        OutboxLine(6, "a"),
        OutboxLine(7, "b"),
        OutboxLine(8, "c"),
        OutboxLine(9, "b"),
    ]
    book = OutboxIndex(lines, {"a": 1, "b": None, "c": 2})

    assert plan_trim(book, frozenset({"a", "c"})) == (6, [8])
    assert plan_trim(book, frozenset({"c"})) == (0, [8])
    assert plan_trim(OutboxIndex(), frozenset()) == (0, [])


# --- on the log


def test_delivered_messages_go_and_those_that_wait_for_a_person_stay(bus: Engine) -> None:
    put(bus, "first", "sent")
    stuck = put(bus, "stuck", "unknown")
    put(bus, "behind", "sent", blob=b"a file that went along")
    put(bus, "given up", "dropped")
    put(bus, "waiting")

    assert run_sync(bus, trim_outbox, "hook", later()) == 3

    assert states(bus) == {"stuck": "unknown", "waiting": "waiting"}
    whole = bus.call(Read(TOPIC, None, 1000)).records
    assert not [record for record in whole if "behind" in str(record.payload) or "first" in str(record.payload)]
    assert whole[0].seq == bus.call(Describe((TOPIC,)))[0].floor + 1 == 3
    assert bus.call(SweepBlobs(0.0)) == 1
    with pytest.raises(BlobMissing):
        bus.call(GetBlob(PutBlob(b"a file that went along").name))
    assert run_sync(bus, retry_item, "hook", stuck).state == "waiting"


def test_what_is_young_stays(bus: Engine) -> None:
    put(bus, "just now", "sent")

    assert run_sync(bus, trim_outbox, "hook", later(60)) == 0
    assert states(bus) == {"just now": "sent"}


def test_the_latest_stay_however_many_there_are(bus: Engine) -> None:
    for number in range(6):
        put(bus, f"n{number}", "sent")

    assert run_sync(bus, trim_outbox, "hook", later(60), kept_max=2) == 4
    assert len(states(bus)) == 2
    assert run_sync(bus, trim_outbox, "hook", later(60), kept_max=2) == 0


def test_what_comes_while_it_is_trimmed_stays(bus: Engine) -> None:
    put(bus, "old", "sent")

    def put_more() -> None:
        put(bus, "new")
        put(bus, "newer", "sent")

    run_sync(BeforeFirst(bus, Trim, put_more), trim_outbox, "hook", later())

    assert states(bus) == {"new": "waiting", "newer": "sent"}


def test_relay_jobs_that_were_done_go_too_and_those_that_wait_stay(bus: Engine) -> None:
    put(bus, "waiting")

    run_sync(bus, trim_outbox, "hook", later(), kept_s=0.0)

    assert bus.call(Describe(("chat:outbox:hook",)))[0].floor == 0


async def test_a_relay_trims_and_goes_on_sending(bus: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    put(bus, "old", "sent")
    put(bus, "unread")
    monkeypatch.setattr(relays, "trim_outbox", partial(trim_outbox, kept_s=0.0))
    keeper = FakeConnector()

    async with relaying(bus, keeper):
        await until(lambda: keeper.texts == ["unread"] and "old" not in states(bus))


async def test_a_record_that_cannot_be_read_stops_no_relay(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    bus, keeper = SqliteBus(tmp_path / "log.db"), FakeConnector()
    run_sync(bus, register_connector, "hook", "kept", Capabilities())
    with closing(sqlite3.connect(tmp_path / "log.db")) as connection:
        spoil_next_record(bus, TOPIC, connection)
    put(bus, "next")

    async with relaying(bus, keeper):
        await until(lambda: keeper.texts == ["next"] and "cannot be trimmed" in caplog.text)
    bus.close()
