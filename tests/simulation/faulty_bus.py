"""The line between one process of a simulated world and the log: slow, lossy, and cut when the process dies."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn, TypeVar

from magent2.bus.operations import Append, Operation
from magent2.errors import BusUnavailable, StorageCorrupt
from tests.simulation.engine_recorder import EngineRecorder
from tests.support.engine_wrappers import EngineWrapper

R = TypeVar("R")

LATENCY_MAX_S = 0.02
SLOW = 0.3  # how often an operation, or its answer, takes any time
LOST = 0.03  # how often it is lost, one way or the other


@dataclass(frozen=True, slots=True)
class ProcessFault:
    """What becomes of a process at its n-th operation, before or after that is done."""

    kind: Literal["crash", "freeze"]
    at: int
    after: bool
    frozen_s: float = 0.0


class FaultyBus(EngineWrapper):
    """One process' bus. A dead one's operations never return; a frozen one's go on when it thaws.

    What a process does between two operations nobody else can see. So to die before or after any operation, with its
    others under way, is to die at any await.
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
        self.faults: Any = None  # of the process, if there is one
        self.over = False  # the world has ended; whoever still waits is sent home
        self._recorder = recorder
        self._rng = rng
        self._on_fault = on_fault
        self._loses_appends = loses_appends
        self._calls = 0
        self._awaited: list[asyncio.Future[None]] = []

    async def checkpoint(self) -> None:
        """What a process does between operations, it does only while it lives and is awake."""
        await self._wait()

    async def crash(self) -> NoReturn:
        """The process ends here and now, by its own hand."""
        self.dead = True
        self._on_fault(ProcessFault("crash", self._calls, after=True))
        await self._never()
        raise AssertionError("the dead do not wake")

    async def acall(self, operation: Operation[R]) -> R:
        self._calls += 1
        calls = self._calls
        await self._pass(self._trigger_fault(calls, after=False))
        self._lose(operation)
        answer = self.call(operation)
        await self._pass(self._trigger_fault(calls, after=True))
        self._lose(operation)
        return answer

    def _trigger_fault(self, calls: int, after: bool) -> bool:
        """Whether anything happened just now."""
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
        """While it is frozen; for ever, once it is dead."""
        loop = asyncio.get_running_loop()
        while self.frozen_until > loop.time() and not self.dead:
            await asyncio.sleep(self.frozen_until - loop.time())
        if self.over:
            raise StorageCorrupt("the world has ended")
        if self.dead:
            await self._never()

    async def _never(self) -> None:
        """What nobody else knows of would be collected as garbage, whenever that comes, with whoever waits for it."""
        never = asyncio.get_running_loop().create_future()
        self._awaited.append(never)
        await never

    def _lose(self, operation: Operation[Any]) -> None:
        """A worker that finds no bus at its start says so and ends, so its plain append, which enlists, is spared."""
        if (self._loses_appends or not isinstance(operation, Append)) and self._rng.random() < LOST:
            self._recorder.counts["lost"] += 1
            raise BusUnavailable("the line was cut for a moment")
