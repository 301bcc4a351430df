"""Workers killed with SIGKILL before and after every append of a run with a Python block, and inside its calls.

The next worker sends every message once, reports what was sent correctly, and runs no recorded block again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.bus.interface import Engine
from magent2.bus.operations import Leave
from tests.support.audit import whole_log
from tests.support.blocks import block_events, numbers
from tests.support.journaled_runs import results_in, results_recorded
from tests.support.model_server import Call, Json, ModelServer, Reply
from tests.support.processes import Child, ProcessGroup
from tests.support.worker_fixture import history, outputs, send

CHILD = "tests.integration.children.blocks"
SIGKILL = 9
APPENDS_MAX = 30  # a run that makes more than that is stuck
KILLS_MIN = 12
SOAK_KILLS = 100

GOOD = """
work(1)
chat_send("agent:Cy", "at once", now=True)
work(2)
chat_send("agent:Cy", "first")
chat_send("agent:Dee", "second")
work(3)
print("done")
"""
BAD = GOOD + "1 / 0"


def answer(request: Json) -> Reply:
    text = [item["content"] for item in request["input"] if item.get("role") == "user"][-1]
    if results_in(request["input"]):
        return Reply("All is done.")
    return Reply(calls=[Call("run_python", {"code": GOOD if "good" in str(text) else BAD}, "c1")])


class BlockScenario:
    def __init__(self, engine: Engine, workers: Child, effects: Path) -> None:
        self.engine = engine
        self._workers = workers
        self._effects = effects

    def work(self, worker: str, at: int = 0, after: bool = False, call: int = 0) -> bool:
        """Have a worker serve the one message that waits; whether it lived."""
        self._workers.write_line(json.dumps({"worker": worker, "at": at, "after": after, "call": call}))
        end = self._workers.next_report()
        assert end["code"] in (0, -SIGKILL), self._workers.errors()
        self.engine.call(Leave(worker))
        return bool(end["code"] == 0)

    def worked(self, conversation: str) -> list[int]:
        lines = self._effects.read_text().splitlines() if self._effects.exists() else []
        return [int(line.split()[1]) for line in lines if line.split()[0] == conversation]

    def letters(self, agent: str, conversation: str) -> list[str]:
        mail = [record.payload for record in whole_log(self.engine, f"chat:{agent}")]
        return [payload["content"] for payload in mail if payload["conversation_id"] == conversation]

    def kill_and_take_over(self, name: str, at: int = 0, after: bool = False, call: int = 0, bad: bool = False) -> bool:
        """Whether the worker came to its end before it was to die."""
        send(self.engine, "a bad one" if bad else "a good one", name, id=f"mail-{name}")
        lived = self.work(f"mortal-{name}", at, after, call)
        recorded, before = "c1" in results_recorded(self.engine, name), self.worked(name)
        if recorded or not lived:
            assert recorded or not self.letters("Dee", name), "a held message left before its block was recorded"
        if not outputs(self.engine, name):
            assert self.work(f"heir-{name}")
        self.check(name, bad)
        assert self.worked(name)[len(before) :] == ([] if recorded else [1, 2, 3]), name
        return lived

    def check(self, name: str, bad: bool) -> None:
        held = ([], []) if bad else (["first"], ["second"])
        assert self.letters("Cy", name) == ["at once", *held[0]], name
        assert self.letters("Dee", name) == held[1], name
        (event,) = block_events(self.engine, name)
        assert numbers(event) == (("error", 2, 0, 0) if bad else ("success", 2, 2, 0)), name
        (result,) = [record for record in history(self.engine, name) if record["kind"] == "tool"]
        status = "2 NOT sent (script failed)" if bad else "2 sent"
        assert result["output"].endswith(f"\n\n[Messages: {status}]"), name
        assert outputs(self.engine, name) == ["All is done."], name


@pytest.fixture
def scenario(log_url: str, engine: Engine, process_group: ProcessGroup, tmp_path: Path) -> Iterator[BlockScenario]:
    effects = tmp_path / "effects"
    with ModelServer(answer) as server:
        workers = process_group.spawn(CHILD, url=log_url, model_url=server.url, effects=str(effects))
        workers.next_report()
        yield BlockScenario(engine, workers, effects)


def test_a_block_survives_a_crash_of_its_worker_at_any_point(scenario: BlockScenario) -> None:
    kills = sum(not scenario.kill_and_take_over(f"call{call}", call=call) for call in (1, 2, 3))

    kills += kill_at_every_append(scenario, "x", bad=False)

    assert kills >= KILLS_MIN
    print(f"{kills} kills")


def kill_at_every_append(scenario: BlockScenario, name: str, *, bad: bool) -> int:
    kills = 0
    for at in range(1, APPENDS_MAX):
        lived = [scenario.kill_and_take_over(f"{name}{at}-{after}", at, after, bad=bad) for after in (False, True)]
        kills += lived.count(False)
        if all(lived):
            break
    return kills


@pytest.mark.soak
def test_blocks_survive_a_hundred_crashes(scenario: BlockScenario) -> None:
    kills, number = 0, 0
    while kills < SOAK_KILLS:
        number += 1
        bad = number % 2 == 0
        kills += sum(not scenario.kill_and_take_over(f"c{number}-{call}", call=call, bad=bad) for call in (1, 2, 3))
        kills += kill_at_every_append(scenario, f"n{number}-", bad=bad)
    print(f"{kills} kills")
