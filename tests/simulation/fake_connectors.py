"""Fake connectors of a simulated world, and the receivers behind them, with injected failures."""

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
from magent2.directory.webhooks import Webhook
from magent2.errors import NotTaken, OutcomeUnknown, TransientError
from magent2.mail.retry_policy import RetryPolicy
from tests.simulation.calls import stable_choice
from tests.simulation.directory_fixture import FILE, FILES, SENDER
from tests.simulation.plain_runner import MailFaults

SEND_MAX_S = 1.0  # for the request, and the same again for the reply
AWAY, REFUSED, LOST, SILENT = 0.12, 0.06, 0.05, 0.1  # share of attempts that end like this
BUGS = 0.1  # share of attempts that raise an error which no connector may raise; the message may have arrived
UNREACHABLE_ONE_IN = 40  # one of so many messages is for a receiver that is never available


class FakeReceivers:
    """The receivers, and the messages that have arrived there. They outlive every process."""

    def __init__(self, counts: Counter[str], rng: random.Random) -> None:
        self.arrived: list[OutgoingMessage] = []
        self.findings: list[str] = []
        self._times: Counter[str] = Counter()  # arrivals of each message since it was queued or retried
        self._content = (FILES / SENDER / FILE).read_bytes()
        self._counts = counts
        self._rng = rng

    def next_failure(self, message: OutgoingMessage) -> Exception | None:
        """The error of this attempt, if any. After `OutcomeUnknown` or a bug the message may have arrived."""
        # The key of a notification is random; its run has the same name in every world of a seed.
        name = message.key if message.notification is None else message.notification["data"]["run_id"]
        if stable_choice(name, UNREACHABLE_ONE_IN) == 0:
            return TransientError("the receiver is never available")
        fallen = self._rng.random()
        ends = ((AWAY, TransientError), (REFUSED, NotTaken), (LOST + SILENT, OutcomeUnknown), (BUGS, ValueError))
        for share, error in ends:
            if fallen < share:
                self._counts["a connector raised a bug"] += error is ValueError
                return error(f"{error.__name__} on purpose")
            fallen -= share
        return None

    def is_lost(self) -> bool:
        return self._rng.random() < LOST / (LOST + SILENT)

    def take(self, message: OutgoingMessage, files: Mapping[str, bytes]) -> None:
        self._counts["arrived outside"] += 1
        self._counts["arrived again"] += self._times[message.key] > 0
        self._times[message.key] += 1
        self.arrived.append(message)
        if [files.get(attachment.sha256) for attachment in message.attachments] not in ([], [self._content]):
            self.findings.append(f"{message.key} has arrived with {files}")

    def note(self, note: Mapping[str, Any]) -> None:
        """Check a record of an outbox: a message that has arrived must not be recorded as not sent."""
        name, event = str(note.get("of")), note["event"]
        self._counts[f"outbox: {event}"] += 1
        if event == "retried":
            self._times[name] = 0
        if event == "dead" and self._times[name]:
            self.findings.append(f"{name} is said not to be sent, and has arrived {self._times[name]} times")


class FakeConnector:
    """The connector of one process."""

    def __init__(self, registration: ConnectorRegistration, faults: MailFaults, receivers: FakeReceivers) -> None:
        self.capabilities = registration.capabilities
        self._faults = faults
        self._receivers = receivers

    async def send(self, message: OutgoingMessage, files: Mapping[str, bytes]) -> DeliveryReceipt:
        await self._transfer()
        error = self._receivers.next_failure(message)
        if error is None or (isinstance(error, OutcomeUnknown | ValueError) and not self._receivers.is_lost()):
            self._receivers.take(message, files)
        await self._transfer()
        if error is not None:
            raise error
        return DeliveryReceipt(message.key)

    async def _transfer(self) -> None:
        """Wait for the network. A process that is frozen or has crashed neither sends nor reads the reply."""
        await asyncio.sleep(self._faults.rng.uniform(0, SEND_MAX_S))
        await self._faults.bus.checkpoint()

    async def aclose(self) -> None:
        return None


def relay_maker(
    faults: MailFaults,
    receivers: FakeReceivers,
    lease_s: float,
    names: Callable[[], str],
    now_s: Callable[[], float],
    retry: RetryPolicy,
    configured: Callable[[], Mapping[str, Webhook]],
) -> Callable[[Engine], Relay]:
    """Return a function that creates the relays of a process, each with a unique name."""

    def connector(registration: ConnectorRegistration) -> Connector:
        return FakeConnector(registration, faults, receivers)

    def make(bus: Engine) -> Relay:
        return Relay(
            bus,
            connector,
            concurrency=2,
            lease_s=lease_s,
            worker=names(),
            chance=faults.rng.random,
            now_s=now_s,
            retry=retry,
            configured=configured,
        )

    return make
