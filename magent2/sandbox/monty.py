"""A sandbox on pydantic-monty: a pool of worker processes, driven from threads, with fresh state for each block.

If a process is killed or crashes, only the block that it ran fails, and the pool starts another process.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import signal
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import TypeVar

from pydantic_monty import ExternalSettledResult, Monty, MontyError

from magent2.fair_share import FairSlots
from magent2.sandbox.interface import (
    CODE_MAX_BYTES,
    AbortBlock,
    BlockFailure,
    BlockLimits,
    BlockResult,
    HostCall,
    Program,
    QuickCall,
)
from magent2.sandbox.monty_session import BlockSession, FunctionCall, TooManyCalls, exception_of, failure_of
from magent2.tools.interface import ReleasableSlot

R = TypeVar("R")

log = logging.getLogger(__name__)

# What Monty raises for values that it cannot convert, and for invalid states of its own.
MONTY_FAULTS = (RuntimeError, TypeError, ValueError, MemoryError, RecursionError, OverflowError)
PROCESSES_MAX = 4  # blocks that run at the same time; a block that waits for an answer has released its process
PROCESSES_PER_PRINCIPAL_MAX = 2  # of them, those of one principal
CHECKED_MAX = 1024  # programs whose type check is remembered
BLOCKS_PER_PROCESS = 200  # then the process is replaced
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # what the host process reacts to by itself


def _block_stop_signals() -> None:
    """Block the stop signals in a thread that starts processes: they inherit the mask.

    Ctrl-C goes to the process group of the terminal, and systemd may send SIGTERM to all processes of a unit. The host
    then drains, and the blocks that run have to end normally. A process group of their own would protect them from the
    first only, and Monty has no option for it. A process of the pool ends when the host closes its standard input, or
    by SIGKILL.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)


class MontySandbox:
    """A `Sandbox` for one event loop. Its processes start with the first block and end with `aclose`."""

    def __init__(
        self,
        limits: BlockLimits | None = None,
        processes: int = PROCESSES_MAX,
        per_principal: int = PROCESSES_PER_PRINCIPAL_MAX,
    ) -> None:
        self.limits = limits or BlockLimits()
        self.slots = FairSlots(processes, per_principal)
        self._threads = ThreadPoolExecutor(
            processes + 1, thread_name_prefix="python-block", initializer=_block_stop_signals
        )
        self._processes = processes
        self._pool: Monty | None = None
        self._starting = threading.Lock()
        self._checked: OrderedDict[str, None] = OrderedDict()

    async def run(
        self,
        program: Program,
        call: HostCall,
        on_slot: Callable[[ReleasableSlot], None] | None = None,
        quick: QuickCall | None = None,
    ) -> BlockResult:
        refusal = _refusal(program)
        if refusal is not None:
            return BlockResult("", failure=refusal)
        block = _Block(self, program, call, quick)
        if on_slot is not None:
            on_slot(block)
        return await block.run()

    async def aclose(self) -> None:
        """End the processes. Blocks that still run fail as crashed."""
        pool, self._pool = self._pool, None
        if pool is not None:
            await self.in_thread(lambda: pool.__exit__(None, None, None))
        self._threads.shutdown(wait=False)

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

    async def in_thread(self, work: Callable[[], R], kill: Callable[[], object] | None = None) -> R:
        """Run `work` on a thread of the sandbox.

        A thread cannot be cancelled. If the caller is cancelled, `kill` ends the process that the thread waits for, and
        the cancellation is raised only when the thread has returned: nothing may use the session after that.
        """
        context = copy_context()
        future = asyncio.get_running_loop().run_in_executor(self._threads, context.run, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            if kill is not None:
                kill()
            await asyncio.wait([future])
            if not future.cancelled():
                future.exception()
            raise

    def is_checked(self, program: Program) -> bool:
        """Whether the types of this code with these stubs were checked before; the check depends on nothing else."""
        return _digest(program) in self._checked

    def note_checked(self, program: Program) -> None:
        self._checked[_digest(program)] = None
        if len(self._checked) > CHECKED_MAX:
            self._checked.popitem(last=False)


class _Block:
    """One running program, and the slot that it occupies. It runs from call to call, each time on a thread."""

    def __init__(self, sandbox: MontySandbox, program: Program, call: HostCall, quick: QuickCall | None) -> None:
        self._sandbox = sandbox
        self._program = program
        self._call = call
        self._session = BlockSession(program, sandbox.limits, quick)
        self._timeout: asyncio.Timeout | None = None
        self._time_left_s = 0.0  # of `whole_s`, while the slot is released
        self._has_slot = False

    async def run(self) -> BlockResult:
        limits = self._sandbox.limits
        try:
            async with asyncio.timeout(limits.whole_s) as self._timeout:
                await self._take_slot()
                return await self._drive()
        except MontyError as error:
            return self._session.result_of(failure_of(error, limits))
        except TooManyCalls as error:
            return self._session.result_of(BlockFailure("calls", str(error)))
        except AbortBlock as end:
            return self._session.result_of(end.failure)
        except MONTY_FAULTS as error:
            log.warning("Monty failed to run a block", exc_info=error)
            return self._session.result_of(
                BlockFailure("crash", f"the block could not be run ({type(error).__name__})")
            )
        except TimeoutError:
            if self._timeout is None or not self._timeout.expired():
                raise
            return self._session.result_of(
                BlockFailure("time", f"the block took longer than {limits.whole_s:g} s with its calls")
            )
        finally:
            self._timeout = None
            if self._session.is_open:
                await self._sandbox.in_thread(self._session.close)
            self._return_slot()

    async def _drive(self) -> BlockResult:
        sandbox, session = self._sandbox, self._session
        checked = sandbox.is_checked(self._program)
        step = await sandbox.in_thread(lambda: session.start(sandbox.pool(), checked=checked), session.kill)
        sandbox.note_checked(self._program)
        while not isinstance(step, BlockResult):
            result = await self._result(step)
            step = await sandbox.in_thread(partial(session.resume, result), session.kill)
        return step

    async def _result(self, call: FunctionCall) -> ExternalSettledResult:
        try:
            return {"return_value": await self._call(call.name, call.args, call.kwargs)}
        except AbortBlock:
            raise
        except Exception as error:  # noqa: BLE001  a tool may raise anything; the block may catch it
            return exception_of(error)

    async def _take_slot(self) -> None:
        await self._sandbox.slots.acquire(self._program.principal)
        self._has_slot = True

    def _return_slot(self) -> None:
        if self._has_slot:
            self._has_slot = False
            self._sandbox.slots.release(self._program.principal)

    async def release(self) -> None:
        """Store the state of the program and release its process while a call waits. `whole_s` stops counting."""
        await self._sandbox.in_thread(self._session.dump)
        self._return_slot()
        if self._timeout is not None and (deadline := self._timeout.when()) is not None:
            self._time_left_s = deadline - asyncio.get_running_loop().time()
            self._timeout.reschedule(None)

    async def reacquire(self) -> None:
        """Take a slot again and restore the program there. `whole_s` counts from now on, also the wait for a slot."""
        if self._timeout is not None:
            self._timeout.reschedule(asyncio.get_running_loop().time() + max(0.0, self._time_left_s))
        await self._take_slot()
        await self._sandbox.in_thread(lambda: self._session.load(self._sandbox.pool()))


def _digest(program: Program) -> str:
    text = f"{len(program.stubs)}\x1f{program.stubs}{program.code}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _refusal(program: Program) -> BlockFailure | None:
    try:
        size = len(program.code.encode())
    except UnicodeEncodeError:
        return BlockFailure("refused", "the code contains a lone surrogate, which is half a character; remove it")
    if size > CODE_MAX_BYTES:
        return BlockFailure(
            "refused", f"the code takes {size} bytes, the limit is {CODE_MAX_BYTES}; use several blocks"
        )
    return None if "\0" not in program.code else BlockFailure("refused", "the code contains a NUL character; remove it")


class LoopSandbox:
    """A `Sandbox` for runs on several event loops, as a synchronous worker has them.

    It makes one sandbox per loop. `aclose` closes that of the loop it is called on.
    """

    def __init__(self, make: Callable[[], MontySandbox] = MontySandbox) -> None:
        self._make = make
        self._lock = threading.Lock()  # guards the dictionary, not the sandboxes
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, MontySandbox] = weakref.WeakKeyDictionary()

    @property
    def busy(self) -> int:
        """Processes that run a block."""
        with self._lock:
            return sum(sandbox.slots.busy for sandbox in self._by_loop.values())

    @property
    def waiting(self) -> int:
        """Blocks that wait for a process."""
        with self._lock:
            return sum(sandbox.slots.waiting for sandbox in self._by_loop.values())

    async def run(
        self,
        program: Program,
        call: HostCall,
        on_slot: Callable[[ReleasableSlot], None] | None = None,
        quick: QuickCall | None = None,
    ) -> BlockResult:
        loop = asyncio.get_running_loop()
        with self._lock:
            if loop not in self._by_loop:
                self._by_loop[loop] = self._make()
            sandbox = self._by_loop[loop]
        return await sandbox.run(program, call, on_slot, quick)

    async def aclose(self) -> None:
        with self._lock:
            sandbox = self._by_loop.pop(asyncio.get_running_loop(), None)
        if sandbox is not None:
            await sandbox.aclose()
