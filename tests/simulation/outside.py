"""Outside of a simulated world: places that connectors send to, where things go wrong, and what has arrived there."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from magent2.bus.interface import Engine
from magent2.connectors.interface import Connector, DeliveryReceipt, OutgoingMessage
from magent2.connectors.relay import Relay
from magent2.directory.connectors import ConnectorRegistration
from magent2.errors import NotTaken, OutcomeUnknown, TransientError
from tests.simulation.calls import chance_of
from tests.simulation.moods import Temper
from tests.simulation.town import FILE, FILES, SENDER

SEND_MAX_S = 1.0  # there, and again so much for the answer
AWAY, REFUSED, LOST, SILENT = 0.12, 0.06, 0.05, 0.1  # how often an attempt ends so
HOPELESS = 40  # of so many messages, one is for somebody who is never there


class Outside:
    """What has arrived, in order; it outlives every process."""

    def __init__(self, counts: Counter[str], dice: random.Random) -> None:
        self.arrived: list[OutgoingMessage] = []
        self.findings: list[str] = []
        self._times: Counter[str] = Counter()  # how often each has arrived since a person sent it, or sent it again
        self._content = (FILES / SENDER / FILE).read_bytes()
        self._counts = counts
        self._dice = dice

    def luck(self, message: OutgoingMessage) -> Exception | None:
        """What an attempt comes to. `OutcomeUnknown` says nothing of whether it has arrived."""
        if chance_of(message.key, HOPELESS) == 0:
            return TransientError("nobody is ever there")
        fallen = self._dice.random()
        ends = ((AWAY, TransientError), (REFUSED, NotTaken), (LOST + SILENT, OutcomeUnknown))
        for share, error in ends:
            if fallen < share:
                return error(f"{error.__name__} on purpose")
            fallen -= share
        return None

    def is_lost(self) -> bool:
        return self._dice.random() < LOST / (LOST + SILENT)

    def take(self, message: OutgoingMessage, files: Mapping[str, bytes]) -> None:
        self._counts["arrived outside"] += 1
        self._counts["arrived again"] += self._times[message.key] > 0
        self._times[message.key] += 1
        self.arrived.append(message)
        if [files.get(attachment.sha256) for attachment in message.attachments] not in ([], [self._content]):
            self.findings.append(f"{message.key} has arrived with {files}")

    def note(self, note: Mapping[str, Any]) -> None:
        """What an outbox says of a message: only what has not arrived can be said not to be sent."""
        name, event = str(note.get("of")), note["event"]
        self._counts[f"outbox: {event}"] += 1
        if event == "retried":
            self._times[name] = 0
        if event == "dead" and self._times[name]:
            self.findings.append(f"{name} is said not to be sent, and has arrived {self._times[name]} times")


class Postman:
    """A connector of one process."""

    def __init__(self, registration: ConnectorRegistration, temper: Temper, outside: Outside) -> None:
        self.capabilities = registration.capabilities
        self._temper = temper
        self._outside = outside

    async def send(self, message: OutgoingMessage, files: Mapping[str, bytes]) -> DeliveryReceipt:
        await self._travel()
        error = self._outside.luck(message)
        if error is None or (isinstance(error, OutcomeUnknown) and not self._outside.is_lost()):
            self._outside.take(message, files)
        await self._travel()
        if error is not None:
            raise error
        return DeliveryReceipt(message.key)

    async def _travel(self) -> None:
        """As long as it takes. Only a process that lives and is awake sends, or hears the answer."""
        await asyncio.sleep(self._temper.dice.uniform(0, SEND_MAX_S))
        await self._temper.line.breathe()

    async def aclose(self) -> None:
        return None


def relay_maker(
    temper: Temper, outside: Outside, lease_s: float, names: Callable[[], str], now_s: Callable[[], float]
) -> Callable[[Engine], Relay]:
    """How a process makes its relays; each has a name of its own."""

    def connector(registration: ConnectorRegistration) -> Connector:
        return Postman(registration, temper, outside)

    def make(bus: Engine) -> Relay:
        return Relay(
            bus, connector, concurrency=2, lease_s=lease_s, worker=names(), chance=temper.dice.random, now_s=now_s
        )

    return make
