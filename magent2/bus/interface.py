"""The storage port: v1, which is frozen, and the engine port v1.1 beside it.

v1 is `BusMessage` and `Bus`: publish a record, read records, synchronously. Any object with those two methods is a bus.
v1.1 is `Engine`: a bus that keeps the eleven promises of `docs/guarantees.md`. Everything it can do is an *operation*,
a value from `magent2.bus.operations`; `call` runs one on this thread, `acall` runs the same one on an event loop.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

if TYPE_CHECKING:
    from magent2.bus.operations import Operation
    from magent2.bus.records import Page, Record
    from magent2.bus.watch import Watch

R = TypeVar("R")


@dataclass(frozen=True)
class BusMessage:
    """A record on the log. `id` is unique in its topic: publishing the same id again appends nothing."""

    topic: str
    payload: dict[str, Any]
    id: str = field(default_factory=lambda: str(uuid.uuid4()))


@runtime_checkable
class Bus(Protocol):
    """The v1 interface. It does not change any more."""

    def publish(self, topic: str, message: BusMessage) -> str:
        """Append the message and return its id. A repeat of an id appends nothing and returns that id."""
        ...

    def read(self, topic: str, last_id: str | None = None, limit: int = 100) -> Iterable[BusMessage]:
        """Up to `limit` records after `last_id` (always a `BusMessage.id`), oldest first; `None`: the last `limit`."""
        ...


class Engine(Bus, Protocol):
    """The v1.1 interface: a bus that keeps the promises of `docs/guarantees.md`.

    `call` may block and works from any thread, one whose event loop drives `acall` included. `acall` never blocks its
    loop on another process. An operation whose `acall` was cancelled may or may not have happened; running the same
    operation object again settles it, because every operation that changes the log is idempotent.

    Errors of both: `InvalidInput` and `Refused` changed nothing; `TransientError` means that the engine has retried
    for a bounded time, and that the same operation object may be run again; `StorageError` needs an operator.
    """

    def call(self, operation: Operation[R]) -> R: ...

    async def acall(self, operation: Operation[R]) -> R: ...

    def watch(self, topics: Iterable[str] = ()) -> Watch:
        """Return a watch that reports when topics change; `Watch` says what it promises."""
        ...

    def read_blocking(
        self, topic: str, last_id: str | None = None, limit: int = 100, timeout_s: float = 10.0
    ) -> list[Record]:
        """Like `read`, but wait up to `timeout_s` for a record; an empty list if none arrives."""
        ...

    def follow(self, topic: str, after: int | str | None = None) -> AsyncIterator[Record]:
        """Yield every record after the cursor, in order, for as long as the caller iterates. `None`: from now on.

        Ends when the topic is deleted; raises `UnknownCursor` when retention overtakes the reader.
        """
        ...

    async def next_page(self, watch: Watch, topic: str, cursor: int | str) -> Page:
        """Read the next records after the cursor, for a reader that holds a watch on the topic.

        `EngineBase` reads them from the log. An engine whose watch delivers records returns those instead, so that a
        reader at the end of a topic needs no read of its own.
        """
        ...

    def close(self) -> None: ...

    async def aclose(self) -> None: ...
