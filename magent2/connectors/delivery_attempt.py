"""One attempt to deliver one message of an outbox, and the decision after it."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import Find, GetBlob, Later, OwnedAppend, Settle
from magent2.bus.records import ID_MAX_CHARS, ClaimedLane, NewRecord, Record
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
DELIVERY_RETRY_FIRST_S, DELIVERY_RETRY_MAX_S = 1.0, 300.0
REASON_MAX_CHARS = 500

FailedState: TypeAlias = Literal["dead", "unknown"]


@dataclass(frozen=True, slots=True)
class RetryDelivery:
    """Try again after `delay_s`."""

    delay_s: float


@dataclass(frozen=True, slots=True)
class GiveUpDelivery:
    """Settle the message as `dead` or `unknown`. A person may retry or drop it."""

    state: FailedState
    reason: str


def after_failed_delivery(
    error: Exception, attempt: int, takes_key: bool, chance: float
) -> RetryDelivery | GiveUpDelivery:
    """Decide what to do after an attempt failed.

    `chance`, from 0 to 1, spreads the retries of messages that failed together: a delay is half of its maximum or more.
    """
    reason = str(error)[:REASON_MAX_CHARS]
    unknown = isinstance(error, OutcomeUnknown)
    if unknown and not takes_key:
        return GiveUpDelivery("unknown", reason)
    if not unknown and not isinstance(error, TransientError):
        return GiveUpDelivery("dead", reason)
    if attempt >= ATTEMPTS_MAX:
        return GiveUpDelivery("unknown" if unknown else "dead", f"gave up after {attempt} attempts: {reason}")
    longest = min(DELIVERY_RETRY_FIRST_S * 2 ** (attempt - 1), DELIVERY_RETRY_MAX_S)
    return RetryDelivery(longest * (0.5 + chance / 2))


class DeliveryAttempt:
    """One attempt to deliver the message that the first mail of a claimed lane names.

    The crash rule (decision 20): a message whose outcome is unknown is sent again only to a receiver that accepts a
    key. For all others the attempt is recorded as begun before anything is sent. If a relay dies after that, the next
    owner of the lane finds an attempt that has begun and has no end, and reports the message as unknown.
    Receivers that accept a key need no such record, which saves one append per message.
    """

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
        self.connector_id = lane.owner.agent.partition(":")[2]

    async def work(self) -> bool:
        """Make the attempt and give the lane up. Return whether the message is tried again later.

        Raises `UnreadableMail` for mail that is no relay job, and for a message that cannot be read.
        """
        message = await self._read_message()
        if message is None:
            await self._settle()
            return False
        try:
            found = await retry_call(lambda: find_connector(Log(self._bus), self.connector_id), self._owner.worker)
            connector = self._connectors(found.state)
        except (UnknownEntity, SettingsError) as error:
            # An attempt before this one may have been made with a key. So an attempt without an end counts as unknown.
            unavailable = NotTaken(f"connector {self.connector_id!r} is not available: {error}")
            return await self._fail(message, unavailable, takes_key=True)
        return await self.send(message, connector)

    async def _read_message(self) -> OutgoingMessage | None:
        """Read the message from the outbox; `None` if it was deleted with its conversation."""
        item_id = self._mail.headers.get(RELAY_JOB)
        if not isinstance(item_id, str):
            raise UnreadableMail(self._mail, "this mail is not a relay job; send messages to people with `say`")
        find = Find(outbox_topic(self.connector_id), item_id)
        try:
            found: Record | None = await retry_while_unavailable(self._bus, find, self._owner.worker)
            return None if found is None or found.erased else OutgoingMessage.of(found.payload)
        except (MalformedRecord, TypeError) as error:
            reason = f"cannot read message {item_id!r} in the outbox of {self.connector_id!r}: {error}"
            raise UnreadableMail(self._mail, reason[:REASON_MAX_CHARS]) from error

    async def send(self, message: OutgoingMessage, connector: Connector) -> bool:
        """Send the message and record the result."""
        takes_key = connector.capabilities.takes_key
        try:
            if not takes_key:
                await self._begin(message)
            names = dict.fromkeys(attachment.sha256 for attachment in message.attachments)
            files = {name: await self._bus.acall(GetBlob(name)) for name in names}
            receipt = await connector.send(message, files)
        except (NotTaken, OutcomeUnknown, TransientError, BlobMissing) as error:
            return await self._fail(message, error, takes_key)
        await self._settle(state_record(message.key, self.connector_id, "sent", receipt=receipt.id))
        return False

    async def _fail(self, message: OutgoingMessage, error: Exception, takes_key: bool) -> bool:
        """Record a failed attempt, and either retry later or settle the message and report to its conversation."""
        decision = after_failed_delivery(error, self._lane.attempt, takes_key, self._chance())
        if isinstance(decision, RetryDelivery):
            unknown = True if isinstance(error, OutcomeUnknown) else None
            reason = str(error)[:REASON_MAX_CHARS]
            note = state_record(message.key, self.connector_id, "failed", reason=reason, unknown=unknown)
            failed = NewRecord(note.topic, note.payload, id=self._note_id("failed"))
            await self._write(Later(owner=self._owner, delay_s=decision.delay_s, records=(failed,)))
            return True
        if decision.state == "dead" and await self._may_have_arrived(takes_key):
            decision = GiveUpDelivery("unknown", f"{decision.reason}; an earlier attempt may have delivered it")
        note = state_record(message.key, self.connector_id, decision.state, reason=decision.reason)
        try:
            await self._settle(note, failure_event(message, decision))
        except TopicDeleted:  # the conversation was deleted, so there is no stream to report to
            await self._settle(note)
        return False

    async def _begin(self, message: OutgoingMessage) -> None:
        """Record that the message is about to be sent. Raises `OutcomeUnknown` if an earlier attempt may have sent it.

        The record must be on the log before the request leaves: the other way round, a crash in between would leave no
        trace of a message that has arrived.
        """
        if await self._was_begun():
            raise OutcomeUnknown("the relay stopped while it was sending the message; it may have arrived")
        note = state_record(message.key, self.connector_id, "begun")
        begun = NewRecord(note.topic, note.payload, id=self._note_id("begun"))
        self._written += 1
        await self._write(OwnedAppend(owner=self._owner, n=self._written, records=(begun,)))

    async def _was_begun(self) -> bool:
        """Return whether the last attempt that was begun has no recorded end.

        Attempts after it may have died before they could record anything, so all earlier attempts are searched.
        """
        for before in range(self._lane.attempt - 1, 0, -1):
            if await self._find_note("begun", before) is not None:
                return await self._find_note("failed", before) is None
        return False

    async def _may_have_arrived(self, takes_key: bool) -> bool:
        """Return whether the outcome of any earlier attempt is unknown. With a key, no attempt is recorded as begun."""
        for before in range(self._lane.attempt - 1, 0, -1):
            failed = await self._find_note("failed", before)
            if failed is None and (takes_key or await self._find_note("begun", before) is not None):
                return True
            if failed is not None and failed.payload.get("unknown"):
                return True
        return False

    async def _find_note(self, event: str, attempt: int) -> Record | None:
        find = Find(outbox_topic(self.connector_id), self._note_id(event, attempt))
        return await retry_while_unavailable(self._bus, find, self._owner.worker)

    def _note_id(self, event: str, attempt: int | None = None) -> str:
        """The id of a note about an attempt. It contains the id of the mail, so a manual retry starts at attempt 1."""
        return f"{event}:{self._lane.attempt if attempt is None else attempt}:{self._mail.id}"[:ID_MAX_CHARS]

    async def _settle(self, *records: NewRecord) -> None:
        await self._write(Settle(owner=self._owner, mail=(self._mail.ref,), records=records))

    async def _write(self, operation: Settle | Later | OwnedAppend) -> None:
        await retry_while_unavailable(self._bus, operation, self._owner.worker)


def failure_event(message: OutgoingMessage, decision: GiveUpDelivery) -> NewRecord:
    """Return the event that reports a message that was given up to its conversation."""
    outcome = "may not have arrived" if decision.state == "unknown" else "was not sent"
    return stream_record(
        ErrorEvent(
            conversation_id=message.conversation_id,
            agent=message.agent,
            message_id=message.key,
            code=f"send_{decision.state}",
            message=f"the message to {message.connector} {outcome}: {decision.reason}",
        )
    )
