"""Watches: waiting for topics to change, on a thread or on an event loop."""

from __future__ import annotations

import asyncio
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from magent2.models.address import KIND_MARK, kind_prefix

KIND_CHANGES_MAX = 10_000  # topics of kinds that a watch collects before it reports only the kinds


class Watch(ABC):
    """Reports which of its topics have changed since the last call.

    A change is an append, a new head, a deletion, or, on an agent's inbox, a lane that became ready. No change after
    `add` is missed; several may be reported as one. A topic may be reported without a change: once when the watch has
    started, and after a lost connection was restored. So: add, read, wait, read.
    One task or thread waits on a watch at a time.

    A watch may have `topics_of_kind("stream")` among its topics. It then reports all topics of that kind that were
    created or deleted or whose head was set, under their own names. A topic that only got records need not be reported.
    `topics_of_kind("stream")` itself is reported when changes may have been missed, or when they are too many.
    """

    @abstractmethod
    def add(self, *topics: str) -> None: ...

    @abstractmethod
    def discard(self, *topics: str) -> None: ...

    @abstractmethod
    def wait(self, timeout_s: float | None) -> frozenset[str]:
        """Block this thread until a topic changes; empty after the timeout."""

    @abstractmethod
    async def changed(self, timeout_s: float | None) -> frozenset[str]:
        """`wait` for an event loop."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class WatchHub:
    """The watches of this process by topic. Engines call `notify` from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[str, set[LocalWatch]] = {}

    def watch(self, topics: Iterable[str] = ()) -> LocalWatch:
        watch = LocalWatch(self)
        watch.add(*topics)
        return watch

    def notify(self, topics: Iterable[str], listed: Iterable[str] = ()) -> None:
        """Wake the watches of topics. `listed`: those that were created or deleted or whose head was set."""
        # Read without the lock, because every commit comes here and most processes watch nothing. A watch that is added
        # at this moment misses nothing: its owner reads after `add`, and the commit is done already.
        if not self._watches:
            return
        with self._lock:
            woken = [(watch, topic) for topic in topics for watch in self._watches.get(topic, ())]
            woken += [(watch, topic) for topic in listed for watch in self._watches.get(_kind_of(topic), ())]
        for watch, topic in woken:
            watch.wake(topic)

    def notify_all(self) -> None:
        self.notify(self.watched())

    def watched(self) -> list[str]:
        with self._lock:
            return list(self._watches)

    def add_watch(self, watch: LocalWatch, topic: str) -> None:
        with self._lock:
            self._watches.setdefault(topic, set()).add(watch)
            first = len(self._watches[topic]) == 1
        self.watch_added(watch, topic, first)

    def remove_watch(self, watch: LocalWatch, topic: str) -> None:
        with self._lock:
            others = self._watches.get(topic, set())
            others.discard(watch)
            last = not others and self._watches.pop(topic, None) is not None
        if last:
            self.topic_unwatched(topic)

    def watch_added(self, watch: LocalWatch, topic: str, first: bool) -> None:
        """Called after a watch was added. `first`: no other watch has the topic, so a remote hub has to subscribe."""

    def topic_unwatched(self, topic: str) -> None:
        """Called after the last watch of a topic was removed."""


class LocalWatch(Watch):
    """A watch on a hub."""

    def __init__(self, hub: WatchHub) -> None:
        self._hub = hub
        self._lock = threading.Lock()
        self._topics: set[str] = set()
        self._changed: set[str] = set()
        self._event = threading.Event()
        self._waiter: asyncio.Future[None] | None = None
        self._waiter_thread = 0

    def add(self, *topics: str) -> None:
        for topic in topics:
            if topic not in self._topics:
                self._topics.add(topic)
                self._hub.add_watch(self, topic)

    def discard(self, *topics: str) -> None:
        for topic in topics:
            if topic in self._topics:
                self._topics.discard(topic)
                self._hub.remove_watch(self, topic)

    def close(self) -> None:
        self.discard(*self._topics)

    def wake(self, topic: str) -> None:
        # One lock for the topic and the waiter: either `changed` finds the topic when it sets its waiter, or the waiter
        # is found here. Between two locks a change could be recorded and nothing woken.
        with self._lock:
            self._changed.add(topic if len(self._changed) < KIND_CHANGES_MAX else self._reported_as(topic))
            waiter = self._waiter
            self._event.set()  # under the lock: after `_take`, it would end the next wait without a change
        if waiter is not None:
            self._release(waiter)

    def _release(self, waiter: asyncio.Future[None]) -> None:
        if threading.get_ident() == self._waiter_thread:
            _finish(waiter)
            return
        try:
            waiter.get_loop().call_soon_threadsafe(_finish, waiter)
        except RuntimeError:  # the loop was closed, and the waiting task with it
            self._waiter = None

    def _take(self) -> frozenset[str]:
        with self._lock:
            taken = frozenset(self._changed)
            self._changed.clear()
            self._event.clear()
        return frozenset(topic for topic in taken if self._reported_as(topic))

    def _reported_as(self, topic: str) -> str:
        """Return the topic or the kind that a change of this topic is watched under, or '' if it is not watched."""
        kind = _kind_of(topic)
        return topic if topic in self._topics else kind if kind in self._topics else ""

    def wait(self, timeout_s: float | None) -> frozenset[str]:
        self._event.wait(timeout_s)
        return self._take()

    async def changed(self, timeout_s: float | None) -> frozenset[str]:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        with self._lock:
            self._waiter, self._waiter_thread = waiter, threading.get_ident()
            if self._changed:
                _finish(waiter)
        timer = None if timeout_s is None else loop.call_later(timeout_s, _finish, waiter)
        try:
            await waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
        return self._take()


def _kind_of(topic: str) -> str:
    """Return the `topics_of_kind` that a topic belongs to."""
    return kind_prefix(topic) + KIND_MARK


def _finish(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
