"""Engine wrappers that inject faults. Some break one guarantee each, to show that the conformance suite notices."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from magent2.bus.base import FOLLOW_PAGE
from magent2.bus.interface import BusMessage, Engine
from magent2.bus.operations import Append, Claim, Operation, OwnedAppend, Read, Settle, Write
from magent2.bus.records import AppendResult, NewRecord, Owner, Page, Record
from magent2.bus.watch import Watch
from magent2.errors import Fenced, UnknownCursor

R = TypeVar("R")


class EngineWrapper:
    """Passes every call on to an engine. Subclasses change `answer`."""

    def __init__(self, engine: Engine) -> None:
        self.inner = engine

    def answer(self, operation: Operation[Any]) -> Any:
        return self.inner.call(operation)

    def call(self, operation: Operation[R]) -> R:
        answer: R = self.answer(operation)
        return answer

    async def acall(self, operation: Operation[R]) -> R:
        return self.call(operation)

    def watch(self, topics: Iterable[str] = ()) -> Watch:
        return self.inner.watch(topics)

    def publish(self, topic: str, message: BusMessage) -> str:
        self.call(Append(records=(NewRecord(topic, message.payload, message.id),)))
        return message.id

    def read(self, topic: str, last_id: str | None = None, limit: int = 100) -> list[Record]:
        return list(self.call(Read(topic, last_id, limit)).records)

    def read_blocking(
        self, topic: str, last_id: str | None = None, limit: int = 100, timeout_s: float = 10.0
    ) -> list[Record]:
        return self.inner.read_blocking(topic, last_id, limit, timeout_s)

    def follow(self, topic: str, after: int | str | None = None) -> AsyncIterator[Record]:
        return self.inner.follow(topic, after)

    async def next_page(self, watch: Watch, topic: str, cursor: int | str) -> Page:
        return await self.acall(Read(topic, cursor, FOLLOW_PAGE))

    def close(self) -> None:
        self.inner.close()

    async def aclose(self) -> None:
        await self.inner.aclose()


class BeforeFirst(EngineWrapper):
    """Runs `action` once, right before the first operation of the kind, as if another process had been quicker."""

    def __init__(self, engine: Engine, kind: type[Operation[Any]], action: Callable[[], object]) -> None:
        super().__init__(engine)
        self._kind = kind
        self._action: Callable[[], object] | None = action

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, self._kind) and self._action is not None:
            action, self._action = self._action, None
            action()
        return self.inner.call(operation)


class CrashesBefore(EngineWrapper):
    """Raises `ProcessCrashed` instead of running an operation of the kind, as if the process had ended there."""

    def __init__(self, engine: Engine, kind: type[Operation[Any]]) -> None:
        super().__init__(engine)
        self._kind = kind

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, self._kind):
            raise ProcessCrashed
        return self.inner.call(operation)


class ProcessCrashed(Exception):
    """The process under test ended here."""


class OperationCounter(EngineWrapper):
    """Remembers the kinds of operations that it ran."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.kinds: list[str] = []

    def answer(self, operation: Operation[Any]) -> Any:
        self.kinds.append(type(operation).__name__)
        return self.inner.call(operation)


class WithoutDedupe(EngineWrapper):
    """Ignores ids: every append is new."""

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Append):
            nameless = tuple(replace(record, id=None) for record in operation.records)
            operation = Append(records=nameless, conditions=operation.conditions, heads=operation.heads)
        return self.inner.call(operation)


class WithoutFence(EngineWrapper):
    """Accepts writes of workers that have lost their lane."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.owners: dict[tuple[str, str], Owner] = {}

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Claim):
            claims = self.inner.call(operation)
            self.owners |= {(lane.owner.agent, lane.owner.conversation): lane.owner for lane in claims.lanes}
            return claims
        try:
            return self.inner.call(operation)
        except Fenced:
            return self.let_through(operation)

    def let_through(self, operation: Any) -> Any:
        name = operation.owner.agent, operation.owner.conversation
        return self.inner.call(replace(operation, owner=self.owners.get(name, operation.owner)))


class WithoutAtomicity(EngineWrapper):
    """Runs an append of many records as many appends."""

    def answer(self, operation: Operation[Any]) -> Any:
        if not isinstance(operation, Append):
            return self.inner.call(operation)
        seqs: list[int] = []
        for record in operation.records[:-1]:
            seqs += self.inner.call(Append(records=(record,))).seqs
        last = Append(records=operation.records[-1:], conditions=operation.conditions, heads=operation.heads)
        return AppendResult((*seqs, *self.inner.call(last).seqs))


class WithoutConditions(EngineWrapper):
    """Ignores the conditions of an append."""

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Write):
            operation = replace(operation, conditions=())
        return self.inner.call(operation)


class AckBeforeAppend(EngineWrapper):
    """Acknowledges an append before it is written: it runs with the next call, and a crash before that loses it."""

    waiting: Append | None = None

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Append):
            waiting, self.waiting = self.waiting, operation
            if waiting is not None:
                self.inner.call(waiting)
            return AppendResult(tuple(1 for _ in operation.records))
        return self.inner.call(operation)


class WithoutCounter(EngineWrapper):
    """Ignores the counter: an owned append happens as often as it is sent."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.counted: dict[str, int] = {}

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, OwnedAppend):
            n = self.counted[operation.owner.token] = self.counted.get(operation.owner.token, 0) + 1
            operation = replace(operation, n=n)
        return self.inner.call(operation)


class SettlesOnClaim(EngineWrapper):
    """Settles mail when it is claimed, not when it is answered."""

    def answer(self, operation: Operation[Any]) -> Any:
        answer = self.inner.call(operation)
        if isinstance(operation, Claim):
            for lane in answer.lanes:
                self.inner.call(Settle(owner=lane.owner, mail=tuple(record.ref for record in lane.mail)))
        return answer


class WithoutCursorCheck(EngineWrapper):
    """Reads from the oldest record when the cursor is not valid."""

    def answer(self, operation: Operation[Any]) -> Any:
        try:
            return self.inner.call(operation)
        except UnknownCursor:
            assert isinstance(operation, Read)
            return self.inner.call(replace(operation, after=-1))


BREAKAGES: dict[str, Callable[[Engine], EngineWrapper]] = {
    "dedupe": WithoutDedupe,
    "fence": WithoutFence,
    "atomicity": WithoutAtomicity,
    "conditions": WithoutConditions,
    "early ack": AckBeforeAppend,
    "counter": WithoutCounter,
    "settled on claim": SettlesOnClaim,
    "cursors": WithoutCursorCheck,
}
