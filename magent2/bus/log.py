"""The typed port for functions of several operations. One function serves both event loops and threads.

Such a function is `async def` and takes a `Log` first:

    async def find_session(log: Log, session_id: str) -> Session | None: ...

On an event loop: `await find_session(Log(bus), "c1")`. On a thread: `run_sync(bus, find_session, "c1")`, which drives
the same coroutine over a port that blocks instead of suspending. Such functions therefore await nothing but the port
and each other.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, TypeVar

from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Describe, Find, Operation, Read, Topics
from magent2.bus.records import AppendResult, Page, Record, TopicInfo, TopicList
from magent2.errors import SuspendedSync

R = TypeVar("R")
P = ParamSpec("P")


class Log:
    """Operations of an engine as awaitable methods. `run` takes any operation; the common ones have methods."""

    __slots__ = ("bus",)

    def __init__(self, bus: Engine) -> None:
        self.bus = bus

    async def run(self, operation: Operation[R]) -> R:
        return await self.bus.acall(operation)

    async def give_way(self) -> None:
        """Let other tasks of the event loop go on, between two steps of a long read. Not every engine suspends."""
        await asyncio.sleep(0)

    async def append(self, append: Append) -> AppendResult:
        return await self.run(append)

    async def describe(self, *topics: str) -> tuple[TopicInfo, ...]:
        return await self.run(Describe(topics))

    async def read(
        self, topic: str, after: int | str | None = None, limit: int = 100, before: int | None = None
    ) -> Page:
        return await self.run(Read(topic, after, limit, before))

    async def find(self, topic: str, record_id: str) -> Record | None:
        return await self.run(Find(topic, record_id))

    async def topics(
        self, prefix: str = "", owner: str | None = None, before: tuple[int, str] | None = None, limit: int = 100
    ) -> TopicList:
        return await self.run(Topics(prefix, owner, before, limit))

    async def all_topics(self, prefix: str, before: tuple[int, str] | None = None) -> AsyncIterator[TopicInfo]:
        """Yield the topics with a prefix, the last changed first, page after page. `before` is where to begin."""
        while True:
            page = await self.topics(prefix, before=before)
            for info in page.topics:
                yield info
            if page.next is None:
                return
            before = page.next


class BlockingLog(Log):
    """The same port on a thread: each operation blocks, so a coroutine over it never suspends."""

    __slots__ = ()

    async def run(self, operation: Operation[R]) -> R:
        return self.bus.call(operation)

    async def give_way(self) -> None:
        """Do nothing: a thread needs no such step."""


def run_sync(
    bus: Engine, function: Callable[Concatenate[Log, P], Coroutine[Any, Any, R]], *args: P.args, **kwargs: P.kwargs
) -> R:
    """Run a function over the log to its end on this thread.

    Raises `SuspendedSync` if it awaits anything besides the log.
    """
    coroutine = function(BlockingLog(bus), *args, **kwargs)
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: R = end.value
        return result
    finally:
        coroutine.close()
    raise SuspendedSync(f"{function.__qualname__} awaits something besides the log; await it on an event loop")
