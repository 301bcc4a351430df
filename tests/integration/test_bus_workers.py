"""Three worker processes on two hundred lanes, killed and frozen while they work."""

from __future__ import annotations

import random

import pytest

from magent2.bus.interface import Engine
from magent2.bus.operations import Claim
from magent2.bus.records import ClaimedLane, MailRef
from tests.support.audit import assert_clean, lane_findings, whole_log
from tests.support.audited_lane import mail_to, settle_append, start_append
from tests.support.processes import ProcessGroup
from tests.support.waiting import eventually
from tests.support.worker_pool import AGENT, TRAIL, WorkerPool

ZOMBIE = "tests.integration.children.zombie"
ZOMBIE_LEASE_S = 0.3

WORKERS = 3
LANES = 200
ROUNDS = 10  # half of them kill a worker, half freeze one
ROUNDS_SOAK = 400
MAIL_PER_ROUND = 80
CONTROL_PER_ROUND = 5
RUNS_BETWEEN_MAX = 40
FENCED_MIN = 5
EXTRA_ROUNDS_MAX = 20


def post_some(shift: WorkerPool, rng: random.Random) -> None:
    shift.post([f"lane-{rng.randrange(LANES)}" for _ in range(MAIL_PER_ROUND)])
    shift.post([f"lane-{rng.randrange(LANES)}" for _ in range(CONTROL_PER_ROUND)], control=True)


def work_through(shift: WorkerPool, rounds: int, rng: random.Random) -> None:
    shift.post([f"lane-{lane}" for lane in range(LANES)])
    for _ in range(WORKERS):
        shift.start_worker()
    shift.await_ready()
    for number in range(rounds):
        disturb(shift, rng, kill=number % 2 == 0)
    for _ in range(EXTRA_ROUNDS_MAX):
        if shift.fenced() >= FENCED_MIN and shift.takeovers >= 1:
            break
        disturb(shift, rng, kill=False)
    shift.wait_for_the_rest()
    shift.drain_all()


def disturb(shift: WorkerPool, rng: random.Random, kill: bool) -> None:
    post_some(shift, rng)
    shift.wait_for_runs(rng.randint(1, RUNS_BETWEEN_MAX))
    shift.kill_one() if kill else shift.freeze_one()


def check(shift: WorkerPool, rounds: int) -> None:
    assert_clean(shift.findings())
    print(f"{shift.posted()} messages, {shift.kills} kills, {shift.takeovers} takeovers, {shift.fenced()} fenced")
    assert shift.kills >= rounds // 2
    assert shift.takeovers >= 1
    assert shift.fenced() >= FENCED_MIN, "no old owner ever tried to write: the test shows nothing"


def test_killed_and_frozen_workers_settle_every_message_once_and_in_order(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    shift = WorkerPool(log_url, engine, process_group, rng)

    work_through(shift, ROUNDS, rng)

    check(shift, ROUNDS)


@pytest.mark.soak
def test_workers_killed_and_frozen_for_long_settle_every_message_once_and_in_order(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    shift = WorkerPool(log_url, engine, process_group, rng)

    work_through(shift, ROUNDS_SOAK, rng)

    check(shift, ROUNDS_SOAK)


def test_a_worker_frozen_past_its_lease_can_do_nothing_more_with_its_lane(
    log_url: str, engine: Engine, process_group: ProcessGroup
) -> None:
    def take_over() -> tuple[ClaimedLane, ...]:
        return engine.call(Claim(worker="heir", agents=(AGENT,), limit=1, lease_s=60.0)).lanes

    engine.call(mail_to(AGENT, ["one"]))
    zombie = process_group.spawn(ZOMBIE, url=log_url, agent=AGENT, trail=TRAIL, lease_s=ZOMBIE_LEASE_S)
    old = zombie.next_report()["token"]
    engine.call(mail_to("nobody", ["two"]))  # our turn with the file: the worker has given it back, and is idle
    zombie.freeze()

    (lane,) = eventually(take_over)
    engine.call(start_append(TRAIL, lane))
    zombie.resume()
    zombie.write_line("go")
    outcomes = zombie.next_report()
    engine.call(settle_append(TRAIL, lane, 2))

    assert lane.owner.token != old
    assert lane.attempt == 2
    assert outcomes == dict.fromkeys(("append", "pending", "later", "settle"), "Fenced") | {"renewed": False}
    zombie.write_line("go")
    assert zombie.next_report() == outcomes
    assert_clean(lane_findings({"one": [MailRef(f"chat:{AGENT}", 1)]}, whole_log(engine, TRAIL)))
