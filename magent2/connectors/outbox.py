"""`outbox:{connector}`: what a connector has to send, and what became of each message. A relay works through it.

A message is put there together with mail for the relay: the lanes of the bus keep the order per destination, and give
each destination to one relay at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from magent2.bus.log import Log
from magent2.bus.operations import OLDEST, Append
from magent2.bus.records import ID_MAX_CHARS, NewRecord, Record
from magent2.connectors.interface import OutgoingMessage
from magent2.directory.connectors import ConnectorRegistration, find_connector, parse_connector
from magent2.errors import InvalidInput, UnknownCursor, UnknownEntity
from magent2.mail.addressing import relay_job
from magent2.models.address import outbox_topic

OutboxState: TypeAlias = Literal["waiting", "begun", "sent", "dead", "unknown", "dropped"]
OPEN_STATES: tuple[OutboxState, ...] = ("dead", "unknown")  # wait for a person


@dataclass(frozen=True, slots=True)
class OutboxItem:
    """A message in an outbox, and how it stands. `tries` counts attempts that were noted."""

    seq: int
    message: OutgoingMessage
    state: OutboxState = "waiting"
    reason: str | None = None
    receipt: str | None = None
    tries: int = 0
    at_ms: int = 0
    state_seq: int = 0  # of the record that says so

    @property
    def id(self) -> str:
        return self.message.key


def destination_of(connector: ConnectorRegistration, target: str) -> str:
    """The lane of a destination. Nobody can guess it, so nobody can take its name for a conversation."""
    text = f"{connector.key}\x1f{connector.id}\x1f{target}"
    return "to-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def queue_records(message: OutgoingMessage, connector: ConnectorRegistration) -> tuple[NewRecord, NewRecord]:
    """What puts a message into the outbox."""
    blobs = tuple(dict.fromkeys(attachment.sha256 for attachment in message.attachments))
    facts = {"event": "queued", **message.facts()}
    body = NewRecord(outbox_topic(connector.id), facts, id=message.key, blobs=blobs)
    return body, relay_job(connector.id, destination_of(connector, message.target), message.key)


def state_record(item_id: str, connector: str, state: str, **facts: Any) -> NewRecord:
    """What became of it."""
    chosen = {name: value for name, value in facts.items() if value is not None}
    return NewRecord(outbox_topic(connector), {"event": state, "of": item_id, **chosen})


def fold_outbox(records: Iterable[Record]) -> dict[str, OutboxItem]:
    """The messages of an outbox by id, oldest first; those of deleted conversations are left out."""
    items: dict[str, OutboxItem] = {}
    for record in records:
        if record.erased:
            continue
        facts = record.payload
        if facts["event"] == "queued":
            items[record.id] = OutboxItem(
                record.seq, OutgoingMessage.of(facts), at_ms=record.at_ms, state_seq=record.seq
            )
        elif facts["of"] in items:
            items[facts["of"]] = _after(items[facts["of"]], record)
    return items


def _after(item: OutboxItem, record: Record) -> OutboxItem:
    facts = record.payload
    state: OutboxState = "waiting" if facts["event"] in ("retried", "failed") else facts["event"]
    return replace(
        item,
        state=state,
        reason=facts.get("reason"),
        receipt=facts.get("receipt", item.receipt),
        tries=item.tries + (facts["event"] in ("begun", "failed")),
        at_ms=record.at_ms,
        state_seq=record.seq,
    )


# --- What a person sees of outboxes, and can do about what is stuck: send it again, or drop it.

PAGE = 1000


async def read_outbox(log: Log, connector: str) -> list[OutboxItem]:
    """Every message that the outbox still has, oldest first."""
    records: list[Record] = []
    after = OLDEST
    topic = outbox_topic(parse_connector(connector))
    while True:
        try:
            page = await log.read(topic, after, PAGE)
        except UnknownCursor:  # it was tidied meanwhile
            records, after = [], OLDEST
            continue
        records += page.records
        if not page.records or page.records[-1].seq >= page.last:
            return list(fold_outbox(records).values())
        after = page.records[-1].seq


async def find_item(log: Log, connector: str, item_id: str) -> OutboxItem:
    items = await read_outbox(log, connector)
    for item in items:
        if item.id == item_id:
            return item
    raise UnknownEntity(f"the outbox of {connector!r} has no message {item_id[:80]!r}; `magent2 outbox ls` shows them")


async def retry_item(log: Log, connector: str, item_id: str) -> OutboxItem:
    """Send a message again that was given up, or whose outcome nobody knows; it goes behind what waits already."""
    item = await _find_stuck(log, connector, item_id)
    registration = await find_connector(log, connector)
    lane = destination_of(registration.state, item.message.target)
    again = relay_job(connector, lane, item.id, f"again:{item.state_seq}:{item.id}"[:ID_MAX_CHARS])
    await log.append(Append(records=(_decided(item, connector, "retried"), again)))
    return await find_item(log, connector, item_id)


async def drop_item(log: Log, connector: str, item_id: str) -> OutboxItem:
    """Give up a message for good."""
    item = await _find_stuck(log, connector, item_id)
    await log.append(Append(records=(_decided(item, connector, "dropped"),)))
    return await find_item(log, connector, item_id)


def _decided(item: OutboxItem, connector: str, state: str) -> NewRecord:
    """One decision per state: of two people who decide at once, one is told that it was decided."""
    return replace(state_record(item.id, connector, state), id=f"decided:{item.state_seq}:{item.id}"[:ID_MAX_CHARS])


async def _find_stuck(log: Log, connector: str, item_id: str) -> OutboxItem:
    item = await find_item(log, connector, item_id)
    if item.state not in OPEN_STATES:
        raise InvalidInput(f"message {item_id[:80]!r} is {item.state}; only what is dead or unknown waits for a person")
    return item
