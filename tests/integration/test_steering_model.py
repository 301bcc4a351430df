"""Steers in model requests, as a real model server receives them over HTTP."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.runner.team.runner import TeamRunner
from magent2.worker.lane_run import Outcome
from magent2.worker.service import WorkerService
from tests.support.journaled_runs import CrashingBus
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.steerable_run import receipts, seen_steers, steer
from tests.support.team import active_agent, mail, team_on
from tests.support.waiting import DEADLINE_S
from tests.support.worker_fixture import LEASE_S, run_worker, until

BLOCK = '<bus-message source="user:ann">\n{}\n</bus-message>'


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


@asynccontextmanager
async def desk(bus: Engine, server: ModelServer, **options: Any) -> AsyncIterator[tuple[WorkerService, TeamRunner]]:
    runner = team_on(server.url)
    async with run_worker(bus, runner, agent="desk", **{"lease_s": LEASE_S, **options}) as service:
        yield service, runner
    await runner.aclose()


class Script:
    """Replies in turn; before a reply leaves, something may be said to the run."""

    def __init__(self, bus: Engine, *replies: Reply | str | tuple[str, Reply]) -> None:
        self._bus = bus
        self._replies = [reply if isinstance(reply, tuple) else ("", reply) for reply in replies]

    def __call__(self, request: dict[str, Any]) -> Reply:
        said, reply = self._replies.pop(0)
        if said:
            steer(self._bus, said)
        return reply if isinstance(reply, Reply) else Reply(reply)


def look(number: int) -> Reply:
    return Reply(calls=[Call("weather", {"city": "Oslo"}, f"c{number}")])


def texts(request: dict[str, Any]) -> list[str]:
    """What was said, in order; calls and results by their sort."""
    return [_text(item) for item in request["input"]]


def _text(item: dict[str, Any]) -> str:
    if "type" in item and item["type"] != "message":
        return str(item["type"])
    content = item["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def blocks_in(request: dict[str, Any]) -> list[str]:
    return [text for text in texts(request) if re.match("<bus-message ", text)]


async def test_the_block_is_in_the_next_request_after_the_steer_and_in_all_later_ones(bus: MemoryBus) -> None:
    mail(bus, "hello")
    script = Script(bus, ("in Celsius", look(1)), look(2), ("and briefly", look(3)), "Done.")
    with ModelServer(script) as server:
        async with desk(bus, server) as (service, _):
            await until(lambda: service.outcomes[Outcome.ANSWERED])
            mail(bus, "again")
            script._replies.append(("", Reply("Sure.")))
            await until(lambda: service.outcomes[Outcome.ANSWERED] == 2)

    first, second = BLOCK.format("in Celsius"), BLOCK.format("and briefly")
    shown = [blocks_in(request) for request in server.requests]
    assert shown == [[], [first], [first], [first, second], [first, second]]
    pair = ["function_call", "function_call_output"]
    assert texts(server.requests[3]) == ["hello", *pair, first, *pair, *pair, second]
    assert texts(server.requests[4]) == [*texts(server.requests[3]), "Done.", "again"]


async def test_a_model_that_fails_and_is_asked_again_sees_it_once(bus: MemoryBus) -> None:
    mail(bus, "hello")
    script = Script(bus, ("listen", look(1)), Reply(status=500), Reply("half", break_after=0), "Done.")
    with ModelServer(script) as server:
        async with desk(bus, server) as (service, _):
            await until(lambda: service.outcomes[Outcome.ANSWERED], 20.0)

    assert [len(blocks_in(request)) for request in server.requests] == [0, 1, 1, 1]
    assert [turn for turn, _ in seen_steers(bus)] == [1]
    assert len(receipts(bus)) == 1


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("on", ["answer", "tool", "end"])
async def test_after_a_takeover_a_steer_is_in_every_request_once(bus: MemoryBus, on: str, after: bool) -> None:
    """The worker dies before or after an append that has such a record; another goes on."""
    mail(bus, "hello")
    steer(bus, "listen", recipient="agent:desk")

    def reply(request: dict[str, Any]) -> Reply:
        return Reply("Done.") if "function_call_output" in texts(request) else look(1)

    with ModelServer(reply) as server:
        mortal = CrashingBus(bus, after=after, on=on)
        runner = team_on(server.url)
        service = WorkerService(mortal, {"desk": runner}, lease_s=0.2, worker="mortal")
        await run_until_dead(service, mortal)
        await runner.aclose()
        async with desk(bus, server, lease_s=0.2) as (other, _):
            await until(lambda: other.outcomes[Outcome.ANSWERED] or (on, after) == ("end", True))

    assert {tuple(blocks_in(request)) for request in server.requests} == {(BLOCK.format("listen"),)}
    assert [text for _, text in seen_steers(bus)] == ["listen"]
    assert [outcome for _, outcome in receipts(bus)] == ["seen"]


async def run_until_dead(service: WorkerService, bus: CrashingBus) -> None:
    task = asyncio.create_task(service.run())
    await asyncio.wait_for(bus.dead.wait(), DEADLINE_S)
    task.cancel()
    await asyncio.wait([task])


async def test_a_steer_after_a_handoff_reaches_the_new_agent(bus: MemoryBus) -> None:
    mail(bus, "prices, please")
    handing = Reply(calls=[Call("transfer_to_shop", {}, "h1")])
    searching = Reply(calls=[Call("product_search", {"query": "lamp"}, "c1")])
    script = Script(bus, handing, ("only red ones", searching), "A red lamp.")
    with ModelServer(script) as server:
        async with desk(bus, server) as (service, _):
            await until(lambda: service.outcomes[Outcome.ANSWERED])

    assert active_agent(bus) == "shop"
    assert [len(blocks_in(request)) for request in server.requests] == [0, 0, 1]
    assert server.requests[2]["instructions"].startswith("You are the shop.")
    assert [turn for turn, _ in seen_steers(bus)] == [2]
