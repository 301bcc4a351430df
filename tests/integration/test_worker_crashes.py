"""Real worker processes, killed and frozen at random: every message is answered once, in order."""

from __future__ import annotations

import random

import pytest

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.runner.echo import EchoRunner
from magent2.worker.lane_run import Outcome
from tests.support.audit import assert_clean, whole_log
from tests.support.processes import Crew
from tests.support.run_audit import run_findings
from tests.support.service_chaos import Workforce
from tests.support.serving import send, serving, until

CONVERSATIONS = 20
WORKERS = 2
MESSAGES, ROUNDS = 140, 6
MESSAGES_SOAK, ROUNDS_SOAK = 500, 60
FAULTLESS = 2000


def post(force: Workforce, first: int, count: int) -> None:
    for n in range(first, first + count):
        force.post(f"message {n} of many", f"c{n % CONVERSATIONS}")


def work_through(force: Workforce, messages: int, rounds: int, dice: random.Random) -> None:
    for _ in range(WORKERS):
        force.hire()
    force.await_ready()
    share = messages // rounds
    for number in range(rounds):
        post(force, number * share, share if number < rounds - 1 else messages - number * share)
        force.wait_for(dice.randint(1, max(1, share // 2)))
        force.freeze_one() if number % 3 == 2 else force.kill_one()
    force.wait_for(messages)


def check(force: Workforce, messages: int, rounds: int) -> None:
    outcomes = force.go_home()
    assert_clean(force.findings())
    print(f"{force.posted()} messages, {dict(force.happened)}, {force.takeovers()} takeovers, {dict(outcomes)}")
    assert force.posted() == messages
    assert force.happened["kills"] >= rounds // 2
    assert force.happened["freezes"] >= 1
    assert force.takeovers() >= 1, "no run was ever taken over: the test shows nothing"


def test_killed_and_frozen_workers_answer_every_message_once_and_in_order(
    log_url: str, engine: Engine, crew: Crew, dice: random.Random
) -> None:
    force = Workforce(log_url, engine, crew, dice)

    work_through(force, MESSAGES, ROUNDS, dice)

    check(force, MESSAGES, ROUNDS)


@pytest.mark.soak
def test_500_messages_over_20_conversations_survive_a_long_day(
    log_url: str, engine: Engine, crew: Crew, dice: random.Random
) -> None:
    force = Workforce(log_url, engine, crew, dice)

    work_through(force, MESSAGES_SOAK, ROUNDS_SOAK, dice)

    check(force, MESSAGES_SOAK, ROUNDS_SOAK)


async def test_2000_messages_over_20_conversations_have_2000_answers() -> None:
    bus = MemoryBus()
    sent: dict[str, list[tuple[str, str]]] = {}
    for n in range(FAULTLESS):
        conversation, text = f"c{n % CONVERSATIONS}", f"message {n}"
        sent.setdefault(conversation, []).append((send(bus, text, conversation), text))

    async with serving(bus, EchoRunner()) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED] == FAULTLESS, 60.0)

    for conversation, messages in sent.items():
        stream, history = (whole_log(bus, f"{kind}:{conversation}") for kind in ("stream", "history"))
        assert_clean(run_findings(messages, stream, history), conversation)
    bus.close()


@pytest.mark.soak
def test_2000_messages_over_20_conversations_have_2000_answers_on_a_real_log(
    log_url: str, engine: Engine, crew: Crew, dice: random.Random
) -> None:
    force = Workforce(log_url, engine, crew, dice)
    post(force, 0, FAULTLESS)
    force.hire(think_max_s=0.0)
    force.await_ready()
    force.wait_for(FAULTLESS)

    assert force.go_home()["ANSWERED"] == FAULTLESS
    assert_clean(force.findings())
