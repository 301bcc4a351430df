"""The bus of one simulated process, with fault injection: latency, lost replies, bugs, freezes and crashes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

from magent2.bus.operations import Append, Claim, Later, Operation, OwnedAppend, Renew, Settle
from magent2.errors import BusUnavailable, StorageCorrupt
from tests.simulation.engine_recorder import EngineRecorder
from tests.support.engine_wrappers import EngineWrapper

R = TypeVar("R")

LATENCY_MAX_S = 0.02
SLOW = 0.3  # share of requests and replies that are delayed
LOST = 0.03  # share of requests and replies that are lost
BUGS = 0.004  # share of operations on lanes that raise an error which no engine raises on purpose, before or after
BUGGY = (Claim, Renew, OwnedAppend, Settle, Later)
BUG_ERRORS = (KeyError, RuntimeError, MemoryError)
BUG_TEXT = "injected fault: a bug"


@dataclass(frozen=True, slots=True)
class ProcessFault:
    """A crash or a freeze of a process, before or after its n-th operation."""

    kind: Literal["crash", "freeze"]
    at: int
    after: bool
    frozen_s: float = 0.0


class FaultyBus(EngineWrapper):
    """The bus of one process. After a crash its operations never return; during a freeze they wait for the end of it.

    Other processes cannot see what a process does between two operations. A crash before or after any operation, while
    others are in flight, therefore covers a crash at any await.
    """

    def __init__(
        self,
        recorder: EngineRecorder,
        rng: random.Random,
        fault: ProcessFault | None = None,
        on_fault: Callable[[ProcessFault], None] = lambda _: None,
        loses_appends: bool = False,
    ) -> None:
        super().__init__(recorder)
        self.fault = fault
        self.dead = False
        self.frozen_until = 0.0
        self.faults: Any = None  # the MailFaults of the process, if there is one
        self.over = False  # the world has ended; tasks that still wait must fail
        self._recorder = recorder
        self._rng = rng
        self._on_fault = on_fault
        self._loses_appends = loses_appends
        self.calls = 0
        self._awaited: list[asyncio.Future[None]] = []

    def count(self, event: str) -> None:
        self._recorder.counts[event] += 1

    async def checkpoint(self) -> None:
        """Wait while the process is frozen, and forever once it has crashed."""
        await self._wait()

    async def crash(self) -> NoReturn:
        """Crash the process now."""
        self.dead = True
        self._on_fault(ProcessFault("crash", self.calls, after=True))
        await self._never()
        raise AssertionError("a crashed process went on")

    async def acall(self, operation: Operation[R]) -> R:
        self.calls += 1
        calls = self.calls
        await self._pass(self._trigger_fault(calls, after=False))
        self._lose(operation)
        self._raise_bug(operation)
        answer = self.call(operation)
        await self._pass(self._trigger_fault(calls, after=True))
        self._lose(operation)
        self._raise_bug(operation)
        return answer

    def _trigger_fault(self, calls: int, after: bool) -> bool:
        """Apply the fault if it is due; return whether it was."""
        fault = self.fault
        if fault is None or fault.at != calls or fault.after != after or self.dead:
            return False
        if fault.kind == "crash":
            self.dead = True
        else:
            self.frozen_until = asyncio.get_running_loop().time() + fault.frozen_s
        self._on_fault(fault)
        return True

    async def _pass(self, triggered: bool) -> None:
        if not triggered and self._rng.random() < SLOW:
            await asyncio.sleep(self._rng.uniform(0, LATENCY_MAX_S))
        await self._wait()

    async def _wait(self) -> None:
        """Wait while the process is frozen, and forever once it has crashed."""
        loop = asyncio.get_running_loop()
        while self.frozen_until > loop.time() and not self.dead:
            await asyncio.sleep(self.frozen_until - loop.time())
        if self.over:
            raise StorageCorrupt("the world has ended")
        if self.dead:
            await self._never()

    async def _never(self) -> None:
        """Wait forever. The future is kept, because a task that waits for an unreferenced future may be collected."""
        never = asyncio.get_running_loop().create_future()
        self._awaited.append(never)
        await never

    def _lose(self, operation: Operation[Any]) -> None:
        """Raise `BusUnavailable` at random. A worker exits if its registration append fails, so appends are spared."""
        if (self._loses_appends or not isinstance(operation, Append)) and self._rng.random() < LOST:
            self.count("lost")
            raise BusUnavailable("injected fault: the bus is unavailable")

    def _raise_bug(self, operation: Operation[Any]) -> None:
        """Raise an unexpected error at random. The operation may have run already."""
        if isinstance(operation, BUGGY) and self._rng.random() < BUGS:
            self.count("an engine raised a bug")
            raise self._rng.choice(BUG_ERRORS)(BUG_TEXT)
