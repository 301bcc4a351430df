"""Faults around a worker, and their effect on its mail."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import redis

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Lanes
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.sqlite import SqliteBus
from magent2.errors import TransientError
from magent2.mail.delivery import HOPS_MAX, SendOptions, deliver
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.echo import EchoRunner
from magent2.runner.run_stream import Event
from magent2.worker.lane_run import Outcome
from magent2.worker.retry import CRASHES_MAX
from magent2.worker.service import WorkerService
from tests.support.audit import assert_clean, whole_log
from tests.support.manual_clock import ManualClock
from tests.support.processes import Child, ChildSilent, ProcessGroup
from tests.support.redis_server import RedisServer, skip_if_left_out
from tests.support.run_audit import run_findings
from tests.support.runners import AsyncRunner, GatedRunner, SyncRunner, output, token
from tests.support.service_pool import ServicePool
from tests.support.waiting import eventually
from tests.support.worker_fixture import (
    AGENT,
    command,
    dead_letters,
    envelope,
    errors,
    kinds,
    outputs,
    run_worker,
    send,
    stream,
    until,
)

CRAMPED = "tests.integration.children.full_disk_service"
KEEP_ALL = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
AWAY_S = 2.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def memory(clock: ManualClock) -> Iterator[MemoryBus]:
    bus = MemoryBus(clock=clock)
    yield bus
    bus.close()


# --- a model that fails


async def test_a_model_that_fails_midway_is_told_and_tried_again(engine: Engine) -> None:
    asked = 0

    def script(mail: MessageEnvelope) -> Iterator[Event]:
        nonlocal asked
        asked += 1
        yield token(mail, "half ")
        if asked < 3:
            raise TransientError("the connection broke")
        yield token(mail, "whole", 1)

    send(engine, "hello")
    async with run_worker(engine, SyncRunner(script), chance=lambda: 0.0) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 1)

    assert kinds(stream(engine)) == [
        *("started", "token", "error"),
        *("restarted", "token", "error"),
        *("restarted", "token", "token", "output", "finished"),
    ]
    assert [error["retry_in_s"] for error in errors(engine)] == [0.25, 0.5]
    assert outputs(engine) == ["half whole"]
    assert dead_letters(engine) == []


async def test_a_model_that_fails_for_good_is_told_and_buried(engine: Engine) -> None:
    def script(mail: MessageEnvelope) -> Iterator[Event]:
        yield token(mail, "half")
        raise ValueError("the model refused")

    send(engine, "hello")
    async with run_worker(engine, SyncRunner(script)) as service:
        await until(lambda: service.outcomes[Outcome.BURIED] == 1)

    assert kinds(stream(engine)) == ["started", "token", "error", "failed"]
    assert dead_letters(engine)[0]["reason"].startswith("ValueError: the model refused (failure id ")


# --- mail that kills


def is_gone(child: Child) -> bool:
    try:
        child.check_alive()
    except ChildSilent:
        return True
    return False


def test_mail_that_crashes_workers_is_buried_and_other_mail_is_answered(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    """Innocent runs that take longer than the poison to kill are lost with every worker, and answered in the end."""
    pool = ServicePool(log_url, engine, process_group, rng)
    innocent = [f"innocent-{n}" for n in range(4)]
    for conversation in (*innocent[:2], "poisoned", *innocent[2:]):
        pool.post("die" if conversation == "poisoned" else "good day to you", conversation)

    deaths = 0
    while not dead_letters(engine):
        child = pool.start_worker(think_max_s=0.05, lease_s=0.2)
        eventually(lambda child=child: is_gone(child) or dead_letters(engine), 30.0)  # type: ignore[misc]
        deaths += is_gone(child)
    eventually(lambda: all(outputs(engine, conversation) for conversation in innocent), 30.0)
    pool.workers = {name: child for name, child in pool.workers.items() if not is_gone(child)}
    pool.drain_all()

    (letter,) = dead_letters(engine)
    assert (letter["attempts"], letter["mail"]["payload"]["content"]) == (CRASHES_MAX, "die")
    assert deaths == CRASHES_MAX
    assert kinds(stream(engine, "poisoned"))[-2:] == ["error", "failed"]
    assert engine.call(Lanes(AGENT)) == ()


async def test_a_message_loop_between_two_agents_is_stopped(engine: Engine) -> None:
    async def script(mail: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        other = "Bob" if context.agent == "Ada" else "Ada"
        reply = envelope("and you?", sender=f"agent:{context.agent}", recipient=f"agent:{other}")
        await deliver(Log(context.bus), reply, SendOptions(hops=context.hops + 1))
        yield output(mail, "fine")

    service = WorkerService(engine, {"Ada": AsyncRunner(script), "Bob": AsyncRunner(script)})
    task = asyncio.create_task(service.run())
    send(engine, "how are you?")
    await until(lambda: service.outcomes[Outcome.BURIED] == 1)
    await service.drain(5.0)
    await task

    assert service.outcomes[Outcome.ANSWERED] == HOPS_MAX
    assert [letter["reason"][:12] for letter in dead_letters(engine, "Ada") + dead_letters(engine, "Bob")] == [
        "HopsExceeded"
    ]
    assert "answering each other" in errors(engine)[0]["message"]


# --- two workers


async def test_two_workers_of_one_agent_answer_every_message_once(engine: Engine) -> None:
    sent = {f"c{c}": [(send(engine, text, f"c{c}"), text) for text in map(str, range(5))] for c in range(10)}
    async with (
        run_worker(engine, EchoRunner(), concurrency=3) as one,
        run_worker(engine, EchoRunner(), concurrency=3) as two,
    ):
        await until(lambda: (one.outcomes + two.outcomes)[Outcome.ANSWERED] == 50)

    for conversation, messages in sent.items():
        logs = (whole_log(engine, f"{kind}:{conversation}") for kind in ("stream", "history"))
        assert_clean(run_findings(messages, *logs))


# --- clocks


@pytest.mark.parametrize("jump_s", [86_400.0, -86_400.0])
async def test_a_clock_that_jumps_costs_no_lane_and_no_message(
    memory: MemoryBus, clock: ManualClock, jump_s: float
) -> None:
    runner = GatedRunner()
    send(memory, "before", "c1")
    async with run_worker(memory, runner, lease_s=30.0) as service:
        await until(lambda: runner.begun)
        clock.jump_s(jump_s)
        send(memory, "after", "c2")
        await until(lambda: len(runner.begun) == 2)
        runner.gate.set()
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 2)

    assert service.outcomes[Outcome.FENCED] == 0
    assert (outputs(memory, "c1"), outputs(memory, "c2")) == (["before"], ["after"])


async def test_a_stop_reaches_its_run_though_the_clock_went_back(memory: MemoryBus, clock: ManualClock) -> None:
    runner = GatedRunner()
    send(memory, "hello")
    async with run_worker(memory, runner) as service:
        await until(lambda: runner.begun)
        clock.jump_s(-3600.0)
        command(memory, "stop")
        await until(lambda: service.outcomes[Outcome.STOPPED] == 1)


# --- a bus that is away


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    """A server that keeps what it acknowledged."""
    skip_if_left_out()
    server = RedisServer(tmp_path, *KEEP_ALL)
    server.start()
    yield server
    server.stop()


async def stop_and_start(server: RedisServer, number: signal.Signals) -> None:
    os.kill(server.pid, number)
    await asyncio.to_thread(server.stop)
    await asyncio.sleep(AWAY_S)
    await asyncio.to_thread(server.start)


async def freeze_and_thaw(server: RedisServer, number: signal.Signals) -> None:
    os.kill(server.pid, number)
    await asyncio.sleep(AWAY_S)
    os.kill(server.pid, signal.SIGCONT)


@pytest.mark.redis
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSTOP])
async def test_runs_go_on_when_redis_comes_back(server: RedisServer, number: signal.Signals) -> None:
    bus = RedisBus(server.url, retry_for_s=0.5)
    runner = GatedRunner()
    sent = [(send(bus, text), text) for text in ("before", "behind")]
    async with run_worker(bus, runner) as service:
        await until(lambda: runner.begun)
        await (freeze_and_thaw if number == signal.SIGSTOP else stop_and_start)(server, number)
        runner.gate.set()
        sent.append((await asyncio.to_thread(send, bus, "after"), "after"))
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 3, 30.0)

    assert_clean(run_findings(sent, whole_log(bus, "stream:one"), whole_log(bus, "history:one")))
    await bus.aclose()


@pytest.mark.redis
async def test_malformed_mail_of_other_programs_is_buried(redis_server: RedisServer) -> None:
    prefix = uuid.uuid4().hex[:12]
    bus = RedisBus(redis_server.url, prefix=prefix)
    send(bus, "first")
    with redis.Redis(port=redis_server.port) as client:
        client.xadd(f"{prefix}:t:chat:{AGENT}", {"colour": "blue"}, id="0-*")
    send(bus, "second")
    async with run_worker(bus, EchoRunner()) as service:
        await until(lambda: service.outcomes[Outcome.ANSWERED] == 2 and service.outcomes[Outcome.BURIED] == 1)

    assert outputs(bus) == ["first", "second"]
    assert "cannot be read" in dead_letters(bus)[0]["reason"]
    await bus.aclose()


# --- a full disk


def test_runs_wait_for_room_on_a_full_disk_and_lose_nothing(tmp_path: Path, process_group: ProcessGroup) -> None:
    path = tmp_path / "log.db"
    bus = SqliteBus(path)
    text = "much text " * 5000
    sent = [(send(bus, text), text) for _ in range(3)]

    child = process_group.spawn(CRAMPED, path=str(path), agent=AGENT)
    assert child.next_report() == {"ready": True}
    assert child.next_report() == {"waiting": "waiting for the bus", "level": "ERROR"}
    assert len(outputs(bus)) < len(sent)
    child.write_line("room")
    eventually(lambda: len(outputs(bus)) == len(sent), 30.0)
    child.write_line("drain")

    assert child.finish() == 0, child.errors()
    assert_clean(run_findings(sent, whole_log(bus, "stream:one"), whole_log(bus, "history:one")))
    bus.close()
