"""On SQLite, the leases of a process that was killed end at once: its socket refuses connections."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from magent2.bus.operations import Claim, Workers
from magent2.bus.records import ClaimedLane
from magent2.bus.sqlite import SqliteBus
from magent2.bus.sqlite_engine.peer_sockets import FOLDER_SUFFIX, SocketFolder
from magent2.models.address import chat_topic
from tests.support.audited_lane import mail_to
from tests.support.processes import Child, ProcessGroup
from tests.support.waiting import DEADLINE_S, eventually

AGENT = "Ada"
LEASE_S = 3600.0  # no lease runs out in these tests
HOLDER = "tests.integration.children.lane_holder"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.db"


@pytest.fixture
def bus(path: Path) -> Iterator[SqliteBus]:
    bus = SqliteBus(path)
    bus.call(mail_to(AGENT, ["one"]))
    yield bus
    bus.close()


def hold_lane(process_group: ProcessGroup, path: Path) -> Child:
    holder = process_group.spawn(HOLDER, url=f"sqlite:///{path}", agent=AGENT, lease_s=LEASE_S)
    assert holder.next_report() == {"lanes": 1}
    return holder


def claim(bus: SqliteBus) -> tuple[ClaimedLane, ...]:
    return bus.call(Claim(worker="heir", agents=(AGENT,), limit=1, lease_s=LEASE_S)).lanes


def sockets(path: Path) -> set[str]:
    return {entry.name for entry in path.with_name(path.name + FOLDER_SUFFIX).iterdir()}


def test_the_lanes_of_a_killed_process_are_taken_over_at_once(
    path: Path, bus: SqliteBus, process_group: ProcessGroup
) -> None:
    holder = hold_lane(process_group, path)
    (held_by,) = sockets(path)
    with bus.watch([chat_topic(AGENT)]) as watch:
        assert claim(bus) == ()

        holder.kill()

        assert watch.wait(DEADLINE_S) == {chat_topic(AGENT)}
        (lane,) = claim(bus)
        assert lane.attempt == 2
        eventually(lambda: held_by not in sockets(path))


def test_a_process_that_starts_after_the_kill_takes_the_lanes_over(
    path: Path, bus: SqliteBus, process_group: ProcessGroup
) -> None:
    hold_lane(process_group, path).kill()

    with bus.watch([chat_topic(AGENT)]):
        (lane,) = eventually(lambda: claim(bus))

    assert lane.attempt == 2


def test_a_process_without_workers_ends_the_leases_too(path: Path, bus: SqliteBus, process_group: ProcessGroup) -> None:
    hold_lane(process_group, path).kill()

    with bus.watch(["stream:one"]):
        eventually(lambda: not bus.call(Workers()))


def test_a_suspended_process_is_not_taken_for_a_killed_one(
    path: Path, bus: SqliteBus, process_group: ProcessGroup
) -> None:
    holder = hold_lane(process_group, path)
    holder.freeze()

    with closing(SocketFolder(path)) as folder:
        assert folder.list_killed() == []


def test_a_process_that_closes_its_log_is_not_taken_for_a_killed_one(
    path: Path, bus: SqliteBus, process_group: ProcessGroup
) -> None:
    holder = hold_lane(process_group, path)
    holder.write_line("close")
    assert holder.next_report() == {"closed": True}

    assert sockets(path) == set()
    assert [worker.lanes for worker in bus.call(Workers())] == [1]


def test_a_worker_that_claims_in_another_process_is_not_ended_with_the_first(
    path: Path, bus: SqliteBus, process_group: ProcessGroup
) -> None:
    holder = hold_lane(process_group, path)
    (first,) = sockets(path)
    with bus.watch([chat_topic(AGENT)]):
        bus.call(Claim(worker="holder", agents=(AGENT,), limit=1, lease_s=LEASE_S))
        holder.kill()

        eventually(lambda: first not in sockets(path))

    assert [worker.worker for worker in bus.call(Workers())] == ["holder"]
