"""Those who use outboxes by hand: they put messages into them, end a friendship, and look after what is stuck."""

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
from magent2.directory.friends import remove_friendship
from magent2.errors import IdConflict, InvalidInput
from tests.simulation.ledger import Ledger
from tests.simulation.line import Line
from tests.simulation.town import CITIZENS, CONNECTORS

MESSAGES_MAX = 4
PAUSE_MAX_S = 1.0
FALL_OUT = 0.3  # how often a friendship ends
FALL_OUT_MAX_S = 6.0
CLERKS = 2  # at the same desk


class Clerks:
    def __init__(self, ledger: Ledger, dice: random.Random, line: Callable[[], Line]) -> None:
        self.queued: list[str] = []  # that were acknowledged
        self._ledger = ledger
        self._dice = dice
        self._line = line

    async def live(self) -> None:
        await asyncio.gather(self._write(), *([self._fall_out()] if self._dice.random() < FALL_OUT else []))

    async def _write(self) -> None:
        line = self._line()
        for number in range(self._dice.randint(0, MESSAGES_MAX)):
            await asyncio.sleep(self._dice.uniform(0, PAUSE_MAX_S))
            citizen = self._dice.choice(CITIZENS[:2])
            place = citizen.connector, citizen.id, citizen.conversation
            key = f"by-hand-{number}-{self._dice.randrange(1000)}"
            message = OutgoingMessage(key, *place, "Ada", f"by hand {number}", "2026-01-01T00:00:00+00:00")
            await retry_call(lambda message=message: _putting(Log(line), message), "clerk")  # type: ignore[misc]
            self.queued.append(message.key)

    async def _fall_out(self) -> None:
        await asyncio.sleep(self._dice.uniform(0, FALL_OUT_MAX_S))
        line = self._line()
        await retry_call(lambda: remove_friendship(Log(line), "ann", "bob"), "ann")

    # --- the desk

    async def tidy(self) -> None:
        """Look at what waits for a person, and decide; each of them as if alone."""
        await asyncio.gather(*(self._decide_all(self._line()) for _ in range(CLERKS)))

    async def _decide_all(self, line: Line) -> None:
        for connector in CONNECTORS:
            items: list[OutboxItem] = await retry_call(lambda name=connector: read_outbox(Log(line), name), "clerk")  # type: ignore[misc]
            for item in items:
                if item.state in OPEN_STATES:
                    await self._decide(line, connector, item)

    async def _decide(self, line: Line, connector: str, item: OutboxItem) -> None:
        decide: Callable[[Log, str, str], Coroutine[Any, Any, OutboxItem]] = self._dice.choice(
            (retry_item, retry_item, drop_item)
        )
        try:
            await retry_call(lambda: decide(Log(line), connector, item.id), "clerk")
        except (InvalidInput, IdConflict):  # another was quicker, or the answer to this one was lost
            self._ledger.counts["a clerk came too late"] += 1


async def _putting(log: Log, message: OutgoingMessage) -> None:
    registration = await find_connector(log, message.connector)
    await log.append(Append(records=queue_records(message, registration.state)))
