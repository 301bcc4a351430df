"""Which commits of the SQLite engine wait for the disk."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from magent2.bus.operations import Append, Claim, Delete, Later, OwnedAppend, Renew, Settle
from magent2.bus.records import NewRecord
from magent2.bus.sqlite import SqliteBus
from tests.support.worker_fixture import AGENT, LEASE_S, claim_one, send

SYNCED = "PRAGMA synchronous = FULL"
NOT_SYNCED = "PRAGMA synchronous = NORMAL"
RECORD = NewRecord("stream:one", {})


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[SqliteBus]:
    bus = SqliteBus(tmp_path / "log.db")
    yield bus
    bus.close()


@contextmanager
def commits(bus: SqliteBus) -> Iterator[list[bool]]:
    """For each commit meanwhile, whether it waited for the disk."""
    found: list[bool] = []
    synced = bool(bus._db.connection.execute("PRAGMA synchronous").fetchone()[0] == 2)

    def follow(statement: str) -> None:
        nonlocal synced
        if statement in (SYNCED, NOT_SYNCED):
            synced = statement == SYNCED
        elif statement == "COMMIT":
            found.append(synced)

    bus._db.connection.set_trace_callback(follow)
    yield found
    bus._db.connection.set_trace_callback(None)


def test_a_claim_and_a_renewal_do_not_wait_for_the_disk(bus: SqliteBus) -> None:
    send(bus, "hello")

    with commits(bus) as found:
        claim_one(bus)
        bus.call(Renew("w1", LEASE_S))

    assert found == [False, False]


def test_every_other_write_waits_for_the_disk_also_right_after_a_claim(bus: SqliteBus) -> None:
    send(bus, "hello")
    send(bus, "hello again", "two")
    first, second = claim_one(bus), claim_one(bus)

    with commits(bus) as found:
        bus.call(Append(records=(RECORD,)))
        bus.call(OwnedAppend(owner=first.owner, n=1, records=(RECORD,)))
        bus.call(Renew("w1", LEASE_S))
        bus.call(Settle(owner=first.owner, mail=(first.mail[0].ref,)))
        bus.call(Renew("w1", LEASE_S))
        bus.call(Later(owner=second.owner, delay_s=1.0))
        bus.call(Delete(("stream:one",)))

    assert [synced for synced in found if synced] == [True] * 5
    assert len(found) == 7


async def test_a_claim_that_shares_a_commit_with_a_write_waits_for_the_disk(bus: SqliteBus) -> None:
    with commits(bus) as found:
        claim = Claim(worker="w1", agents=(AGENT,), limit=1, lease_s=LEASE_S)
        await asyncio.gather(bus.acall(claim), bus.acall(Append(records=(RECORD,))))

    assert found == [True]
