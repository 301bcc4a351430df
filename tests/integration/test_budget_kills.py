"""Workers of a tree of subagents are killed: its model calls are counted once, and its budget holds."""

from __future__ import annotations

from pathlib import Path

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Leave
from magent2.models.budgets import Limit
from magent2.sessions.store import create_session
from magent2.sessions.usage.budgets import read_limits, set_limit
from magent2.sessions.usage.ledger import read_ledger
from tests.support.budgets import USER, answers_of, budget_events, used_by
from tests.support.processes import Child, ProcessGroup
from tests.support.waiting import eventually
from tests.support.worker_fixture import history, outputs, send, stream

LEASE_S = 60.0  # a slow machine must not cost a living worker its lanes; those of a dead one are freed by the test
DEADLINE_S = 30.0
CALLS = 6  # of the whole tree: 4 of the boss, 2 of the helper


class Tree:
    """Worker processes of a boss and of the helper that it starts, with a budget of model calls for both together."""

    def __init__(self, process_group: ProcessGroup, engine: Engine, url: str, gate: Path, run_calls: int) -> None:
        self._process_group = process_group
        self._engine = engine
        self._options = {"url": url, "gate": str(gate), "lease_s": LEASE_S, "deadly": False, "run_calls": run_calls}
        self.gate = gate

    def start_worker(self, worker: str, *, deadly_model: bool = False) -> Child:
        """Start a worker, whose id begins with the name of its agent."""
        agents = [worker.partition("-")[0]]
        child = self._process_group.spawn(
            "tests.integration.children.subagents",
            **self._options,
            worker=worker,
            agents=agents,
            deadly_model=deadly_model,
        )
        assert child.next_report() == {"ready": True}
        return child

    def replace_worker(self, dead: str, new: str) -> Child:
        """Free the lanes of a worker that was killed, and start another one."""
        self._engine.call(Leave(dead))
        return self.start_worker(new)


def helper_of(engine: Engine) -> str:
    (event,) = [event for event in stream(engine) if event["event"] == "subagent"]
    return str(event["subagent_id"])


def test_a_tree_over_two_workers_stays_within_its_budget_after_both_were_killed(
    process_group: ProcessGroup, log_url: str, engine: Engine, tmp_path: Path
) -> None:
    run_sync(engine, create_session, "one", USER)
    tree = Tree(process_group, engine, log_url, tmp_path / "gate", run_calls=4)
    boss, helper = tree.start_worker("boss-1"), tree.start_worker("helper-1")
    send(engine, "dig for gold", recipient="agent:boss")
    assert helper.next_report() == {"digging": True}
    eventually(lambda: used_by(engine).spent.calls == 4, DEADLINE_S)  # three of the boss, one of the helper

    helper.kill()
    boss.kill()
    tree.gate.touch()
    tree.replace_worker("helper-1", "helper-2")
    tree.replace_worker("boss-1", "boss-2")
    eventually(lambda: run_sync(engine, read_limits).waiting, DEADLINE_S)  # the helper has dug, and needs one more call

    child = helper_of(engine)
    (waiting,) = run_sync(engine, read_limits).waiting.values()
    (name,) = waiting.budgets
    assert (waiting.agent, waiting.conversation) == ("helper", child)
    assert [record["kind"] for record in history(engine, child)].count("tool") == 1  # not in the middle of a tool
    assert used_by(engine).spent == answers_of(engine, "one", child)
    assert (used_by(engine).spent.calls, used_by(engine).lost.calls, outputs(engine)) == (4, 0, [])
    (shown,) = [event for event in budget_events(engine) if event["status"] == "reached"]
    assert shown["subagent_id"] == child  # a person who follows the conversation of the boss sees it

    run_sync(engine, set_limit, name, Limit(calls=20), "user:root")
    eventually(lambda: outputs(engine), DEADLINE_S)

    assert used_by(engine).spent == answers_of(engine, "one", child)
    assert (used_by(engine).spent.calls, outputs(engine)) == (CALLS, ["found gold, told: deeper"])
    assert run_sync(engine, read_ledger, name.topic).used().spent.calls == CALLS


def test_a_call_that_is_lost_with_its_worker_counts_as_its_estimate_and_is_shown_apart(
    process_group: ProcessGroup, log_url: str, engine: Engine, tmp_path: Path
) -> None:
    run_sync(engine, create_session, "one", USER)
    tree = Tree(process_group, engine, log_url, tmp_path / "gate", run_calls=CALLS + 1)
    tree.gate.touch()
    tree.start_worker("boss-1")
    mortal = tree.start_worker("helper-1", deadly_model=True)
    send(engine, "dig for gold", recipient="agent:boss")
    assert mortal.next_report() == {"calling": True}  # its call is reserved, and it dies during the call

    mortal.kill()  # waits until it is dead
    tree.replace_worker("helper-1", "helper-2")
    eventually(lambda: outputs(engine), DEADLINE_S)

    used, child = used_by(engine), helper_of(engine)
    assert used.spent == answers_of(engine, "one", child)
    assert (used.spent.calls, used.lost.calls) == (CALLS, 1)
    assert used.lost.tokens > 0
