"""Blocks in pydantic-monty: a pool of worker processes, a fresh one's state for each block, driven from threads.

A process that is killed, by us or by itself, costs the block that it ran; the pool starts another.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from pydantic_monty import Monty, MontyError

from magent2.sandbox.interface import (
    CODE_MAX_BYTES,
    AbortBlock,
    BlockFailure,
    BlockLimits,
    BlockResult,
    HostCall,
    Program,
    QuickCall,
    Sandbox,
)
from magent2.sandbox.monty_session import BlockSession, FunctionCall, TooManyCalls, failure_of, raised
from magent2.tools.interface import ReleasableSlot

R = TypeVar("R")

log = logging.getLogger(__name__)

# What the engine raises about values that it cannot take over, and about its own state.
ENGINE_FAULTS = (RuntimeError, TypeError, ValueError, MemoryError, RecursionError, OverflowError)
PROCESSES_MAX = 4  # blocks that work at the same time; those that wait for an answer have given their place up
CHECKED_MAX = 1024  # programs whose types are remembered to fit
BLOCKS_PER_PROCESS = 200  # then a new one takes its place


class MontySandbox:
    """A `Sandbox`. The processes start with the first block, and end with `aclose`."""

    def __init__(self, limits: BlockLimits | None = None, processes: int = PROCESSES_MAX) -> None:
        self.limits = limits or BlockLimits()
        self._places = asyncio.Semaphore(processes)
        self._threads = ThreadPoolExecutor(processes + 1, thread_name_prefix="python-block")
        self._processes = processes
        self._pool: Monty | None = None
        self._starting = threading.Lock()
        self._checked: OrderedDict[str, None] = OrderedDict()

    async def run(
        self,
        program: Program,
        call: HostCall,
        park: Callable[[ReleasableSlot], None] | None = None,
        quick: QuickCall | None = None,
    ) -> BlockResult:
        refusal = _refusal(program)
        if refusal is not None:
            return BlockResult("", failure=refusal)
        block = _Block(self, program, call, quick)
        if park is not None:
            park(block)
        return await block.run()

    async def aclose(self) -> None:
        """Ends the processes. Blocks under way end as crashed."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await self.in_thread(lambda: pool.__exit__(None, None, None))
        self._threads.shutdown(wait=False)

    # --- for blocks

    @property
    def places(self) -> asyncio.Semaphore:
        return self._places

    def pool(self) -> Monty:
        with self._starting:
            if self._pool is None:
                limits = self.limits
                pool = Monty(
                    max_processes=self._processes,
                    request_timeout=limits.run_s + limits.turn_s,
                    max_checkouts_per_worker=BLOCKS_PER_PROCESS,
                )
                self._pool = pool.__enter__()
            return self._pool

    async def in_thread(self, work: Callable[[], R], hurry: Callable[[], object] | None = None) -> R:
        """On a thread of ours. A caller that is cancelled waits for its end, which `hurry` brings about."""
        context = copy_context()
        future = asyncio.get_running_loop().run_in_executor(self._threads, context.run, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if hurry is not None:
                hurry()
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()
            raise

    def is_checked(self, program: Program) -> bool:
        return _digest(program) in self._checked

    def note_checked(self, program: Program) -> None:
        """The check goes by code and stubs alone, so it need not be made twice."""
        self._checked[_digest(program)] = None
        if len(self._checked) > CHECKED_MAX:
            self._checked.popitem(last=False)


class _Block:
    """One program at work: it steps from call to call, each step on a thread."""

    def __init__(self, sandbox: MontySandbox, program: Program, call: HostCall, quick: QuickCall | None) -> None:
        self._sandbox = sandbox
        self._program = program
        self._call = call
        self._feed = BlockSession(program, sandbox.limits, quick)
        self._clock: asyncio.Timeout | None = None
        self._time_left_s = 0.0  # of the whole, while it waits
        self._placed = False

    async def run(self) -> BlockResult:
        """Its end, however it comes."""
        limits = self._sandbox.limits
        try:
            async with asyncio.timeout(limits.whole_s) as self._clock:
                await self._take_place()
                return await self._drive()
        except MontyError as error:
            return self._feed.ended(failure_of(error, limits))
        except TooManyCalls as error:
            return self._feed.ended(BlockFailure("calls", str(error)))
        except AbortBlock as end:
            return self._feed.ended(end.failure)
        except ENGINE_FAULTS as error:
            log.warning("the engine of blocks has failed", exc_info=error)
            return self._feed.ended(BlockFailure("crash", f"the block could not be run: {type(error).__name__}"))
        except TimeoutError:
            if self._clock is None or not self._clock.expired():
                raise
            return self._feed.ended(
                BlockFailure("time", f"the block took longer than {limits.whole_s:g} s with its calls")
            )
        finally:
            self._clock = None
            if self._feed.is_open:
                await self._sandbox.in_thread(self._feed.close)
            self._give_place()

    async def _drive(self) -> BlockResult:
        sandbox, feed = self._sandbox, self._feed
        checked = sandbox.is_checked(self._program)
        step = await sandbox.in_thread(lambda: feed.start(sandbox.pool(), checked=checked), feed.kill)
        sandbox.note_checked(self._program)
        while not isinstance(step, BlockResult):
            result = await self._result(step)
            step = await sandbox.in_thread(partial(feed.resume, result), feed.kill)
        return step

    async def _result(self, asked: FunctionCall) -> Any:
        try:
            return {"return_value": await self._call(asked.name, asked.args, asked.kwargs)}
        except AbortBlock:
            raise
        except Exception as error:  # noqa: BLE001  a tool may raise anything; the block may catch it
            return raised(error)

    # --- its place

    async def _take_place(self) -> None:
        await self._sandbox.places.acquire()
        self._placed = True

    def _give_place(self) -> None:
        if self._placed:
            self._placed = False
            self._sandbox.places.release()

    async def leave(self) -> None:
        """Give the place up while a call waits; the clock stands still."""
        await self._sandbox.in_thread(self._feed.dump)
        self._give_place()
        if self._clock is not None and (deadline := self._clock.when()) is not None:
            self._time_left_s = deadline - asyncio.get_running_loop().time()
            self._clock.reschedule(None)

    async def come_back(self) -> None:
        """Take a place again, and go on where the program was."""
        if self._clock is not None:
            self._clock.reschedule(asyncio.get_running_loop().time() + max(0.0, self._time_left_s))
        await self._take_place()
        await self._sandbox.in_thread(lambda: self._feed.load(self._sandbox.pool()))


def _digest(program: Program) -> str:
    text = f"{len(program.stubs)}\x1f{program.stubs}{program.code}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _refusal(program: Program) -> BlockFailure | None:
    try:
        size = len(program.code.encode())
    except UnicodeEncodeError:
        return BlockFailure("refused", "the code has half a character in it (a lone surrogate); write it without")
    if size > CODE_MAX_BYTES:
        return BlockFailure(
            "refused", f"the code takes {size} bytes, the limit is {CODE_MAX_BYTES}; do it in several blocks"
        )
    return (
        None
        if "\0" not in program.code
        else BlockFailure("refused", "the code has a NUL character in it; leave it out")
    )


# --- A sandbox for runs on several event loops, as a synchronous worker has them: one after another, or side by side.


class LoopSandbox:
    """A `Sandbox` with processes of its own on each loop. `aclose` ends those of the loop that it is called on."""

    def __init__(self, make: Callable[[], Sandbox] = MontySandbox) -> None:
        self._make = make
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Sandbox] = weakref.WeakKeyDictionary()

    async def run(
        self,
        program: Program,
        call: HostCall,
        park: Callable[[ReleasableSlot], None] | None = None,
        quick: QuickCall | None = None,
    ) -> BlockResult:
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = self._make()
        return await self._by_loop[loop].run(program, call, park, quick)

    async def aclose(self) -> None:
        sandbox = self._by_loop.pop(asyncio.get_running_loop(), None)
        if sandbox is not None:
            await sandbox.aclose()
