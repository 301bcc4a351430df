"""Simulated operators: they queue messages in outboxes, end a friendship, and retry or drop stuck messages."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from magent2.bus.log import Log
from magent2.bus.operations import Append
from magent2.bus.retry import retry_call
from magent2.connectors.interface import OutgoingMessage
from magent2.connectors.outbox import OPEN_STATES, OutboxItem, drop_item, queue_records, read_outbox, retry_item
from magent2.directory.connectors import find_connector
from magent2.directory.users import remove_friendship
from magent2.errors import IdConflict, InvalidInput
from tests.simulation.directory_fixture import CONNECTORS, USERS
from tests.simulation.engine_recorder import EngineRecorder
from tests.simulation.faulty_bus import FaultyBus

MESSAGES_MAX = 4
PAUSE_MAX_S = 1.0
ENDS_FRIENDSHIP = 0.3  # share of worlds in which a friendship ends
ENDS_FRIENDSHIP_MAX_S = 6.0
OPERATORS = 2  # working on the same outboxes at the same time


class OutboxOperators:
    def __init__(self, recorder: EngineRecorder, rng: random.Random, bus: Callable[[], FaultyBus]) -> None:
        self.queued: list[str] = []  # keys of messages whose append was acknowledged
        self._recorder = recorder
        self._rng = rng
        self._new_bus = bus

    async def run(self) -> None:
        await asyncio.gather(self._write(), *([self._end_friendship()] if self._rng.random() < ENDS_FRIENDSHIP else []))

    async def _write(self) -> None:
        bus = self._new_bus()
        for number in range(self._rng.randint(0, MESSAGES_MAX)):
            await asyncio.sleep(self._rng.uniform(0, PAUSE_MAX_S))
            user = self._rng.choice(USERS[:2])
            place = user.connector, user.id, user.conversation
            key = f"by-hand-{number}-{self._rng.randrange(1000)}"
            message = OutgoingMessage(key, *place, "Ada", f"by hand {number}", "2026-01-01T00:00:00+00:00")
            await retry_call(lambda message=message: _queue_message(Log(bus), message), "operator")  # type: ignore[misc]
            self.queued.append(message.key)

    async def _end_friendship(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, ENDS_FRIENDSHIP_MAX_S))
        bus = self._new_bus()
        await retry_call(lambda: remove_friendship(Log(bus), "ann", "bob"), "ann")

    # --- stuck messages

    async def resolve_open_items(self) -> None:
        """Decide on every message that needs a decision. The operators do not know of each other."""
        await asyncio.gather(*(self._decide_all(self._new_bus()) for _ in range(OPERATORS)))

    async def _decide_all(self, bus: FaultyBus) -> None:
        for connector in CONNECTORS:
            items: list[OutboxItem] = await retry_call(lambda name=connector: read_outbox(Log(bus), name), "operator")  # type: ignore[misc]
            for item in items:
                if item.state in OPEN_STATES:
                    await self._decide(bus, connector, item)

    async def _decide(self, bus: FaultyBus, connector: str, item: OutboxItem) -> None:
        decide: Callable[[Log, str, str], Coroutine[Any, Any, OutboxItem]] = self._rng.choice(
            (retry_item, retry_item, drop_item)
        )
        try:
            await retry_call(lambda: decide(Log(bus), connector, item.id), "operator")
        except (InvalidInput, IdConflict):  # the other operator was first, or the reply to this call was lost
            self._recorder.counts["an operator came too late"] += 1


async def _queue_message(log: Log, message: OutgoingMessage) -> None:
    registration = await find_connector(log, message.connector)
    await log.append(Append(records=queue_records(message, registration.state)))
