"""Agents that join and leave while their worker runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import AGENTS_PER_WORKER_MAX, Workers
from magent2.runner.echo import EchoRunner
from magent2.worker import served_agents, service
from magent2.worker.runner_adapter import Runner
from magent2.worker.service import WorkerService
from magent2.worker.settlement import Outcome
from tests.support.runners import GatedRunner
from tests.support.team import DESK, SHOP, mail, roster, team_on, work
from tests.support.worker_fixture import LEASE_S, command, outputs, send, stream, until


@pytest.fixture
async def bus() -> AsyncIterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    await bus.aclose()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "TEAM_POLL_S", 0.001)


@asynccontextmanager
async def following(bus: MemoryBus, team: dict[str, Runner]) -> AsyncIterator[WorkerService]:
    """Run a worker for the agents that are in the team now."""
    worker = WorkerService(bus, lambda: team, lease_s=LEASE_S)
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        await asyncio.gather(worker.drain(0.0), task)


async def served(bus: MemoryBus, *agents: str) -> None:
    await until(lambda: [set(worker.agents) for worker in bus.call(Workers())] == [set(agents)])


async def test_mail_of_an_agent_that_joins_is_answered_also_if_it_is_older(bus: MemoryBus) -> None:
    team: dict[str, Runner] = {"Ada": EchoRunner()}
    async with following(bus, team):
        await served(bus, "Ada")
        send(bus, "early", "one", recipient="agent:Bob")

        team["Bob"] = EchoRunner()
        await until(lambda: outputs(bus, "one") == ["early"])
        send(bus, "late", "one", recipient="agent:Bob")
        await until(lambda: outputs(bus, "one") == ["early", "late"])
        await served(bus, "Ada", "Bob")


async def test_mail_of_an_agent_that_left_waits_until_it_is_back(bus: MemoryBus) -> None:
    team: dict[str, Runner] = {"Ada": EchoRunner(), "Bob": EchoRunner()}
    async with following(bus, team) as worker:
        del team["Bob"]
        await served(bus, "Ada")
        send(bus, "for Bob", "one", recipient="agent:Bob")
        send(bus, "for Ada", "two")
        await until(lambda: worker.outcomes[Outcome.ANSWERED] == 1)
        assert stream(bus, "one") == []

        team["Bob"] = EchoRunner()
        await until(lambda: outputs(bus, "one") == ["for Bob"])


async def test_a_run_of_an_agent_that_left_continues_and_can_be_stopped(bus: MemoryBus) -> None:
    gated = GatedRunner()
    team: dict[str, Runner] = {"Ada": EchoRunner(), "Bob": gated}
    async with following(bus, team) as worker:
        for conversation in ("ended", "stopped"):
            send(bus, "hello", conversation, recipient="agent:Bob")
        await until(lambda: len(gated.begun) == 2)
        del team["Bob"]
        await served(bus, "Ada")

        command(bus, "stop", "stopped", recipient="agent:Bob")
        await until(lambda: worker.outcomes[Outcome.STOPPED] == 1)
        gated.gate.set()
        await until(lambda: outputs(bus, "ended"))
        await served(bus, "Ada")


async def test_an_agent_that_cannot_join_is_logged_once_and_the_others_join(
    bus: MemoryBus, caplog: pytest.LogCaptureFixture
) -> None:
    send(bus, "hello", "Cid")  # a conversation of that name
    team: dict[str, Runner] = {"Ada": EchoRunner()}
    async with following(bus, team):
        team |= {"Cid": EchoRunner(), "Bob": EchoRunner()}
        await served(bus, "Ada", "Bob")
        send(bus, "hello", "one", recipient="agent:Bob")
        await until(lambda: outputs(bus, "one"))

    told = [
        record
        for record in caplog.records
        if record.name == served_agents.__name__ and record.levelno >= logging.WARNING
    ]
    assert [(record.getMessage(), record.__dict__["agent"]) for record in told] == [
        ("an agent that joined cannot be served", "Cid")
    ]


async def test_more_agents_than_one_worker_can_serve_change_nothing(
    bus: MemoryBus, caplog: pytest.LogCaptureFixture
) -> None:
    team: dict[str, Runner] = {"Ada": EchoRunner()}
    async with following(bus, team):
        await served(bus, "Ada")
        team |= {f"agent-{number}": EchoRunner() for number in range(AGENTS_PER_WORKER_MAX)}
        await until(lambda: "cannot serve this number of agents" in caplog.text)
        send(bus, "hello")
        await until(lambda: outputs(bus))
        await served(bus, "Ada")


async def test_mail_that_was_claimed_while_its_agent_left_waits_and_is_not_buried(bus: MemoryBus) -> None:
    """The run learns that its agent left before the worker does."""
    now = [roster(DESK, SHOP)]
    mail(bus, "hello", "shop")
    runner = team_on("http://127.0.0.1:1", lambda: now[0], kind="echo")
    now[0] = roster(replace(DESK, handoffs=()))

    assert await work(bus, runner, "shop") is Outcome.POSTPONED

    assert stream(bus) == []
    await runner.aclose()
