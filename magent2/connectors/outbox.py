"""`outbox:{connector}`: what a connector has to send, and what became of each message. A relay works through it.

A message is put there together with mail for the relay: the lanes of the bus keep the order per destination, and give
each destination to one relay at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from magent2.bus.mail import errand
from magent2.bus.records import NewRecord, Record
from magent2.connectors.interface import Outgoing
from magent2.directory.connectors import Registration
from magent2.models.address import outbox_topic

State: TypeAlias = Literal["waiting", "begun", "sent", "dead", "unknown", "dropped"]
OPEN_STATES: tuple[State, ...] = ("dead", "unknown")  # wait for a person


@dataclass(frozen=True, slots=True)
class Item:
    """A message in an outbox, and how it stands. `tries` counts attempts that were noted."""

    seq: int
    message: Outgoing
    state: State = "waiting"
    reason: str | None = None
    receipt: str | None = None
    tries: int = 0
    at_ms: int = 0
    state_seq: int = 0  # of the record that says so

    @property
    def id(self) -> str:
        return self.message.key


def destination_of(connector: Registration, target: str) -> str:
    """The lane of a destination. Nobody can guess it, so nobody can take its name for a conversation."""
    text = f"{connector.key}\x1f{connector.id}\x1f{target}"
    return "to-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def queued(message: Outgoing, connector: Registration) -> tuple[NewRecord, NewRecord]:
    """What puts a message into the outbox."""
    blobs = tuple(dict.fromkeys(attachment.sha256 for attachment in message.attachments))
    facts = {"event": "queued", **message.facts()}
    body = NewRecord(outbox_topic(connector.id), facts, id=message.key, blobs=blobs)
    return body, errand(connector.id, destination_of(connector, message.target), message.key)


def told(item_id: str, connector: str, state: str, **facts: Any) -> NewRecord:
    """What became of it."""
    chosen = {name: value for name, value in facts.items() if value is not None}
    return NewRecord(outbox_topic(connector), {"event": state, "of": item_id, **chosen})


def fold(records: Iterable[Record]) -> dict[str, Item]:
    """The messages of an outbox by id, oldest first; those of deleted conversations are left out."""
    items: dict[str, Item] = {}
    for record in records:
        if record.erased:
            continue
        facts = record.payload
        if facts["event"] == "queued":
            items[record.id] = Item(record.seq, Outgoing.of(facts), at_ms=record.at_ms, state_seq=record.seq)
        elif facts["of"] in items:
            items[facts["of"]] = _after(items[facts["of"]], record)
    return items


def _after(item: Item, record: Record) -> Item:
    facts = record.payload
    state: State = "waiting" if facts["event"] in ("retried", "failed") else facts["event"]
    return replace(
        item,
        state=state,
        reason=facts.get("reason"),
        receipt=facts.get("receipt", item.receipt),
        tries=item.tries + (facts["event"] in ("begun", "failed")),
        at_ms=record.at_ms,
        state_seq=record.seq,
    )
