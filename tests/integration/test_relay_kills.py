"""Relays killed with SIGKILL before and after each of their steps: what a receiver is promised holds all the same.

Where the receiver takes a key, every message arrives, and what arrives twice does so under one key. Where it takes
none, nothing arrives twice, and what nobody can know is reported as unknown.
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
from tests.support.processes import Child, Crew

CHILD = "tests.integration.children.relay"
POINTS = ["send:before", "send:after", *(f"write:{n}:{when}" for n in (1, 2, 3, 4) for when in ("before", "after"))]
SIGKILL = 9
ROUNDS_SOAK = 6


class Theatre:
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
        self._relays.tell(json.dumps({"worker": worker, "point": point}))
        code = self._relays.hear()["code"]
        assert code in (0, -SIGKILL), self._relays.errors()
        self.kills += code == -SIGKILL
        self.engine.call(Leave(worker))  # as if its lease had run out

    def arrived(self) -> list[str]:
        return self._arrivals.read_text().splitlines() if self._arrivals.exists() else []

    def states(self) -> dict[str, str]:
        return {item.id: item.state for item in run_sync(self.engine, read_outbox, "hook")}


def theatre_of(takes_key: bool, url: str, engine: Engine, crew: Crew, folder: Path) -> Theatre:
    arrivals = folder / "arrivals"
    relays = crew.spawn(CHILD, url=url, arrivals=str(arrivals), takes_key=takes_key)
    relays.hear()
    return Theatre(engine, relays, arrivals)


def kill_and_take_over(theatre: Theatre, points: list[str], prefix: str) -> None:
    for number, point in enumerate(points):
        for letter in ("a", "b"):
            theatre.put(f"{prefix}{number}{letter}")
        theatre.relay(f"killed-{prefix}{number}", point)
        theatre.relay(f"next-{prefix}{number}")


def check(theatre: Theatre, takes_key: bool) -> None:
    arrived, states = theatre.arrived(), theatre.states()
    counts = Counter(arrived)
    assert list(dict.fromkeys(arrived)) == sorted(counts, key=list(states).index)  # in order, if not all at once
    for name, state in states.items():
        if takes_key:
            assert (state, counts[name] in (1, 2)) == ("sent", True), name
        else:
            assert state in ("sent", "unknown"), name
            assert counts[name] == 1 if state == "sent" else counts[name] <= 1, name
    told = [record.payload for record in theatre.engine.read("stream:one") if record.payload["event"] == "error"]
    assert [event["message_id"] for event in told] == [name for name, state in states.items() if state == "unknown"]


@pytest.mark.parametrize("takes_key", [True, False], ids=["key", "no key"])
def test_killed_at_every_step(log_url: str, engine: Engine, crew: Crew, tmp_path: Path, takes_key: bool) -> None:
    theatre = theatre_of(takes_key, log_url, engine, crew, tmp_path)

    kill_and_take_over(theatre, POINTS, "m")

    check(theatre, takes_key)
    assert theatre.kills >= (6 if takes_key else 10)
    if not takes_key:
        unknown = [name for name, state in theatre.states().items() if state == "unknown"]
        assert unknown
        run_sync(engine, retry_item, "hook", unknown[0])
        theatre.relay("last")
        assert theatre.states()[unknown[0]] == "sent"


@pytest.mark.soak
@pytest.mark.parametrize("takes_key", [True, False], ids=["key", "no key"])
def test_killed_again_and_again(log_url: str, engine: Engine, crew: Crew, tmp_path: Path, takes_key: bool) -> None:
    theatre = theatre_of(takes_key, log_url, engine, crew, tmp_path)

    for number in range(ROUNDS_SOAK):
        kill_and_take_over(theatre, POINTS, f"r{number}-")

    check(theatre, takes_key)
    print(f"{theatre.kills} kills")
