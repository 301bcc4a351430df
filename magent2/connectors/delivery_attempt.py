"""One attempt to deliver one message of an outbox, and the decision after it."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from magent2.background import log_error, raise_if_cancelled
from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import Find, GetBlob, Later, OwnedAppend, Read, Settle
from magent2.bus.records import ID_MAX_CHARS, ClaimedLane, NewRecord, Record
from magent2.bus.retry import retry_call, retry_while_unavailable
from magent2.connectors.interface import Connector, DeliveryReceipt, OutgoingMessage
from magent2.connectors.outbox import state_record
from magent2.directory.connectors import ConnectorRegistration, find_connector
from magent2.errors import (
    BlobMissing,
    MalformedRecord,
    NotTaken,
    OutcomeUnknown,
    TopicDeleted,
    TransientError,
    UnknownEntity,
)
from magent2.failures import Failure, mask_secrets
from magent2.mail.dead_letters import burial_forms
from magent2.mail.headers import RELAY_JOB
from magent2.mail.lane_loop import REASON_MAX_CHARS, UnreadableMail
from magent2.mail.retry_policy import DELIVERY_RETRY, RetryPolicy
from magent2.models.address import WEBHOOK_RELAY, outbox_topic
from magent2.models.events import ErrorEvent
from magent2.sessions.stream import stream_record

log = logging.getLogger(__name__)

NO_JOB_DELAY_S = 1.0
OVERDUE_READ_MAX = 50  # last records of an outbox in which the outcome of the message before is looked for

FailedState: TypeAlias = Literal["dead", "unknown"]
DeliveryOutcome: TypeAlias = Literal["sent", "retried", "dead", "unknown"]


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
    error: Exception, attempt: int, elapsed_s: float, takes_key: bool, policy: RetryPolicy, chance: float
) -> RetryDelivery | GiveUpDelivery:
    """Decide what to do after an attempt failed, `elapsed_s` after the first one that failed.

    `chance`, from 0 to 1, spreads the retries of messages that failed together.
    """
    reason = mask_secrets(str(error))[:REASON_MAX_CHARS]
    unknown = isinstance(error, OutcomeUnknown)
    if unknown and not takes_key:
        return GiveUpDelivery("unknown", reason)
    if not unknown and not isinstance(error, TransientError):
        return GiveUpDelivery("dead", reason)
    if elapsed_s >= policy.give_up_after_s:
        attempts = "1 attempt" if attempt == 1 else f"{attempt} attempts"
        reason = f"gave up after {attempts} in {elapsed_s:.0f} s: {reason}"
        return GiveUpDelivery("unknown" if unknown else "dead", reason)
    return RetryDelivery(policy.delay_s(attempt, chance))


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
        retry: RetryPolicy = DELIVERY_RETRY,
        find: Callable[[str], Awaitable[ConnectorRegistration]] | None = None,
        on_outcome: Callable[[DeliveryOutcome], None] = lambda outcome: None,
    ) -> None:
        """`find` returns the registration of a connector, or raises `UnknownEntity` or `TransientError`.

        `on_outcome` is called when the outcome of the attempt is on the log.
        """
        self._bus = bus
        self._lane = lane
        self._connectors = connectors
        self._chance = chance
        self._retry = retry
        self._owner = lane.owner
        self._message: OutgoingMessage | None = None
        self._written = 0
        self._find = find or self._find_connector
        self._on_outcome = on_outcome
        # All webhooks share one relay agent, and each has a lane that is named like its outbox.
        named_by = lane.owner.conversation if lane.owner.agent == WEBHOOK_RELAY else lane.owner.agent
        self.connector_id = named_by.partition(":")[2]

    async def work(self) -> bool:
        """Make the attempt and give the lane up. Return whether the message is tried again later.

        Raises `UnreadableMail` for mail that is no relay job, and for a message that cannot be read.
        """
        if not self._lane.mail:  # what was in the lane was deleted
            await self._write(Later(owner=self._owner, delay_s=NO_JOB_DELAY_S, refund=True))
            return True
        message = self._message = await self._read_message()
        if message is None:
            await self._settle()
            return False
        if await self._is_overdue(message):
            reason = "it waited too long behind notifications that the receiver did not take"
            return await self._fail(message, NotTaken(reason), takes_key=True)
        try:
            connector = self._connector(await self._find(self.connector_id))
        except (UnknownEntity, NotTaken, TransientError) as error:
            return await self._fail_unavailable(message, error)
        return await self.send(message, connector)

    async def _fail_unavailable(self, message: OutgoingMessage, error: Exception) -> bool:
        """End an attempt whose connector does not exist, or cannot be opened in this process."""
        if message.notification is not None and isinstance(error, UnknownEntity):  # the webhook was deleted
            await self._settle()
            return False
        if not isinstance(error, TransientError):
            error = NotTaken(f"connector {self.connector_id!r} is not available: {error}")
        # An attempt before this one may have been made with a key. So an attempt without an end counts as unknown.
        return await self._fail(message, error, takes_key=True)

    async def _find_connector(self, connector_id: str) -> ConnectorRegistration:
        found = await retry_call(lambda: find_connector(Log(self._bus), connector_id), self._owner.worker)
        return found.state

    async def _is_overdue(self, message: OutgoingMessage) -> bool:
        """Whether a notification is given up without an attempt, because the receiver has failed for too long.

        Without this, a receiver that takes no connections and gets many events would never get to the recent ones:
        each older one would wait for its own timeout first.
        """
        queued_ms = self._queued_ms(message)
        waited_s = 0.0 if queued_ms is None else (self._lane.clock_ms - queued_ms) / 1000
        if self._lane.attempt > 1 or waited_s < self._retry.give_up_after_s:
            return False
        page = await retry_while_unavailable(
            self._bus, Read(outbox_topic(self.connector_id), None, OVERDUE_READ_MAX), self._owner.worker
        )
        ends = [record.payload["event"] for record in page.records if not record.erased and "of" in record.payload]
        return bool(ends) and ends[-1] in ("dead", "unknown")

    def _queued_ms(self, message: OutgoingMessage) -> int | None:
        """The log clock at which a notification was queued; `None` for one that a person sends again, and for others.

        A notification is tried for some time after its event. A message to a person is tried for some time after its
        first failure, so that it is not given up while it waits.
        """
        return message.queued_ms if message.notification is not None and self._mail.id == message.key else None

    def _connector(self, registration: ConnectorRegistration) -> Connector:
        try:
            return self._connectors(registration)
        except Exception as error:
            failure = Failure.of(error, "it cannot be opened", self.connector_id)
            log_error("a connector cannot be opened", error, connector=self.connector_id, failure_id=failure.id)
            raise NotTaken(failure.text) from error

    def burials(self, failure: Failure) -> Iterator[Settle]:
        """Return settles that give the message up, to be tried in turn, for a lane on which this object keeps failing.

        The message may have been sent before the error, so it becomes unknown. A job whose message was not read becomes
        a dead letter.
        """
        message = self._message
        if message is None:
            if self._lane.mail:
                yield from burial_forms(self._owner, self._mail, failure.cause, self._lane.attempt)
            return
        note = state_record(message.key, self.connector_id, "unknown", reason=failure.cause)
        events = failure_events(message, GiveUpDelivery("unknown", failure.named))
        for records in ((note, *events), (note,)):  # the stream of a deleted conversation takes no event
            yield Settle(owner=self._owner, mail=(self._mail.ref,), records=records)

    @property
    def _mail(self) -> Record:
        return self._lane.mail[0]

    async def _read_message(self) -> OutgoingMessage | None:
        """Read the message from the outbox; `None` if it was deleted with its conversation."""
        item_id = self._mail.headers.get(RELAY_JOB)
        if not isinstance(item_id, str):
            raise UnreadableMail(self._mail, "this mail is not a relay job; send messages to people with `say`")
        find = Find(outbox_topic(self.connector_id), item_id)
        try:
            found: Record | None = await retry_while_unavailable(self._bus, find, self._owner.worker)
            return None if found is None or found.erased else OutgoingMessage.of(found.payload)
        except (MalformedRecord, TypeError, ValueError, LookupError, AttributeError) as error:
            # A record of another program, or of a newer release.
            reason = f"cannot read message {item_id!r} in the outbox of {self.connector_id!r}: {error}"
            raise UnreadableMail(self._mail, mask_secrets(reason)[:REASON_MAX_CHARS]) from error

    async def send(self, message: OutgoingMessage, connector: Connector) -> bool:
        """Send the message and record the result."""
        takes_key = connector.capabilities.takes_key
        try:
            names = dict.fromkeys(attachment.sha256 for attachment in message.attachments)
            files = {name: await self._bus.acall(GetBlob(name)) for name in names}
            if not takes_key:  # last: an attempt that ends before this has certainly sent nothing
                await self._begin(message)
            receipt = await self._send(connector, message, files)
        except (NotTaken, OutcomeUnknown, TransientError, BlobMissing) as error:
            return await self._fail(message, error, takes_key)
        await self._settle(state_record(message.key, self.connector_id, "sent", receipt=receipt.id))
        self._on_outcome("sent")
        return False

    async def _send(
        self, connector: Connector, message: OutgoingMessage, files: Mapping[str, bytes]
    ) -> DeliveryReceipt:
        """Call the connector. An error that it must not raise leaves open whether the message has arrived."""
        try:
            return await connector.send(message, files)
        except (NotTaken, OutcomeUnknown, TransientError):
            raise
        except (Exception, asyncio.CancelledError) as error:
            raise_if_cancelled(error)
            failure = Failure.of(error, "the connector failed", message.key, self._lane.attempt)
            facts = {"connector": self.connector_id, "message_id": message.key, "failure_id": failure.id}
            log_error("a connector failed", error, **facts)
            raise OutcomeUnknown(failure.text) from error

    async def _fail(self, message: OutgoingMessage, error: Exception, takes_key: bool) -> bool:
        """Record a failed attempt, and either retry later or settle the message and report to its conversation."""
        since_ms = await self._failing_since_ms(message)
        elapsed_s = (self._lane.clock_ms - since_ms) / 1000
        decision = after_failed_delivery(error, self._lane.attempt, elapsed_s, takes_key, self._retry, self._chance())
        if isinstance(decision, RetryDelivery):
            unknown = True if isinstance(error, OutcomeUnknown) else None
            reason = mask_secrets(str(error))[:REASON_MAX_CHARS]
            facts = {"reason": reason, "unknown": unknown, "since_ms": since_ms}
            note = state_record(message.key, self.connector_id, "failed", **facts)
            failed = NewRecord(note.topic, note.payload, id=self._note_id("failed"))
            await self._write(Later(owner=self._owner, delay_s=decision.delay_s, records=(failed,)))
            self._on_outcome("retried")
            return True
        if decision.state == "dead" and await self._may_have_arrived(takes_key):
            decision = GiveUpDelivery("unknown", f"{decision.reason}; an earlier attempt may have delivered it")
        note = state_record(message.key, self.connector_id, decision.state, reason=decision.reason)
        try:
            await self._settle(note, *failure_events(message, decision))
        except TopicDeleted:  # the conversation was deleted, so there is no stream to report to
            await self._settle(note)
        self._on_outcome(decision.state)
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

    async def _failing_since_ms(self, message: OutgoingMessage) -> int:
        """Return when the first attempt failed, by the log clock. Attempts whose relays died have recorded nothing.

        For a notification it is when its event happened.
        """
        for before in range(self._lane.attempt - 1, 0, -1):
            failed = await self._find_note("failed", before)
            if failed is not None:
                return int(failed.payload.get("since_ms", self._lane.clock_ms))  # absent in records of 0.2
        queued_ms = self._queued_ms(message)
        return self._lane.clock_ms if queued_ms is None else queued_ms

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


def failure_events(message: OutgoingMessage, decision: GiveUpDelivery) -> tuple[NewRecord, ...]:
    """Return the event that reports a message that was given up to its conversation.

    A notification is not part of its conversation, and its receiver may be none of the reader's business: it is logged.
    """
    if message.notification is not None:
        facts = {"webhook": message.connector, "event_id": message.key, "state": decision.state}
        log.warning("a notification of a webhook was given up", extra={**facts, "reason": decision.reason})
        return ()
    outcome = "may not have arrived" if decision.state == "unknown" else "was not sent"
    event = ErrorEvent(
        conversation_id=message.conversation_id,
        agent=message.agent,
        message_id=message.key,
        code=f"send_{decision.state}",
        message=f"the message to {message.connector} {outcome}: {decision.reason}",
    )
    return (stream_record(event),)
