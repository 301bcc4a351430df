"""The adapter for a bus that has only v1's `publish` and `read`, for a gateway.

`is_engine` is the one place that tells a v1 bus from an engine. It is asked where a bus enters: by `create_app`, by
`Worker` and by the chat tool.
"""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeGuard, TypeVar, cast

from magent2.bus.base import EngineBase
from magent2.bus.interface import Bus, BusMessage, Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Describe, Find, HeadIs, Info, Operation, Read, Topics, Trim
from magent2.bus.records import ID_MAX_CHARS, AppendResult, NewRecord
from magent2.bus.watch import Watch
from magent2.errors import ConditionFailed, Magent2Error
from magent2.models.address import KIND_MARK

R = TypeVar("R")

BACKLOG_MAX = 10_000  # events from before the first poll that are still shown
EVENTS_KEPT_MAX = 20_000  # events per conversation that can be read again
POLL_PAGE = 256
POLL_S = 0.02


class EngineRequired(Magent2Error):
    """The operation needs an engine (contract v1.1); the bus has only v1's `publish` and `read`."""


def is_engine(bus: Bus) -> TypeGuard[Engine]:
    """Return whether a bus runs operations (contract v1.1). A gateway needs `V1BusAdapter` for any other bus."""
    return hasattr(bus, "call") and hasattr(bus, "acall")


class V1BusAdapter(EngineBase):
    """A v1 bus as an engine that appends, reads, finds and describes. Any other operation raises `EngineRequired`.

    Sequence numbers, heads and ids live in a mirror, a log in the memory of this process. They are gone with the
    process, and other gateways number records differently. What other processes publish is found by polling.

    An append publishes to the v1 bus first and numbers the records in the mirror second. If publishing fails halfway,
    the mirror knows nothing of the append, and the same append can be made again: the ids make the repeat harmless.
    """

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._mirror = MemoryBus()
        self._lock = threading.Lock()  # held by every method that polls or appends
        self._cursors: dict[str, str] = {}  # the last id that was read, by topic

    def call(self, operation: Operation[R]) -> R:
        with self._lock:
            return cast("R", self._run(operation))

    async def acall(self, operation: Operation[R]) -> R:
        return await asyncio.to_thread(self.call, operation)

    def watch(self, topics: Iterable[str] = ()) -> Watch:
        return PollingWatch(self, self._mirror.watch(topics), topics)

    def close(self) -> None:
        self._mirror.close()

    def poll(self, topics: Iterable[str]) -> None:
        """Number what other processes have published in these topics."""
        with self._lock:
            for topic in topics:
                if not topic.endswith(KIND_MARK):  # heads are set through this adapter alone: the mirror reports them
                    self._poll(topic)

    def _run(self, operation: object) -> object:
        if isinstance(operation, Append):
            return self._append(operation)
        if isinstance(operation, Read | Describe):
            for topic in operation.topics if isinstance(operation, Describe) else (operation.topic,):
                if _is_stream(topic):
                    self._poll(topic)
            return self._mirror.call(operation)
        if isinstance(operation, Topics | Find):
            return self._mirror.call(operation)
        if isinstance(operation, Info):
            return replace(self._mirror.call(operation), engine="v1")
        raise EngineRequired("the bus behind this gateway has only 'publish' and 'read'; use an engine")

    def _append(self, operation: Append) -> AppendResult:
        """Append mail, and the events that show it in the conversation.

        The first record identifies the append: if the mirror has it, everything is on the v1 bus already.
        """
        first, *others = operation.records
        if _is_stream(first.topic):
            return self._append_events(operation)
        mail = [record for record in operation.records if not _is_stream(record.topic)]
        # An event without an id gets one that is derived from its mail, so that a repeat does not double it.
        events = [
            replace(record, id=record.id or f"shown:{first.id}"[:ID_MAX_CHARS])
            for record in others
            if _is_stream(record.topic)
        ]
        if self._mirror.call(Find(first.topic, str(first.id))) is None:
            self._check_conditions(operation)
            for record in (*mail, *events):
                self._publish(record)
        result = self._mirror.call(Append(records=tuple(mail), conditions=operation.conditions, heads=operation.heads))
        return replace(result, seqs=(*result.seqs, *(self._seq_of(record) for record in events)))

    def _append_events(self, operation: Append) -> AppendResult:
        """Append events without mail. Polling first gives them their place behind what others have published."""
        records = tuple(replace(record, id=record.id or uuid.uuid4().hex, digest="") for record in operation.records)
        self._check_conditions(operation)
        for record in records:
            self._poll(record.topic)
            self._publish(record)
        return self._mirror.call(replace(operation, records=records))

    def _publish(self, record: NewRecord) -> None:
        self._bus.publish(record.topic, BusMessage(record.topic, record.payload, str(record.id)))

    def _check_conditions(self, operation: Append) -> None:
        """Check before anything is published: the v1 bus cannot take a record back."""
        for condition in operation.conditions:
            if isinstance(condition, HeadIs):
                (state,) = self._mirror.call(Describe((condition.topic,)))
                if state.head.get(condition.name) != condition.value:
                    raise ConditionFailed(f"{condition.name} of {condition.topic!r} is no longer {condition.value!r}")

    def _seq_of(self, record: NewRecord) -> int:
        self._poll(record.topic)
        found = self._mirror.call(Find(record.topic, str(record.id)))
        return found.seq if found is not None else 0

    def _poll(self, topic: str) -> None:
        while True:
            last_id = self._cursors.get(topic)
            limit = BACKLOG_MAX if last_id is None else POLL_PAGE
            messages = list(self._bus.read(topic, last_id, limit))
            for message in messages:
                self._mirror.call(Append(records=(NewRecord(topic, message.payload, message.id),)))
                self._cursors[topic] = message.id
            if len(messages) < limit:
                break
        (state,) = self._mirror.call(Describe((topic,)))
        if state.last - state.floor > 2 * EVENTS_KEPT_MAX:
            while self._mirror.call(Trim(topic, keep=EVENTS_KEPT_MAX)).more:
                pass


def _is_stream(topic: str) -> bool:
    return topic.startswith("stream:")


class PollingWatch(Watch):
    """A watch of a `V1BusAdapter`. It polls the v1 bus while it waits, because a v1 bus sends no notifications."""

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
            self._bus.poll(tuple(self._topics))
            changed = self._mirror.wait(POLL_S)
            if changed or (end is not None and time.monotonic() >= end):
                return changed

    async def changed(self, timeout_s: float | None) -> frozenset[str]:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            await asyncio.to_thread(self._bus.poll, tuple(self._topics))
            changed = await self._mirror.changed(POLL_S)
            if changed or (end is not None and time.monotonic() >= end):
                return changed

    def close(self) -> None:
        self._mirror.close()
