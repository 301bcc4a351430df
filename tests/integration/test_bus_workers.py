"""Three worker processes on two hundred lanes, killed and frozen while they work."""

from __future__ import annotations

import random

import pytest

from magent2.bus.interface import Engine
from magent2.bus.operations import Claim
from magent2.bus.records import ClaimedLane, MailRef
from tests.support.audit import assert_clean, lane_findings, whole_log
from tests.support.chaos import AGENT, TRAIL, Shift
from tests.support.lane_work import mail_to, settling, starting
from tests.support.processes import Crew
from tests.support.waiting import eventually

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


def post_some(shift: Shift, dice: random.Random) -> None:
    shift.post([f"lane-{dice.randrange(LANES)}" for _ in range(MAIL_PER_ROUND)])
    shift.post([f"lane-{dice.randrange(LANES)}" for _ in range(CONTROL_PER_ROUND)], control=True)


def work_through(shift: Shift, rounds: int, dice: random.Random) -> None:
    shift.post([f"lane-{lane}" for lane in range(LANES)])
    for _ in range(WORKERS):
        shift.hire()
    shift.await_ready()
    for number in range(rounds):
        disturb(shift, dice, kill=number % 2 == 0)
    for _ in range(EXTRA_ROUNDS_MAX):
        if shift.fenced() >= FENCED_MIN and shift.takeovers >= 1:
            break
        disturb(shift, dice, kill=False)
    shift.wait_for_the_rest()
    shift.go_home()


def disturb(shift: Shift, dice: random.Random, kill: bool) -> None:
    post_some(shift, dice)
    shift.wait_for_runs(dice.randint(1, RUNS_BETWEEN_MAX))
    shift.kill_one() if kill else shift.freeze_one()


def check(shift: Shift, rounds: int) -> None:
    assert_clean(shift.findings())
    print(f"{shift.posted()} messages, {shift.kills} kills, {shift.takeovers} takeovers, {shift.fenced()} fenced")
    assert shift.kills >= rounds // 2
    assert shift.takeovers >= 1
    assert shift.fenced() >= FENCED_MIN, "no old owner ever tried to write: the test shows nothing"


def test_killed_and_frozen_workers_settle_every_message_once_and_in_order(
    log_url: str, engine: Engine, crew: Crew, dice: random.Random
) -> None:
    shift = Shift(log_url, engine, crew, dice)

    work_through(shift, ROUNDS, dice)

    check(shift, ROUNDS)


@pytest.mark.soak
def test_workers_killed_and_frozen_for_long_settle_every_message_once_and_in_order(
    log_url: str, engine: Engine, crew: Crew, dice: random.Random
) -> None:
    shift = Shift(log_url, engine, crew, dice)

    work_through(shift, ROUNDS_SOAK, dice)

    check(shift, ROUNDS_SOAK)


def test_a_worker_frozen_past_its_lease_can_do_nothing_more_with_its_lane(
    log_url: str, engine: Engine, crew: Crew
) -> None:
    def take_over() -> tuple[ClaimedLane, ...]:
        return engine.call(Claim(worker="heir", agents=(AGENT,), limit=1, lease_s=60.0)).lanes

    engine.call(mail_to(AGENT, ["one"]))
    zombie = crew.spawn(ZOMBIE, url=log_url, agent=AGENT, trail=TRAIL, lease_s=ZOMBIE_LEASE_S)
    old = zombie.hear()["token"]
    engine.call(mail_to("nobody", ["two"]))  # our turn with the file: the worker has given it back, and is idle
    zombie.freeze()

    (lane,) = eventually(take_over)
    engine.call(starting(TRAIL, lane))
    zombie.resume()
    zombie.tell("go")
    outcomes = zombie.hear()
    engine.call(settling(TRAIL, lane, 2))

    assert lane.owner.token != old
    assert lane.attempt == 2
    assert outcomes == dict.fromkeys(("append", "pending", "later", "settle"), "Fenced") | {"renewed": False}
    zombie.tell("go")
    assert zombie.hear() == outcomes
    assert_clean(lane_findings({"one": [MailRef(f"chat:{AGENT}", 1)]}, whole_log(engine, TRAIL)))
