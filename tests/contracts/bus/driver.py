"""Drivers of the conformance suite: run the same test through `Engine.call` and through `Engine.acall`."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar

from magent2.bus.interface import Engine
from magent2.bus.operations import (
    OLDEST,
    Append,
    Claim,
    Condition,
    Describe,
    Later,
    Leave,
    Operation,
    Read,
    SetHead,
    Settle,
)
from magent2.bus.records import (
    AppendResult,
    ClaimedLane,
    ClaimResult,
    MailRef,
    NewRecord,
    Owner,
    Page,
    Record,
    TopicInfo,
)

R = TypeVar("R")

LEASE_S = 60.0  # longer than any test


class BusDriver(ABC):
    """An engine with one of its two call methods, and short names for the operations that tests use most."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self._runner: asyncio.Runner | None = None

    @abstractmethod
    def do(self, operation: Operation[R]) -> R:
        """Run an operation from a test."""

    @abstractmethod
    async def ado(self, operation: Operation[R]) -> R:
        """Run an operation from a coroutine. `SyncDriver` blocks the event loop meanwhile."""

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine on the one event loop of this driver."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(coroutine)

    def close(self) -> None:
        if self._runner is None:
            self.engine.close()
            return
        self._runner.run(self.engine.aclose())
        self._runner.close()

    # --- writing and reading

    def append(
        self, *records: NewRecord, conditions: tuple[Condition, ...] = (), heads: tuple[SetHead, ...] = ()
    ) -> AppendResult:
        return self.do(Append(records=records, conditions=conditions, heads=heads))

    def put(self, topic: str, payload: dict[str, Any] | None = None, id: str | None = None, **fields: Any) -> int:  # noqa: A002
        """Append one record and return its seq."""
        record = NewRecord(topic, {} if payload is None else payload, id, **fields)
        return self.append(record).seqs[0]

    def fill(self, topic: str, count: int) -> None:
        """Append records with the ids `r1`, `r2` … and the payloads {"n": 1}, {"n": 2} …"""
        for n in range(1, count + 1):
            self.put(topic, {"n": n}, f"r{n}")

    def set_head(self, topic: str, **fields: Any) -> None:
        """Set fields of a head. The append also has a record in another topic, because it needs a key."""
        self.append(NewRecord("note:head", {}), heads=(SetHead(topic, fields),))

    def page(self, topic: str, after: int | str | None = OLDEST, limit: int = 10_000) -> Page:
        return self.do(Read(topic, after, limit))

    def read(self, topic: str, after: int | str | None = OLDEST, limit: int = 10_000) -> tuple[Record, ...]:
        return self.page(topic, after, limit).records

    def seqs(self, topic: str) -> list[int]:
        return [record.seq for record in self.read(topic)]

    def info(self, topic: str) -> TopicInfo:
        return self.do(Describe((topic,)))[0]

    # --- lanes

    def mail(self, agent: str, conversation: str, text: str = "", **fields: Any) -> MailRef:
        """Append a message to the inbox of an agent."""
        return self._post(f"chat:{agent}", conversation, text, fields)

    def control(self, agent: str, conversation: str, text: str = "", **fields: Any) -> MailRef:
        return self._post(f"control:{agent}", conversation, text, fields)

    def _post(self, topic: str, conversation: str, text: str, fields: dict[str, Any]) -> MailRef:
        payload = {"conversation_id": conversation, "sender": "user:ann", "content": text}
        return MailRef(topic, self.put(topic, payload, **fields))

    def claim(
        self,
        worker: str = "w1",
        agents: tuple[str, ...] = ("A",),
        limit: int = 100,
        lease_s: float = LEASE_S,
        nonce: str | None = None,
    ) -> ClaimResult:
        if nonce is None:
            return self.do(Claim(worker=worker, agents=agents, limit=limit, lease_s=lease_s))
        return self.do(Claim(worker=worker, agents=agents, limit=limit, lease_s=lease_s, nonce=nonce))

    def claimed(self, worker: str = "w1", agents: tuple[str, ...] = ("A",), limit: int = 100) -> list[str]:
        """Claim lanes and return only their conversations."""
        return [lane.owner.conversation for lane in self.claim(worker, agents, limit).lanes]

    def claim_one(self, worker: str = "w1", agent: str = "A", lease_s: float = LEASE_S) -> ClaimedLane:
        (lane,) = self.claim(worker, (agent,), 1, lease_s).lanes
        return lane

    def settle(self, lane: ClaimedLane, *records: NewRecord) -> AppendResult:
        """Settle all mail that the claim returned."""
        return self.do(Settle(owner=lane.owner, mail=refs(lane), records=records))

    def later(self, owner: Owner, delay_s: float | None, refund: bool = False) -> AppendResult:
        return self.do(Later(owner=owner, delay_s=delay_s, refund=refund))

    def leave(self, worker: str) -> int:
        return self.do(Leave(worker))


class SyncDriver(BusDriver):
    """Runs operations through `Engine.call`."""

    def do(self, operation: Operation[R]) -> R:
        return self.engine.call(operation)

    async def ado(self, operation: Operation[R]) -> R:
        return self.engine.call(operation)


class AsyncDriver(BusDriver):
    """Runs operations through `Engine.acall`, on one event loop."""

    def do(self, operation: Operation[R]) -> R:
        return self.run(self.engine.acall(operation))

    async def ado(self, operation: Operation[R]) -> R:
        return await self.engine.acall(operation)


def refs(lane: ClaimedLane) -> tuple[MailRef, ...]:
    return tuple(record.ref for record in lane.mail)


def texts(records: tuple[Record, ...]) -> list[Any]:
    return [record.payload.get("content") for record in records]


class ContractClass(Protocol):
    """What the suites need of the test class that they are mixed into."""

    schema: int
    persistent: bool
    shared: bool

    def append_malformed(self, engine: Engine, topic: str) -> None: ...

    def count_work(self, engine: Engine, operation: Operation[Any]) -> int: ...

    def jump_clock(self, seconds: float) -> None:
        """Set the wall clock of the log `main` forward or back."""


EngineOpener: TypeAlias = Callable[[str], Engine]


@contextmanager
def opened(opener: EngineOpener, name: str, like: BusDriver) -> Iterator[BusDriver]:
    """Open another engine on the log of this name, with a driver of the same kind."""
    driver = type(like)(opener(name))
    try:
        yield driver
    finally:
        driver.close()
