"""Relays are killed with SIGKILL before and after each of their steps. The guarantees for receivers hold.

If the receiver accepts a key, every message arrives, and one that arrives twice has the same key both times. If it
accepts none, no message arrives twice, and one whose outcome is unknown is reported as unknown.
"""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Append, Leave
from magent2.connectors.interface import OutgoingMessage
from magent2.connectors.outbox import queue_records, read_outbox, retry_item
from magent2.directory.connectors import Capabilities, find_connector, register_connector
from magent2.sessions.store import create_session
from tests.support.processes import Child, ProcessGroup

CHILD = "tests.integration.children.relay"
POINTS = ["send:before", "send:after", *(f"write:{n}:{when}" for n in (1, 2, 3, 4) for when in ("before", "after"))]
SIGKILL = 9
ROUNDS_SOAK = 6


class RelayScenario:
    """A session, a connector whose receiver writes to a file, and a process that forks relays."""

    def __init__(self, engine: Engine, relays: Child, arrivals: Path) -> None:
        self.engine = engine
        self._relays = relays
        self._arrivals = arrivals
        self.kills = 0
        run_sync(engine, create_session, "one", "user:ann")
        self._connector = run_sync(engine, register_connector, "hook", "filing", Capabilities())

    def put(self, name: str) -> None:
        message = OutgoingMessage(name, "hook", "ann", "one", "Ada", name, "2026-01-01T00:00:00+00:00")
        connector = run_sync(self.engine, find_connector, "hook").state
        self.engine.call(Append(records=queue_records(message, connector)))

    def relay(self, worker: str, point: str = "") -> None:
        self._relays.write_line(json.dumps({"worker": worker, "point": point}))
        code = self._relays.next_report()["code"]
        assert code in (0, -SIGKILL), self._relays.errors()
        self.kills += code == -SIGKILL
        self.engine.call(Leave(worker))  # as if its lease had run out

    def arrived(self) -> list[str]:
        return self._arrivals.read_text().splitlines() if self._arrivals.exists() else []

    def states(self) -> dict[str, str]:
        return {item.id: item.state for item in run_sync(self.engine, read_outbox, "hook")}


def new_scenario(takes_key: bool, url: str, engine: Engine, process_group: ProcessGroup, folder: Path) -> RelayScenario:
    arrivals = folder / "arrivals"
    relays = process_group.spawn(CHILD, url=url, arrivals=str(arrivals), takes_key=takes_key)
    relays.next_report()
    return RelayScenario(engine, relays, arrivals)


def kill_and_take_over(scenario: RelayScenario, points: list[str], prefix: str) -> None:
    for number, point in enumerate(points):
        for letter in ("a", "b"):
            scenario.put(f"{prefix}{number}{letter}")
        scenario.relay(f"killed-{prefix}{number}", point)
        scenario.relay(f"next-{prefix}{number}")


def check(scenario: RelayScenario, takes_key: bool) -> None:
    arrived, states = scenario.arrived(), scenario.states()
    counts = Counter(arrived)
    assert list(dict.fromkeys(arrived)) == sorted(counts, key=list(states).index)  # in order, apart from repeats
    for name, state in states.items():
        if takes_key:
            assert (state, counts[name] in (1, 2)) == ("sent", True), name
        else:
            assert state in ("sent", "unknown"), name
            assert counts[name] == 1 if state == "sent" else counts[name] <= 1, name
    told = [record.payload for record in scenario.engine.read("stream:one") if record.payload["event"] == "error"]
    assert [event["message_id"] for event in told] == [name for name, state in states.items() if state == "unknown"]


@pytest.mark.parametrize("takes_key", [True, False], ids=["key", "no key"])
def test_a_relay_is_killed_at_every_step(
    log_url: str, engine: Engine, process_group: ProcessGroup, tmp_path: Path, takes_key: bool
) -> None:
    scenario = new_scenario(takes_key, log_url, engine, process_group, tmp_path)

    kill_and_take_over(scenario, POINTS, "m")

    check(scenario, takes_key)
    assert scenario.kills >= (6 if takes_key else 10)
    if not takes_key:
        unknown = [name for name, state in scenario.states().items() if state == "unknown"]
        assert unknown
        run_sync(engine, retry_item, "hook", unknown[0])
        scenario.relay("last")
        assert scenario.states()[unknown[0]] == "sent"


@pytest.mark.soak
@pytest.mark.parametrize("takes_key", [True, False], ids=["key", "no key"])
def test_a_relay_is_killed_many_times(
    log_url: str, engine: Engine, process_group: ProcessGroup, tmp_path: Path, takes_key: bool
) -> None:
    scenario = new_scenario(takes_key, log_url, engine, process_group, tmp_path)

    for number in range(ROUNDS_SOAK):
        kill_and_take_over(scenario, POINTS, f"r{number}-")

    check(scenario, takes_key)
    print(f"{scenario.kills} kills")
