"""Python blocks, compared with the sandbox alone and with one append, in turns in one process."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from pydantic_monty import CollectString, Monty, MontyComplete, MontyRuntimeError

from bench.support.report import Pair, compare
from magent2.bus.interface import Engine
from magent2.bus.operations import RECORDS_PER_APPEND_MAX, Append
from magent2.bus.records import NewRecord
from magent2.bus.sqlite import SqliteBus
from magent2.bus.sqlite_engine.schema import CACHE_KIB
from magent2.sandbox.monty import MontySandbox
from magent2.sandbox.python_tool import PythonTool
from magent2.sessions.usage.budgets import NO_ROOT, CallRoot
from magent2.tools.default_tools import standard_tools
from magent2.tools.definition import ToolDefinition, ToolExecutionContext

SENDS = 3
MANY_SENDS = 40  # of a block whose calls are timed one by one
PAGE_KB = 4
FILLER_BYTES = 1000


@dataclass(frozen=True, slots=True)
class BlockScale:
    rounds: int
    blocks: int  # of which memory is measured


FULL = BlockScale(rounds=300, blocks=1000)
QUICK = BlockScale(rounds=5, blocks=20)


@dataclass(frozen=True)
class Facts:
    bus: Engine
    conversation_id: str = "bench"
    agent: str = "Ada"
    run_id: str = ""
    hops: int = 0
    principal: str | None = None
    root: CallRoot = NO_ROOT


@dataclass(frozen=True, slots=True)
class BlockFigures:
    block_us: float
    bare_us: float
    append_us: float
    held: Pair  # µs of a held call, and of one answered by hand
    apart: Pair  # the same, each message to another agent
    cold_us: float
    growth_mb: float


def code(sends: int, *, fails: bool = False, apart: bool = False, mark: int = 0) -> str:
    recipient = 'f"agent:Bea{n}"' if apart else '"agent:Bea"'
    body = f'for n in range({sends}):\n    chat_send({recipient}, f"hello {{n}}", "side")\n{mark}\n'
    return body + "1 / 0" if fails else body


class Bench:
    def __init__(self, folder: Path) -> None:
        self.bus = SqliteBus(folder / "bench.db")
        self.sandbox = MontySandbox(processes=1)
        self.facts = Facts(self.bus)
        self.python = PythonTool(self.sandbox, [standard_tools().get("chat_send")])
        self._moments: list[float] = []
        self._noting = PythonTool(self.sandbox, [self._noted(standard_tools().get("chat_send"))])

    async def block(self, text: str) -> None:
        await self.python.execute({"code": text}, ToolExecutionContext(self.facts, None))

    async def call_us(self, text: str) -> float:
        """The p50 time from one call of a block to the next. The block fails, so that it sends nothing."""
        self._moments.clear()
        await self._noting.execute({"code": text}, ToolExecutionContext(self.facts, None))
        return _interval_us(self._moments)

    def _noted(self, tool: ToolDefinition) -> ToolDefinition:
        def hold(given: Mapping[str, Any], context: ToolExecutionContext) -> dict[str, Any] | None:
            self._moments.append(time.perf_counter())
            return None if tool.hold is None else tool.hold(given, context)

        return replace(tool, hold=hold)

    async def append(self) -> None:
        """One append with the same number and size of records as the sends of a block."""
        payload = {"conversation_id": "side", "content": "hello", "filler": "x" * 180}
        await self.bus.acall(Append(records=tuple(NewRecord(f"bench:{n % 2}", payload) for n in range(2 * SENDS))))

    async def fill(self) -> None:
        """Fill the engine's page cache, so that it does not grow during the measurement."""
        payload = {"filler": "x" * FILLER_BYTES}
        records = tuple(NewRecord("bench:filler", payload) for _ in range(RECORDS_PER_APPEND_MAX))
        for _ in range(CACHE_KIB * 1024 // (FILLER_BYTES * RECORDS_PER_APPEND_MAX) + 1):
            await self.bus.acall(Append(records=records))

    async def aclose(self) -> None:
        await self.sandbox.aclose()
        await self.bus.aclose()


def bare(pool: Monty, text: str) -> float:
    """The same program with calls answered directly: p50 time from one call to the next in µs."""
    answer: Any = {"return_value": {"ok": True, "envelope_id": "send-0", "published_to": ["chat:side", "chat:Bea"]}}
    moments = []
    with pool.checkout() as session, suppress(MontyRuntimeError):
        snapshot = session.feed_start(text, print_callback=CollectString())
        while not isinstance(snapshot, MontyComplete):
            moments.append(time.perf_counter())
            snapshot = snapshot.resume(answer)  # type: ignore[call-arg]
    return _interval_us(moments)


def _interval_us(moments: Sequence[float]) -> float:
    return median(later - earlier for earlier, later in pairwise(moments)) * 1e6


async def measure(scale: BlockScale) -> BlockFigures:
    with tempfile.TemporaryDirectory() as folder, Monty() as pool:
        bench = Bench(Path(folder))
        try:
            return await _measure(bench, pool, scale)
        finally:
            await bench.aclose()


async def _measure(bench: Bench, pool: Monty, scale: BlockScale) -> BlockFigures:
    works: dict[str, Callable[[], Awaitable[object]]] = {
        "block": lambda: bench.block(code(SENDS)),
        "bare": lambda: _now(lambda: bare(pool, code(SENDS))),
        "append": bench.append,
    }
    took = await _turns(works, scale.rounds)
    cold = [await _timed(lambda mark=mark: bench.block(code(SENDS, mark=mark))) for mark in range(1, 6)]  # type: ignore[misc]
    return BlockFigures(
        took["block"],
        took["bare"],
        took["append"],
        await _calls(bench, pool, code(MANY_SENDS, fails=True), scale.rounds),
        await _calls(bench, pool, code(MANY_SENDS, fails=True, apart=True), scale.rounds),
        median(cold),
        await _growth_mb(bench, scale.blocks),
    )


async def _calls(bench: Bench, pool: Monty, text: str, rounds: int) -> Pair:
    return await compare(lambda: _now(lambda: bare(pool, text)), lambda: bench.call_us(text), rounds)


async def _now(work: Callable[[], float]) -> float:
    return work()


async def _turns(works: dict[str, Callable[[], Awaitable[object]]], rounds: int) -> dict[str, float]:
    """Run the sides in turns, so that other load affects all of them; return the median of each."""
    took: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds + 2):
        for name, work in works.items():
            took[name].append(await _timed(work))
    return {name: median(times[2:]) for name, times in took.items()}


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    begun = time.perf_counter()
    await work()
    return (time.perf_counter() - begun) * 1e6


async def _growth_mb(bench: Bench, blocks: int) -> float:
    await bench.fill()
    for _ in range(blocks // 4):
        await bench.block(code(SENDS))
    before = _resident_mb()
    for _ in range(blocks):
        await bench.block(code(SENDS))
    return max(0.0, _resident_mb() - before)


def _resident_mb() -> float:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_KB / 1024


def figures_of(scale: BlockScale) -> BlockFigures:
    return asyncio.run(measure(scale))
