"""Engine wrappers that fail or wait on demand."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeVar

from magent2.bus.interface import Engine
from magent2.bus.operations import Operation, Read, Write
from magent2.errors import BusUnavailable, Magent2Error
from tests.support.engine_wrappers import EngineWrapper

R = TypeVar("R")


class FlakyEngine(EngineWrapper):
    """Passes every call on, and records each write.

    Errors in `before` are raised instead of the next writes; errors in `after` are raised after a write is done, like a
    lost reply. While `gate` is closed, asynchronous writes wait.
    """

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.writes: list[Operation[Any]] = []
        self.before: deque[Magent2Error] = deque()
        self.after: deque[Magent2Error] = deque()
        self.gate = asyncio.Event()
        self.gate.set()
        self.in_flight = 0
        self.in_flight_max = 0

    def answer(self, operation: Operation[Any]) -> Any:
        if not isinstance(operation, Write):
            return self.inner.call(operation)
        self.writes.append(operation)
        if self.before:
            raise self.before.popleft()
        answer = self.inner.call(operation)
        if self.after:
            raise self.after.popleft()
        return answer

    async def acall(self, operation: Operation[R]) -> R:
        if isinstance(operation, Write):
            self.in_flight += 1
            self.in_flight_max = max(self.in_flight, self.in_flight_max)
            try:
                await self.gate.wait()
            finally:
                self.in_flight -= 1
        return self.call(operation)


class UnavailableReads(EngineWrapper):
    """Raises `BusUnavailable` for the next reads of a topic."""

    def __init__(self, engine: Engine, topic: str, times: int) -> None:
        super().__init__(engine)
        self.left = times
        self._topic = topic

    def answer(self, operation: Operation[Any]) -> Any:
        if self.left and isinstance(operation, Read) and operation.topic == self._topic:
            self.left -= 1
            raise BusUnavailable("away")
        return self.inner.call(operation)
