"""Fair shares: who gets the next place, and what happens to calls that are cancelled, fail or never end."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magent2 import fair_share
from magent2.fair_share import FairQueue, FairSlots, FairThreads
from magent2.tools.interface import CallScope, RunFacts, ToolCallExecutor, call_scope
from tests.support.waiting import DEADLINE_S, until

ANN, BOB, MALLORY = "user:ann", "user:bob", "user:mallory"
THREADS = "test-fair-threads"


def take_all(queue: FairQueue[Any]) -> list[Any]:
    items = []
    while (taken := queue.take()) is not None:
        items.append(taken[1])
    return items


# --- the queue


def test_principals_that_wait_take_turns() -> None:
    queue: FairQueue[str] = FairQueue(size=1, share=1)
    for item in ("m1", "m2", "m3"):
        queue.put(MALLORY, item)
    queue.put(ANN, "a1")
    queue.put(BOB, "b1")

    order = []
    while (taken := queue.take()) is not None:
        order.append(taken[1])
        queue.release(taken[0])

    assert order == ["m1", "a1", "b1", "m2", "m3"]


def test_a_principal_holds_its_share_and_no_more() -> None:
    queue: FairQueue[int] = FairQueue(size=4, share=2)
    for number in range(5):
        queue.put(MALLORY, number)

    assert take_all(queue) == [0, 1]
    queue.put(ANN, 10)
    assert take_all(queue) == [10]
    queue.release(MALLORY)
    assert (take_all(queue), queue.busy, queue.waiting) == ([2], 3, 2)


def test_an_item_that_no_longer_waits_is_not_taken() -> None:
    queue: FairQueue[str] = FairQueue(size=1, share=1)
    queue.put(ANN, "a1")
    queue.put(ANN, "a2")

    queue.remove(ANN, "a1")
    queue.remove(ANN, "a1")

    assert (take_all(queue), queue.waiting) == (["a2"], 0)


@given(
    size=st.integers(1, 4),
    share=st.integers(1, 4),
    steps=st.lists(st.tuples(st.sampled_from(["put", "release", "remove"]), st.sampled_from([ANN, BOB, None]))),
)
def test_a_free_place_is_never_kept_from_an_item_that_may_have_it(
    size: int, share: int, steps: list[tuple[str, str | None]]
) -> None:
    queue: FairQueue[int] = FairQueue(size, share)
    waiting: list[tuple[str | None, int]] = []
    held: Counter[str | None] = Counter()
    for number, (step, principal) in enumerate(steps):
        if step == "put":
            queue.put(principal, number)
            waiting.append((principal, number))
        elif step == "release" and held[principal]:
            queue.release(principal)
            held[principal] -= 1
        elif step == "remove" and waiting:
            queue.remove(*waiting.pop(0))
        while (taken := queue.take()) is not None:
            first = next(item for item in waiting if item[0] == taken[0])
            assert first == taken, "the items of one principal are taken in order"
            waiting.remove(taken)
            held[taken[0]] += 1

        assert (queue.busy, queue.waiting) == (held.total(), len(waiting))
        assert held.total() <= size
        assert max(held.values(), default=0) <= share
        assert held.total() == size or all(held[name] == share for name, _ in waiting)


# --- slots on an event loop


async def test_a_cancelled_wait_for_a_slot_leaves_the_queue() -> None:
    slots = FairSlots(1, 1)
    await slots.acquire(ANN)
    waiting = [asyncio.create_task(slots.acquire(BOB)) for _ in range(2)]
    await until(lambda: slots.waiting == 2)

    waiting[0].cancel()
    slots.release(ANN)
    await waiting[1]

    assert (waiting[0].cancelled(), slots.busy, slots.waiting) == (True, 1, 0)


async def test_a_slot_that_is_granted_to_a_cancelled_task_is_returned() -> None:
    slots = FairSlots(1, 1)
    await slots.acquire(ANN)
    waiting = asyncio.create_task(slots.acquire(BOB))
    await until(lambda: slots.waiting)

    slots.release(ANN)  # granted, but the task has not run yet
    waiting.cancel()
    await asyncio.wait([waiting])

    assert (slots.busy, slots.waiting) == (0, 0)


# --- threads


class Gate:
    """A function that waits until the gate is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self.entered = 0

    def wait(self) -> str:
        self.entered += 1
        self._open.wait(60.0)
        return "done"

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


def count_threads(name: str) -> int:
    return sum(thread.name == name for thread in threading.enumerate())


async def test_a_flood_of_one_principal_leaves_threads_for_another(gate: Gate) -> None:
    threads = FairThreads(3, 2, "test-flooded-threads")  # those of other tests stay for a while after their last call
    flood = [asyncio.create_task(threads.run(MALLORY, gate.wait)) for _ in range(20)]
    await until(lambda: gate.entered == 2)

    assert await threads.run(ANN, str, 5) == "5"

    await until(lambda: threads.busy == 2)
    assert threads.waiting == 18
    assert count_threads("test-flooded-threads") <= 3
    gate.open()
    assert await asyncio.gather(*flood) == ["done"] * 20


async def test_a_call_that_is_cancelled_while_it_waits_leaves_the_queue_and_never_runs(gate: Gate) -> None:
    threads = FairThreads(1, name=THREADS)
    running = asyncio.create_task(threads.run(ANN, gate.wait))
    await until(lambda: gate.entered)
    waiting = asyncio.create_task(threads.run(ANN, gate.wait))
    await until(lambda: threads.waiting)

    waiting.cancel()
    await until(lambda: not threads.waiting)
    gate.open()

    assert (await running, gate.entered) == ("done", 1)


async def test_a_call_that_is_cancelled_while_it_runs_keeps_its_place_until_it_returns(gate: Gate) -> None:
    threads = FairThreads(2, 1, THREADS)
    running = asyncio.create_task(threads.run(ANN, gate.wait))
    await until(lambda: gate.entered)

    running.cancel()
    await asyncio.wait([running])
    after = asyncio.create_task(threads.run(ANN, str, 5))
    await until(lambda: threads.waiting)

    assert (threads.busy, await threads.run(BOB, str, 6)) == (1, "6")
    gate.open()
    assert await after == "5"


async def test_idle_threads_end(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_share, "IDLE_THREAD_MAX_S", 0.01)
    threads = FairThreads(8, name="test-idle-threads")
    calls = [asyncio.create_task(threads.run(None, gate.wait)) for _ in range(8)]
    await until(lambda: gate.entered == 8)
    assert count_threads("test-idle-threads") == 8

    gate.open()
    await asyncio.gather(*calls)

    await until(lambda: not count_threads("test-idle-threads"))
    assert await threads.run(None, str, 5) == "5"


async def test_calls_one_after_the_other_share_one_thread() -> None:
    threads = FairThreads(8, name="test-one-thread")

    idents = set()
    for _ in range(20):
        idents.add(await threads.run(None, threading.get_ident))
        await until(lambda: not threads.busy)

    assert len(idents) == 1


async def test_threads_that_become_idle_while_calls_arrive_lose_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_share, "IDLE_THREAD_MAX_S", 0.0)
    threads = FairThreads(4, 2, THREADS)
    principals = (ANN, BOB, MALLORY, None)

    async with asyncio.timeout(20):
        results = await asyncio.gather(*(threads.run(principals[n % 4], str, n) for n in range(2000)))

    assert results == [str(n) for n in range(2000)]
    await until(lambda: not threads.busy)


@pytest.mark.parametrize(
    "error", [StopIteration("empty"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()]
)
async def test_an_exception_that_a_future_cannot_hold_is_an_error_of_the_call(error: BaseException) -> None:
    def fail() -> None:
        raise error

    async with asyncio.timeout(DEADLINE_S):
        with pytest.raises(RuntimeError, match=f"raised {type(error).__name__}"):
            await FairThreads(1).run(None, fail)


async def test_without_a_new_thread_the_call_fails_and_its_place_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = FairThreads(1, name=THREADS)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with pytest.raises(RuntimeError, match="new thread"):
            await threads.run(ANN, str, 5)

    assert await threads.run(ANN, str, 5) == "5"


def test_several_event_loops_share_the_threads() -> None:
    threads = FairThreads(2, 1, THREADS)

    async def call_often() -> list[str]:
        return await asyncio.gather(*(threads.run(ANN, str, n) for n in range(50)))

    found: list[list[str]] = []
    loops = [threading.Thread(target=lambda: found.append(asyncio.run(call_often()))) for _ in range(4)]
    for loop in loops:
        loop.start()
    for loop in loops:
        loop.join(10.0)

    assert found == [[str(n) for n in range(50)]] * 4


# --- the default executor of a loop that runs tools

_WHO: ContextVar[str] = ContextVar("who", default="?")


class _Facts:
    principal = MALLORY


async def test_code_that_a_tool_gives_to_the_default_executor_runs_on_the_threads_for_tools(gate: Gate) -> None:
    asyncio.get_running_loop().set_default_executor(ToolCallExecutor(1))
    threads = FairThreads(2, 1, THREADS)
    _WHO.set("the tool")
    with call_scope(CallScope(cast(RunFacts, _Facts()), "key", threads=threads)):
        slow = [asyncio.create_task(asyncio.to_thread(gate.wait)) for _ in range(3)]
        await until(lambda: gate.entered)

    assert await asyncio.to_thread(_WHO.get) == "the tool"  # outside the call: a thread of the executor itself
    assert (threads.busy, threads.waiting) == (1, 2)
    gate.open()
    assert await asyncio.gather(*slow) == ["done"] * 3


async def test_a_tool_that_never_ends_does_not_keep_the_loop_from_closing(gate: Gate) -> None:
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ToolCallExecutor(1))
    with call_scope(CallScope(cast(RunFacts, _Facts()), "key", threads=FairThreads(1, name=THREADS))):
        stuck = asyncio.create_task(asyncio.to_thread(gate.wait))
        await until(lambda: gate.entered)
    stuck.cancel()

    began = time.monotonic()
    await loop.shutdown_default_executor()

    assert time.monotonic() - began < 30.0
