"""The log clock of the SQLite engine: over processes, reboots and a wall clock that is set."""

from __future__ import annotations

from pathlib import Path

import pytest

from magent2.bus import sqlite
from magent2.bus.operations import Append, Claim, Dump, Lanes, Later, Load
from magent2.bus.records import ClaimedLane, NewRecord
from magent2.bus.sqlite import SqliteBus
from magent2.bus.sqlite_engine.clock import ClockAnchor
from tests.support.manual_clock import ManualClock

DAY_S = 86_400.0
ANCHOR = ClockAnchor("boot-1", monotonic_ms=1000, wall_ms=50_000, log_ms=70_000)


@pytest.mark.parametrize(
    ("boot", "monotonic_ms", "wall_ms", "log_ms"),
    [
        ("boot-1", 1500, 50_500, 70_500),
        ("boot-1", 1500, 9_000_000, 70_500),  # the wall clock was set forward
        ("boot-1", 1500, 0, 70_500),  # or back
        ("boot-2", 10, 50_500, 70_500),  # after a reboot the wall clock tells how much time has passed
        ("boot-2", 10, 0, 70_000),  # unless it was set back
        ("boot-1", 10, 50_500, 70_500),  # a system without boot ids was rebooted
    ],
)
def test_the_log_clock_runs_like_the_monotonic_clock(boot: str, monotonic_ms: int, wall_ms: int, log_ms: int) -> None:
    assert ANCHOR.log_ms_at(boot, monotonic_ms, wall_ms) == log_ms


class Machine:
    """A machine with a log on its disk, that is rebooted."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self.clock = ManualClock()
        self._patch = monkeypatch
        self._boots = 0
        self.bus = self._boot()

    def _boot(self) -> SqliteBus:
        self._boots += 1
        self._patch.setattr(sqlite, "boot_id", lambda: f"boot-{self._boots}")
        return SqliteBus(self.path, clock=self.clock)

    def reboot(self, wall_s: float) -> None:
        """Reboot. The wall clock advances by so many seconds, and the monotonic clock begins again."""
        self.bus.close()
        self.clock.steady = 5
        self.clock.jump_s(wall_s)
        self.bus = self._boot()

    def claim(self) -> tuple[ClaimedLane, ...]:
        return self.bus.call(Claim(worker="w1", agents=("A",), limit=1, lease_s=60.0)).lanes

    def put_off(self, delay_s: float) -> None:
        self.bus.call(Append(records=(NewRecord("chat:A", {"conversation_id": "c1", "sender": "user:ann"}),)))
        (lane,) = self.claim()
        self.bus.call(Later(owner=lane.owner, delay_s=delay_s))


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path / "log.db", monkeypatch)


def test_a_delay_ends_during_the_time_that_the_machine_was_off(machine: Machine) -> None:
    machine.put_off(30.0)

    machine.reboot(wall_s=60.0)

    assert len(machine.claim()) == 1


@pytest.mark.parametrize("wall_s", [0.0, -DAY_S])
def test_a_delay_is_not_longer_than_it_was_after_a_reboot_with_a_wrong_clock(machine: Machine, wall_s: float) -> None:
    machine.put_off(30.0)
    machine.clock.pass_s(20.0)

    machine.reboot(wall_s)

    assert machine.claim() == ()
    machine.clock.pass_s(30.0)
    assert len(machine.claim()) == 1


def test_two_processes_have_the_same_log_clock(machine: Machine) -> None:
    machine.put_off(30.0)
    machine.clock.jump_s(-DAY_S)
    other = SqliteBus(machine.path, clock=machine.clock)

    (lane,) = other.call(Lanes("A"))
    machine.clock.pass_s(30.0)
    claimed = other.call(Claim(worker="w2", agents=("A",), limit=1, lease_s=60.0)).lanes

    assert lane.due_s == 30.0
    assert len(claimed) == 1
    other.close()


@pytest.mark.parametrize("jump_s", [0.0, DAY_S, -DAY_S])
def test_an_export_has_the_due_time_by_the_wall_clock_and_an_import_the_rest_of_the_delay(
    machine: Machine, tmp_path: Path, jump_s: float
) -> None:
    machine.put_off(30.0)
    machine.clock.jump_s(jump_s)
    machine.clock.pass_s(10.0)
    rows, cursor = machine.bus.call(Dump())
    while cursor is not None:
        page, cursor = machine.bus.call(Dump(cursor))
        rows += page
    other = SqliteBus(tmp_path / "other.db", clock=machine.clock)

    other.call(Load(rows, first=True))

    assert [row["due_ms"] for row in rows if row["kind"] == "lane"] == [machine.clock.wall_ms() + 20_000]
    assert [lane.due_s for lane in other.call(Lanes("A"))] == [20.0]
    other.close()
