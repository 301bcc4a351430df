"""A bus that has only v1's `publish` and `read`, as far as a gateway needs one.

Numbers, heads and ids live in a log in memory beside it: in one process, slower, and gone with that process. What
others publish is found by looking again and again.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, TypeGuard, TypeVar, cast

from magent2.bus.base import EngineBase
from magent2.bus.interface import Bus, BusMessage, Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Describe, Find, HeadIs, Info, Operation, Read, Topics, Trim
from magent2.bus.records import AppendResult, LogInfo, NewRecord
from magent2.bus.watch import Watch
from magent2.errors import ConditionFailed, Magent2Error

R = TypeVar("R")

BACKLOG_MAX = 10_000  # events from before the first look that are still shown
KEPT_MAX = 20_000  # events per conversation that can be read again
PAGE = 256
POLL_S = 0.02


class EngineRequired(Magent2Error):
    """The operation needs an engine (contract v1.1); the bus has only v1's `publish` and `read`."""


def is_engine(bus: Bus) -> TypeGuard[Engine]:
    """Whether a bus runs operations (contract v1.1). A bus without them needs `V1BusAdapter`."""
    return hasattr(bus, "call") and hasattr(bus, "acall")


class V1BusAdapter(EngineBase):
    """Sends go to the v1 bus first and are numbered second, so that what failed halfway can be sent again."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._mirror = MemoryBus()
        self._lock = threading.Lock()
        self._seen: dict[str, str | None] = {}  # the last id that was read, by topic
        self._does: dict[type[Operation[Any]], Callable[[Any], Any]] = {
            Append: self._append,
            Read: self._after_looking,
            Describe: self._after_looking,
            Topics: self._mirror.call,
            Info: self._info,
        }

    def call(self, operation: Operation[R]) -> R:
        does = self._does.get(type(operation))
        if does is None:
            raise EngineRequired("the bus behind this gateway has only 'publish' and 'read'; use an engine")
        with self._lock:
            return cast("R", does(operation))

    async def acall(self, operation: Operation[R]) -> R:
        return await asyncio.to_thread(self.call, operation)

    def watch(self, topics: Iterable[str] = ()) -> Watch:
        return V1Watch(self, self._mirror.watch(topics), topics)

    def close(self) -> None:
        self._mirror.close()

    def look(self, topics: Iterable[str]) -> None:
        """Number what others have published meanwhile."""
        with self._lock:
            for topic in topics:
                self._look(topic)

    # --- under the lock

    def _info(self, _: Info) -> LogInfo:
        return replace(self._mirror.call(Info()), engine="v1")

    def _after_looking(self, operation: Read | Describe) -> Any:
        for topic in operation.topics if isinstance(operation, Describe) else (operation.topic,):
            if _is_stream(topic):
                self._look(topic)
        return self._mirror.call(operation)

    def _append(self, operation: Append) -> AppendResult:
        key, *others = operation.records
        if _is_stream(key.topic):
            return self._append_event(operation)
        mail = [record for record in operation.records if not _is_stream(record.topic)]
        events = [_named(record, key) for record in others if _is_stream(record.topic)]
        again = Append(records=tuple(mail), conditions=operation.conditions, heads=operation.heads)
        if self._mirror.call(Find(key.topic, str(key.id))) is None:
            self._check(operation)
            for record in (*mail, *events):
                self._bus.publish(record.topic, BusMessage(record.topic, record.payload, str(record.id)))
        answer = self._mirror.call(again)
        return replace(answer, seqs=(*answer.seqs, *(self._seq_of(record) for record in events)))

    def _append_event(self, operation: Append) -> AppendResult:
        """What happened in a session without any mail: behind what others have published, as on the v1 bus."""
        named = tuple(replace(record, id=record.id or uuid.uuid4().hex, digest="") for record in operation.records)
        self._check(operation)
        for record in named:
            self._look(record.topic)
            self._bus.publish(record.topic, BusMessage(record.topic, record.payload, str(record.id)))
        return self._mirror.call(replace(operation, records=named))

    def _check(self, operation: Append) -> None:
        for condition in operation.conditions:
            if isinstance(condition, HeadIs):
                (state,) = self._mirror.call(Describe((condition.topic,)))
                if state.head.get(condition.name) != condition.value:
                    raise ConditionFailed(f"{condition.name} of {condition.topic!r} is no longer {condition.value!r}")

    def _seq_of(self, record: NewRecord) -> int:
        self._look(record.topic)
        found = self._mirror.call(Find(record.topic, str(record.id)))
        return found.seq if found is not None else 0

    def _look(self, topic: str) -> None:
        while True:
            last_id = self._seen.get(topic)
            limit = BACKLOG_MAX if last_id is None else PAGE
            found = list(self._bus.read(topic, last_id, limit))
            for message in found:
                self._mirror.call(Append(records=(NewRecord(topic, message.payload, message.id),)))
                self._seen[topic] = message.id
            if len(found) < limit:
                break
        self._cut_off(topic)

    def _cut_off(self, topic: str) -> None:
        (state,) = self._mirror.call(Describe((topic,)))
        if state.last - state.floor > 2 * KEPT_MAX:
            self._mirror.call(Trim(topic, keep=KEPT_MAX))


def _is_stream(topic: str) -> bool:
    return topic.startswith("stream:")


def _named(record: NewRecord, key: NewRecord) -> NewRecord:
    """An event that has no id is named after the mail it shows, so that sending again does not double it."""
    return replace(record, id=record.id or f"shown:{key.id}"[:256])


class V1Watch(Watch):
    """Looks for news as often as it waits."""

    def __init__(self, bus: V1BusAdapter, mirror: Watch, topics: Iterable[str]) -> None:
        self._bus = bus
        self._mirror = mirror
        self._topics = dict.fromkeys(topics)

    def add(self, *topics: str) -> None:
        self._topics.update(dict.fromkeys(topics))
        self._mirror.add(*topics)

    def discard(self, *topics: str) -> None:
        for topic in topics:
            self._topics.pop(topic, None)
        self._mirror.discard(*topics)

    def wait(self, timeout_s: float | None) -> frozenset[str]:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            self._bus.look(tuple(self._topics))
            changed = self._mirror.wait(POLL_S)
            if changed or (end is not None and time.monotonic() >= end):
                return changed

    async def changed(self, timeout_s: float | None) -> frozenset[str]:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            await asyncio.to_thread(self._bus.look, tuple(self._topics))
            changed = await self._mirror.changed(POLL_S)
            if changed or (end is not None and time.monotonic() >= end):
                return changed

    def close(self) -> None:
        self._mirror.close()
