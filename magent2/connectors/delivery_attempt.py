"""One attempt at one message of an outbox, and what is decided after it. The lane's owner writes it all down."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import Find, GetBlob, Later, OwnedAppend, Settle
from magent2.bus.records import ClaimedLane, NewRecord, Record
from magent2.bus.retry import retry_call, retry_while_unavailable
from magent2.connectors.interface import Connector, OutgoingMessage
from magent2.connectors.outbox import state_record
from magent2.directory.connectors import ConnectorRegistration, find_connector
from magent2.errors import (
    BlobMissing,
    MalformedRecord,
    NotTaken,
    OutcomeUnknown,
    SettingsError,
    TopicDeleted,
    TransientError,
    UnknownEntity,
)
from magent2.mail.headers import RELAY_JOB
from magent2.mail.lane_loop import UnreadableMail
from magent2.models.address import outbox_topic
from magent2.models.events import ErrorEvent
from magent2.sessions.stream import stream_record

ATTEMPTS_MAX = 8
RETRY_FIRST_S, RETRY_MAX_S = 1.0, 300.0
REASON_MAX_CHARS = 500

FailedState: TypeAlias = Literal["dead", "unknown"]
UNKNOWN: Literal["unknown"] = "unknown"


@dataclass(frozen=True, slots=True)
class RetryDelivery:
    """Try again, in so many seconds."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUpDelivery:
    """It waits for a person."""

    state: FailedState
    reason: str


def after_failed_delivery(
    error: Exception, attempt: int, takes_key: bool, chance: float
) -> RetryDelivery | GiveUpDelivery:
    """What to do with a message whose attempt has failed; `chance` from 0 to 1 spreads those that failed together."""
    reason = str(error)[:REASON_MAX_CHARS]
    unknown = isinstance(error, OutcomeUnknown)
    if unknown and not takes_key:
        return GiveUpDelivery("unknown", reason)
    if not unknown and not isinstance(error, TransientError):
        return GiveUpDelivery("dead", reason)
    if attempt >= ATTEMPTS_MAX:
        return GiveUpDelivery("unknown" if unknown else "dead", f"gave up after {attempt} attempts: {reason}")
    longest = min(RETRY_FIRST_S * 2 ** (attempt - 1), RETRY_MAX_S)
    return RetryDelivery(longest * (0.5 + chance / 2))


class DeliveryAttempt:
    """Works on the first mail of a claimed lane: one attempt to deliver the message that it names."""

    def __init__(
        self,
        bus: Engine,
        lane: ClaimedLane,
        connectors: Callable[[ConnectorRegistration], Connector],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._bus = bus
        self._lane = lane
        self._connectors = connectors
        self._chance = chance
        self._owner = lane.owner
        self._mail = lane.mail[0]
        self._written = 0

    @property
    def connector_id(self) -> str:
        return self._owner.agent.partition(":")[2]

    @property
    def item_id(self) -> str | None:
        found = self._mail.headers.get(RELAY_JOB)
        return found if isinstance(found, str) else None

    async def work(self) -> bool:
        """Make the attempt and give the lane up. Return whether the message is tried again later.

        Raises `UnreadableMail` for mail that names no message, and for a message that cannot be read.
        """
        message = await self.message()
        if message is None:
            await self._settle()
            return False
        try:
            connector = self._connectors(await self.registration())
        except (UnknownEntity, SettingsError) as error:
            reason = f"the connector {self.connector_id!r} is not there: {error}"
            return await self.fail(message, NotTaken(reason), takes_key=True)
        return await self.send(message, connector)

    async def message(self) -> OutgoingMessage | None:
        """Read the message from the outbox; `None` if it is gone with its conversation."""
        if self.item_id is None:
            raise UnreadableMail(self._mail, "this is no mail for a connector; send messages to people with `say`")
        find = Find(outbox_topic(self.connector_id), self.item_id)
        try:
            found: Record | None = await retry_while_unavailable(self._bus, find, self._owner.worker)
            return None if found is None or found.erased else OutgoingMessage.of(found.payload)
        except (MalformedRecord, KeyError, TypeError) as error:
            reason = f"message {self.item_id!r} of the outbox of {self.connector_id!r} cannot be read: {error}"
            raise UnreadableMail(self._mail, reason[:REASON_MAX_CHARS]) from error

    async def registration(self) -> ConnectorRegistration:
        found = await retry_call(lambda: find_connector(Log(self._bus), self.connector_id), self._owner.worker)
        return found.state

    async def files(self, message: OutgoingMessage) -> dict[str, bytes]:
        names = dict.fromkeys(attachment.sha256 for attachment in message.attachments)
        return {name: await self._bus.acall(GetBlob(name)) for name in names}

    async def send(self, message: OutgoingMessage, connector: Connector) -> bool:
        """Send it and write down what came of it."""
        takes_key = connector.capabilities.takes_key
        try:
            if not takes_key:
                await self._begin()
            receipt = await connector.send(message, await self.files(message))
        except (NotTaken, OutcomeUnknown, TransientError, BlobMissing) as error:
            return await self.fail(message, error, takes_key)
        await self._settle(state_record(message.key, self.connector_id, "sent", receipt=receipt.id))
        return False

    async def fail(self, message: OutgoingMessage, error: Exception, takes_key: bool) -> bool:
        decision = after_failed_delivery(error, self._lane.attempt, takes_key, self._chance())
        if isinstance(decision, RetryDelivery):
            facts = {"reason": str(error)[:REASON_MAX_CHARS], UNKNOWN: isinstance(error, OutcomeUnknown) or None}
            note = state_record(message.key, self.connector_id, "failed", **facts)
            failed = NewRecord(note.topic, note.payload, id=self._note_id("failed"))
            await self._write(Later(owner=self._owner, delay_s=decision.delay_s, records=(failed,)))
            return True
        if decision.state == "dead" and await self._may_have_arrived(takes_key):
            decision = GiveUpDelivery(UNKNOWN, f"{decision.reason}; an earlier attempt may have sent it")
        note = state_record(message.key, self.connector_id, decision.state, reason=decision.reason)
        try:
            await self._settle(note, failure_event(message, decision))
        except TopicDeleted:  # there is no conversation left to tell
            await self._settle(note)
        return False

    async def _begin(self) -> None:
        """Note that it is about to be sent. An earlier attempt that was begun and never ended may have sent it."""
        if await self._was_begun():
            raise OutcomeUnknown("whoever was sending it was lost on the way; it may have arrived")
        note = state_record(str(self.item_id), self.connector_id, "begun")
        begun = NewRecord(note.topic, note.payload, id=self._note_id("begun"))
        self._written += 1
        await self._write(OwnedAppend(owner=self._owner, n=self._written, records=(begun,)))

    async def _was_begun(self) -> bool:
        """Whether the last attempt that was begun has no end. Those after it may have died before they could say so."""
        for before in range(self._lane.attempt - 1, 0, -1):
            if await self._noted("begun", before) is not None:
                return await self._noted("failed", before) is None
        return False

    async def _may_have_arrived(self, takes_key: bool) -> bool:
        """Whether any earlier attempt has no end that is known. Where a key is taken, none is noted as begun."""
        for before in range(self._lane.attempt - 1, 0, -1):
            failed = await self._noted("failed", before)
            if failed is None and (takes_key or await self._noted("begun", before) is not None):
                return True
            if failed is not None and failed.payload.get(UNKNOWN):
                return True
        return False

    async def _noted(self, what: str, attempt: int) -> Record | None:
        find = Find(outbox_topic(self.connector_id), self._note_id(what, attempt))
        return await retry_while_unavailable(self._bus, find, self._owner.worker)

    def _note_id(self, what: str, attempt: int | None = None) -> str:
        """Of this mail, so that a message which a person sends again begins anew."""
        return f"{what}:{self._lane.attempt if attempt is None else attempt}:{self._mail.id}"[:256]

    async def _settle(self, *records: NewRecord) -> None:
        await self._write(Settle(owner=self._owner, mail=(self._mail.ref,), records=records))

    async def _write(self, operation: Settle | Later | OwnedAppend) -> None:
        await retry_while_unavailable(self._bus, operation, self._owner.worker)


def failure_event(message: OutgoingMessage, decision: GiveUpDelivery) -> NewRecord:
    """The event that tells the conversation."""
    words = "may not have arrived" if decision.state == "unknown" else "was not sent"
    return stream_record(
        ErrorEvent(
            conversation_id=message.conversation_id,
            agent=message.agent,
            message_id=message.key,
            code=f"send_{decision.state}",
            message=f"a message to {message.connector} {words}: {decision.reason}",
        )
    )
