"""One user floods a worker with slow synchronous tools. The tools of other users run all the same."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Workers
from magent2.bus.records import WorkerInfo
from magent2.bus.redis_adapter import RedisBus
from magent2.mail.delivery import SendOptions
from magent2.runner.team.runner import TeamRunner
from magent2.tools.interface import ToolCallExecutor
from magent2.tools.registry import ToolRegistry, tool
from magent2.worker.service import LEASE_S
from tests.support.redis_server import RedisServer, skip_if_left_out
from tests.support.team import DESK, mail, replace_tools, roster
from tests.support.waiting import until
from tests.support.worker_fixture import kinds, outputs, run_worker, stream

SLOW_CALLS = 40
USERS = 3
THREADS, SHARE = 8, 4  # fewer threads than slow calls


class SlowTools:
    """A synchronous tool that waits, an asynchronous one that waits on a thread of the loop, and a quick one."""

    def __init__(self) -> None:
        self.released = threading.Event()
        self.started = 0
        self._one = threading.Semaphore(0)

    def release_one(self) -> None:
        self._one.release()

    def wait(self) -> None:
        """Wait until this call or all calls are released."""
        while not self.released.is_set() and not self._one.acquire(timeout=0.05):
            pass

    def registry(self) -> ToolRegistry:
        @tool
        def slow() -> str:
            """Wait."""
            self.started += 1
            self.wait()
            return "late"

        @tool
        async def slow_async() -> str:
            """Wait on a thread of the event loop."""
            return await asyncio.to_thread(slow)

        @tool
        def quick() -> str:
            """Answer."""
            return "in time"

        return ToolRegistry([slow, slow_async, quick])


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    yield bus
    bus.close()


@pytest.fixture
def slow_tools() -> SlowTools:
    return SlowTools()


@pytest.fixture
async def runner(slow_tools: SlowTools) -> AsyncIterator[TeamRunner]:
    desk = replace_tools(DESK, "slow", "slow_async", "quick")
    limits = {"tool_threads_max": THREADS, "tool_threads_per_principal_max": SHARE}
    runner = TeamRunner(roster(desk, limits=limits), slow_tools.registry(), kind="echo")
    yield runner
    slow_tools.released.set()  # before the event loop is closed, which waits for the threads of its default executor
    await runner.aclose()


def call_tool(bus: Engine, name: str, principal: str, conversation: str) -> None:
    sending = SendOptions(kind="tool", principal=principal)
    mail(bus, "", "desk", conversation, sender=principal, metadata={"tool": name}, sending=sending)


async def test_slow_tools_of_one_user_leave_threads_for_another(
    bus: MemoryBus, runner: TeamRunner, slow_tools: SlowTools
) -> None:
    async with run_worker(bus, runner, "desk", concurrency=2 * SLOW_CALLS):
        for number in range(SLOW_CALLS):
            call_tool(bus, "slow", "user:mallory", f"flood-{number}")
        await until(lambda: slow_tools.started == SHARE)
        call_tool(bus, "quick", "user:ann", "one")

        assert await until(lambda: outputs(bus)) == ["in time"]
        assert not slow_tools.released.is_set()
        slow_tools.released.set()
        await until(lambda: all(outputs(bus, f"flood-{number}") for number in range(SLOW_CALLS)))


async def test_when_all_threads_are_occupied_users_take_turns(
    bus: MemoryBus, runner: TeamRunner, slow_tools: SlowTools
) -> None:
    async with run_worker(bus, runner, "desk", concurrency=2 * SLOW_CALLS):
        for number in range(SLOW_CALLS):
            call_tool(bus, "slow", f"user:mallory-{number % (USERS - 1)}", f"flood-{number}")
        await until(lambda: slow_tools.started == THREADS and runner.tool_threads.waiting == SLOW_CALLS - THREADS)
        call_tool(bus, "quick", "user:ann", "one")
        await until(lambda: runner.tool_threads.waiting == SLOW_CALLS - THREADS + 1)

        for _ in range(USERS):
            slow_tools.release_one()

        assert await until(lambda: outputs(bus)) == ["in time"]
        slow_tools.released.set()


async def test_slow_tools_on_the_threads_of_the_loop_are_limited_too(
    bus: MemoryBus, runner: TeamRunner, slow_tools: SlowTools
) -> None:
    """The executor that `serve` and `worker` set on their loop, for tools that call `asyncio.to_thread`."""
    asyncio.get_running_loop().set_default_executor(ToolCallExecutor())
    async with run_worker(bus, runner, "desk", concurrency=2 * SLOW_CALLS):
        for number in range(SLOW_CALLS):
            call_tool(bus, "slow_async", "user:mallory", f"flood-{number}")
        await until(lambda: slow_tools.started == SHARE)

        # Libraries of the process, such as the client of a model, resolve names there.
        assert await asyncio.wait_for(asyncio.to_thread(str, "resolved"), 10.0) == "resolved"
        assert slow_tools.started == SHARE
        slow_tools.released.set()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    skip_if_left_out()
    server = RedisServer(tmp_path, "--save", "", "--appendonly", "yes", "--appendfsync", "always")
    server.start()
    yield server
    server.stop()


@pytest.mark.redis
async def test_redis_is_reconnected_and_the_lease_kept_while_slow_tools_run(
    redis: RedisServer, runner: TeamRunner, slow_tools: SlowTools
) -> None:
    """Half of the tools occupy the threads for tools, half the default executor of an application's own loop."""
    worker_bus, bus = RedisBus(redis.url), RedisBus(redis.url)
    flood = [f"flood-{number}" for number in range(SLOW_CALLS)]

    def lease_of_the_flood() -> WorkerInfo | None:
        """The lease, once the worker holds the lanes of the flood and no others."""
        return next((lease for lease in bus.call(Workers()) if lease.lanes == SLOW_CALLS), None)

    async with run_worker(worker_bus, runner, "desk", concurrency=2 * SLOW_CALLS, lease_s=LEASE_S):
        for number, conversation in enumerate(flood):
            call_tool(bus, "slow_async" if number % 2 else "slow", "user:mallory", conversation)
        await until(lambda: slow_tools.started > SHARE and lease_of_the_flood() is not None)

        redis.stop()
        redis.start()
        call_tool(bus, "quick", "user:ann", "one")

        assert await until(lambda: outputs(bus), LEASE_S) == ["in time"]
        lease = await until(lease_of_the_flood)
        assert lease is not None
        assert lease.lease_s > 0
        slow_tools.released.set()
        await until(lambda: all(outputs(bus, conversation) for conversation in flood))
    assert "restarted" not in {kind for conversation in flood for kind in kinds(stream(bus, conversation))}
    await bus.aclose()
    await worker_bus.aclose()
