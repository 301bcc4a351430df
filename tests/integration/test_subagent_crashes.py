"""The workers of a subagent and of its starter are killed: each message and each result arrives once."""

from __future__ import annotations

from pathlib import Path

from magent2.bus.interface import Engine
from magent2.bus.operations import Lanes
from magent2.worker.retry import CRASHES_MAX, SUSPECT_AFTER
from tests.support.processes import Child, ProcessGroup
from tests.support.steerable_run import receipts
from tests.support.waiting import eventually
from tests.support.worker_fixture import command, dead_letters, history, kinds, outputs, send, stream

LEASE_S = 0.6  # of workers that are killed
LONG_LEASE_S = 60.0  # of one that stays: a slow disk must not cost it its lane
DEADLINE_S = 30.0


class SubagentWorkers:
    """Worker processes, and the gate behind which the helper digs."""

    def __init__(self, process_group: ProcessGroup, url: str, folder: Path) -> None:
        self._process_group = process_group
        self._url = url
        self.gate = folder / "gate"

    def start_worker(self, *agents: str, deadly: bool = False, lease_s: float = LEASE_S) -> Child:
        return self._process_group.spawn(
            "tests.integration.children.subagents",
            url=self._url,
            agents=list(agents),
            lease_s=lease_s,
            gate=str(self.gate),
            deadly=deadly,
        )

    def at_work(self, engine: Engine, helper_lease_s: float = LEASE_S) -> tuple[Child, Child]:
        """Boss and helper, when the helper digs and was told something."""
        boss, helper = self.start_worker("boss"), self.start_worker("helper", lease_s=helper_lease_s)
        send(engine, "dig for gold", recipient="agent:boss")
        assert [helper.next_report(), helper.next_report()] == [{"ready": True}, {"digging": True}]
        eventually(lambda: "tell" in _calls(engine), DEADLINE_S)
        return boss, helper


def test_a_subagent_messaged_mid_run_returns_its_result_after_both_workers_were_killed(
    process_group: ProcessGroup, log_url: str, engine: Engine, tmp_path: Path
) -> None:
    workers = SubagentWorkers(process_group, log_url, tmp_path)
    boss, helper = workers.at_work(engine)

    helper.kill()
    helper = workers.start_worker("helper")
    assert [helper.next_report(), helper.next_report()] == [{"ready": True}, {"digging": True}]
    boss.kill()
    workers.gate.touch()
    workers.start_worker("boss")
    eventually(lambda: outputs(engine), DEADLINE_S)

    assert outputs(engine) == ["found gold, told: deeper"]
    (started,) = [event for event in stream(engine) if event["event"] == "subagent"]
    child = started["subagent_id"]
    kinds = [record["kind"] for record in history(engine, child)]
    assert (kinds.count("start"), kinds.count("end"), outputs(engine, child)) == (1, 1, ["found gold, told: deeper"])
    assert _calls(engine) == ["start", "tell", "wait"]


def test_a_suspected_starter_lets_its_suspected_subagent_run_while_it_waits(
    process_group: ProcessGroup, log_url: str, engine: Engine, tmp_path: Path
) -> None:
    workers = SubagentWorkers(process_group, log_url, tmp_path)
    send(engine, "dig for gold", recipient="agent:boss")
    for _ in range(SUSPECT_AFTER + 1):
        worker = workers.start_worker("boss", "helper")
        assert [worker.next_report(), worker.next_report()] == [{"ready": True}, {"digging": True}]
        eventually(lambda: "tell" in _calls(engine), DEADLINE_S)
        worker.kill()

    workers.gate.touch()
    workers.start_worker("boss", "helper")
    eventually(lambda: outputs(engine), DEADLINE_S)

    assert outputs(engine) == ["found gold, told: deeper"]


def test_a_starter_is_not_blamed_for_a_subagent_that_kills_its_worker(
    process_group: ProcessGroup, log_url: str, engine: Engine, tmp_path: Path
) -> None:
    workers = SubagentWorkers(process_group, log_url, tmp_path)
    send(engine, "dig for gold", recipient="agent:boss")
    for _ in range(CRASHES_MAX):
        worker = workers.start_worker("boss", "helper", deadly=True)
        assert [worker.next_report(), worker.next_report()] == [{"ready": True}, {"digging": True}]

    workers.start_worker("boss", "helper", deadly=True)
    eventually(lambda: outputs(engine) == [""], DEADLINE_S)

    assert [letter["attempts"] for letter in dead_letters(engine, "helper")] == [CRASHES_MAX]
    assert dead_letters(engine, "boss") == []


def test_a_stop_reaches_a_subagent_after_the_worker_of_its_starter_was_killed(
    process_group: ProcessGroup, log_url: str, engine: Engine, tmp_path: Path
) -> None:
    workers = SubagentWorkers(process_group, log_url, tmp_path)
    boss, helper = workers.at_work(engine, helper_lease_s=LONG_LEASE_S)

    boss.kill()
    name = command(engine, "stop", recipient="agent:boss")
    workers.start_worker("boss")
    (child,) = (event["subagent_id"] for event in stream(engine) if event["event"] == "subagent")
    eventually(lambda: kinds(stream(engine, child))[-1] == "stopped" and not engine.call(Lanes("helper")), DEADLINE_S)
    eventually(lambda: kinds(stream(engine))[-1] == "stopped", DEADLINE_S)  # it may end after its subagent

    assert receipts(engine) == [(name, "stopped")]
    assert [outcome for _, outcome in receipts(engine, child)].count("stopped") == 1
    assert outputs(engine, child) == []
    assert helper.reports_so_far() == []


def _calls(engine: Engine) -> list[str]:
    return [record["call_id"] for record in history(engine) if record["kind"] == "tool"]
