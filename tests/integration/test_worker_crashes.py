"""Real worker processes, killed and frozen at random: every message is answered once, in order."""

from __future__ import annotations

import random

import pytest

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.runner.echo import EchoRunner
from magent2.worker.lane_run import Outcome
from tests.support.audit import assert_clean, whole_log
from tests.support.processes import ProcessGroup
from tests.support.run_audit import run_findings
from tests.support.service_pool import ServicePool
from tests.support.worker_fixture import run_worker, send, until

CONVERSATIONS = 20
WORKERS = 2
MESSAGES, ROUNDS = 140, 6
MESSAGES_SOAK, ROUNDS_SOAK = 500, 60
EXTRA_MAX = 20  # faults after the last round, while none has hit a run
FAULTLESS = 2000


def post(pool: ServicePool, first: int, count: int) -> None:
    for n in range(first, first + count):
        pool.post(f"message {n} of many", f"c{n % CONVERSATIONS}")


def work_through(pool: ServicePool, messages: int, rounds: int, rng: random.Random) -> None:
    for _ in range(WORKERS):
        pool.start_worker()
    pool.await_ready()
    share = messages // rounds
    for number in range(rounds):
        post(pool, number * share, share if number < rounds - 1 else messages - number * share)
        pool.wait_for(rng.randint(1, max(1, share // 2)))
        pool.freeze_one() if number % 3 == 2 else pool.kill_one()
    for _ in range(EXTRA_MAX):  # a run may end between the choice of a worker and the fault
        pool.wait_for(messages)
        if pool.takeovers():
            break
        post(pool, pool.posted(), CONVERSATIONS)
        pool.freeze_one()


def check(pool: ServicePool, messages: int, rounds: int) -> None:
    outcomes = pool.drain_all()
    assert_clean(pool.findings())
    print(f"{pool.posted()} messages, {dict(pool.happened)}, {pool.takeovers()} takeovers, {dict(outcomes)}")
    assert pool.posted() >= messages
    assert pool.happened["kills"] >= rounds // 2
    assert pool.happened["freezes"] >= 1
    assert pool.takeovers() >= 1, "no run was ever taken over: the test shows nothing"


def test_killed_and_frozen_workers_answer_every_message_once_and_in_order(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    pool = ServicePool(log_url, engine, process_group, rng)

    work_through(pool, MESSAGES, ROUNDS, rng)

    check(pool, MESSAGES, ROUNDS)


@pytest.mark.soak
def test_500_messages_over_20_conversations_survive_many_crashes(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    pool = ServicePool(log_url, engine, process_group, rng)

    work_through(pool, MESSAGES_SOAK, ROUNDS_SOAK, rng)

    check(pool, MESSAGES_SOAK, ROUNDS_SOAK)


async def test_2000_messages_over_20_conversations_have_2000_answers() -> None:
    bus = MemoryBus()
    sent: dict[str, list[tuple[str, str]]] = {}
    for n in range(FAULTLESS):
        conversation, text = f"c{n % CONVERSATIONS}", f"message {n}"
        sent.setdefault(conversation, []).append((send(bus, text, conversation), text))

    async with run_worker(bus, EchoRunner()) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED] == FAULTLESS, 60.0)

    for conversation, messages in sent.items():
        stream, history = (whole_log(bus, f"{kind}:{conversation}") for kind in ("stream", "history"))
        assert_clean(run_findings(messages, stream, history), conversation)
    bus.close()


@pytest.mark.soak
def test_2000_messages_over_20_conversations_have_2000_answers_on_a_real_log(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    pool = ServicePool(log_url, engine, process_group, rng)
    post(pool, 0, FAULTLESS)
    pool.start_worker(think_max_s=0.0)
    pool.await_ready()
    pool.wait_for(FAULTLESS)

    assert pool.drain_all()["ANSWERED"] == FAULTLESS
    assert_clean(pool.findings())
