"""Engine wrappers that fail or wait on demand."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, TypeVar

from magent2.bus.interface import Engine
from magent2.bus.operations import Operation, Read, Write
from magent2.bus.watch import Watch
from magent2.errors import BusUnavailable
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
        self.before: deque[Exception] = deque()
        self.after: deque[Exception] = deque()
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


class UnexpectedErrors(EngineWrapper):
    """Raises errors that an engine never raises on purpose, in place of the next operations of a kind, or after them.

    `raised` counts them. Watches raise the errors in `watching` from their next waits.
    """

    def __init__(
        self, engine: Engine, kind: type[Operation[Any]] | None, errors: Iterable[Exception], *, after: bool = False
    ) -> None:
        super().__init__(engine)
        self.errors = deque(errors)
        self.raised = 0
        self.watching: deque[Exception] = deque()
        self._kind = kind
        self._after = after

    def answer(self, operation: Operation[Any]) -> Any:
        if not self.errors or self._kind is None or not isinstance(operation, self._kind):
            return self.inner.call(operation)
        if self._after:
            self.inner.call(operation)
        self.raised += 1
        raise self.errors.popleft()

    def watch(self, topics: Iterable[str] = ()) -> Watch:
        return _FailingWatch(self, self.inner.watch(topics))


class _FailingWatch(Watch):
    def __init__(self, engine: UnexpectedErrors, inner: Watch) -> None:
        self._engine = engine
        self._inner = inner

    def add(self, *topics: str) -> None:
        self._inner.add(*topics)

    def discard(self, *topics: str) -> None:
        self._inner.discard(*topics)

    def wait(self, timeout_s: float | None) -> frozenset[str]:
        return self._inner.wait(timeout_s)

    async def changed(self, timeout_s: float | None) -> frozenset[str]:
        if self._engine.watching:
            self._engine.raised += 1
            raise self._engine.watching.popleft()
        return await self._inner.changed(timeout_s)

    def close(self) -> None:
        self._inner.close()
