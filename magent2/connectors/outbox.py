"""The outbox `outbox:{connector}`: the messages that a connector has to send, and what became of each.

A message is appended together with a relay job, which is mail for the relay. The lanes of the bus keep the order per
destination and give each destination to one relay at a time.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias, get_args

from magent2.bus.log import Log
from magent2.bus.operations import OLDEST, Append, Trim
from magent2.bus.records import ID_MAX_CHARS, NewRecord, Record
from magent2.bus.retention import forget_records, trim_steps
from magent2.connectors.interface import OutgoingMessage
from magent2.directory.connectors import ConnectorRegistration, find_connector, list_connector_ids, parse_connector
from magent2.errors import InvalidInput, UnknownCursor, UnknownEntity
from magent2.mail.addressing import relay_job
from magent2.models.address import WEBHOOK_PREFIX, chat_topic, check_name, outbox_topic, relay_agent

log = logging.getLogger(__name__)

OutboxState: TypeAlias = Literal["waiting", "begun", "sent", "dead", "unknown", "dropped"]
OutboxEvent: TypeAlias = Literal["begun", "failed", "sent", "dead", "unknown", "retried", "dropped"]
OUTBOX_EVENTS = frozenset(get_args(OutboxEvent))
OPEN_STATES: tuple[OutboxState, ...] = ("dead", "unknown")  # a person decides what happens next
DONE_STATES: tuple[OutboxState, ...] = ("sent", "dropped")  # nothing happens any more

DELIVERED_KEPT_S = 7 * 86_400.0
DELIVERED_KEPT_MAX = 10_000  # the latest of one connector
PAGE = 1000


@dataclass(frozen=True, slots=True)
class OutboxItem:
    """A message in an outbox and its state. `tries` counts the attempts that were recorded."""

    seq: int
    message: OutgoingMessage
    state: OutboxState = "waiting"
    reason: str | None = None
    receipt: str | None = None
    tries: int = 0
    at_ms: int = 0
    state_seq: int = 0  # of the record that set the state

    @property
    def id(self) -> str:
        return self.message.key


# --- records


def destination_of(connector: ConnectorRegistration, target: str) -> str:
    """Return the lane of a destination.

    The key of the connector makes the name impossible to guess, so no client can create a conversation of that name.
    A webhook is one destination. Its lane has the name of its outbox, which no conversation can have.
    """
    if connector.id.startswith(WEBHOOK_PREFIX):
        return outbox_topic(connector.id)
    text = f"{connector.key}\x1f{connector.id}\x1f{target}"
    return "to-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def queue_records(message: OutgoingMessage, connector: ConnectorRegistration) -> tuple[NewRecord, NewRecord]:
    """Return the records that put a message into the outbox: the message and its relay job."""
    blobs = tuple(dict.fromkeys(attachment.sha256 for attachment in message.attachments))
    facts = {"event": "queued", **message.facts()}
    body = NewRecord(outbox_topic(connector.id), facts, id=message.key, blobs=blobs)
    return body, relay_job(connector.id, destination_of(connector, message.target), message.key)


def state_record(item_id: str, connector: str, event: OutboxEvent, **facts: str | bool | int | None) -> NewRecord:
    """Return the record that says what became of a message. Facts that are `None` are left out."""
    given = {name: value for name, value in facts.items() if value is not None}
    return NewRecord(outbox_topic(connector), {"event": event, "of": item_id, **given})


def fold_outbox(records: Iterable[Record]) -> dict[str, OutboxItem]:
    """Return the messages of an outbox by id, oldest first, without those of deleted conversations.

    A message that cannot be read is left out: the relay moves its job to the dead letters. An event that a newer
    release has added changes no state.
    """
    items: dict[str, OutboxItem] = {}
    for record in records:
        if record.erased:
            continue
        facts = record.payload
        if facts.get("event") == "queued":
            try:
                message = OutgoingMessage.of(facts)
            except (TypeError, ValueError, LookupError, AttributeError) as error:
                where = {"topic": record.topic, "seq": record.seq, "error": str(error)}
                log.warning("a message in an outbox cannot be read", extra=where)
                continue
            items[record.id] = OutboxItem(record.seq, message, at_ms=record.at_ms, state_seq=record.seq)
        elif facts.get("of") in items and facts.get("event") in OUTBOX_EVENTS:
            items[facts["of"]] = _with_state(items[facts["of"]], record)
    return items


def _with_state(item: OutboxItem, record: Record) -> OutboxItem:
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


async def _read_records(log: Log, topic: str) -> AsyncIterator[Record]:
    """Read a whole outbox, page by page. Raises `UnknownCursor` if records are trimmed meanwhile."""
    after = OLDEST
    while True:
        page = await log.read(topic, after, PAGE)
        for record in page.records:
            yield record
        if not page.records or page.records[-1].seq >= page.last:
            return
        after = page.records[-1].seq


# --- administration: list messages, retry or drop those that wait for a person


def check_outbox(name: str) -> str:
    """Return the name of an outbox: a connector, or `webhook:{id}`. Raises `InvalidInput`."""
    return check_name(name, "outbox") if name.startswith(WEBHOOK_PREFIX) else parse_connector(name)


async def list_outboxes(log: Log) -> list[str]:
    """Return the names of all outboxes: of connectors that were ever registered, and of webhooks with deliveries."""
    names = await list_connector_ids(log)
    before: tuple[int, str] | None = None
    while True:
        page = await log.topics(outbox_topic(WEBHOOK_PREFIX), before=before, limit=PAGE)
        names += [info.topic.removeprefix(outbox_topic("")) for info in page.topics if info.last > info.floor]
        before = page.next
        if before is None:
            return names


async def read_outbox(log: Log, connector: str) -> list[OutboxItem]:
    """Return every message that is still in the outbox, oldest first."""
    topic = outbox_topic(check_outbox(connector))
    while True:
        try:
            records = [record async for record in _read_records(log, topic)]
        except UnknownCursor:  # a relay trimmed the outbox meanwhile
            continue
        return list(fold_outbox(records).values())


async def find_item(log: Log, connector: str, item_id: str) -> OutboxItem:
    items = await read_outbox(log, connector)
    for item in items:
        if item.id == item_id:
            return item
    raise UnknownEntity(
        f"the outbox of {connector!r} has no message {item_id[:80]!r}; list its messages with `magent2 outbox ls`"
    )


async def retry_item(log: Log, connector: str, item_id: str) -> OutboxItem:
    """Send a dead or unknown message again, behind the messages to that destination that wait by now."""
    item = await _find_open(log, connector, item_id)
    lane = await _lane_of(log, item)
    job = relay_job(connector, lane, item.id, f"again:{item.state_seq}:{item.id}"[:ID_MAX_CHARS])
    await log.append(Append(records=(_decision_record(item, connector, "retried"), job)))
    return await find_item(log, connector, item_id)


async def _lane_of(log: Log, item: OutboxItem) -> str:
    connector = item.message.connector
    if connector.startswith(WEBHOOK_PREFIX):
        return outbox_topic(connector)
    return destination_of((await find_connector(log, connector)).state, item.message.target)


async def drop_item(log: Log, connector: str, item_id: str) -> OutboxItem:
    """Give up a dead or unknown message for good."""
    item = await _find_open(log, connector, item_id)
    await log.append(Append(records=(_decision_record(item, connector, "dropped"),)))
    return await find_item(log, connector, item_id)


async def _find_open(log: Log, connector: str, item_id: str) -> OutboxItem:
    item = await find_item(log, connector, item_id)
    if item.state not in OPEN_STATES:
        raise InvalidInput(
            f"message {item_id[:80]!r} is {item.state}; only dead and unknown messages can be retried or dropped"
        )
    return item


def _decision_record(item: OutboxItem, connector: str, event: OutboxEvent) -> NewRecord:
    """Return a decision under an id that each state has once.

    If two people decide at the same time, the second append is refused with `IdConflict`, and nothing is sent twice.
    """
    return replace(state_record(item.id, connector, event), id=f"decided:{item.state_seq}:{item.id}"[:ID_MAX_CHARS])


# --- retention: messages that are done are removed after a while, all others stay


@dataclass(frozen=True, slots=True)
class OutboxLine:
    """A record of an outbox without its content: the id of its message, `None` if the record was erased."""

    seq: int
    item: str | None


@dataclass(slots=True)
class OutboxIndex:
    """All lines of an outbox, and the time at which each message was done; `None` for one that is not done."""

    lines: list[OutboxLine] = field(default_factory=list)
    done_ms: dict[str, int | None] = field(default_factory=dict)
    done_states: tuple[OutboxState, ...] = DONE_STATES

    def add(self, record: Record) -> None:
        facts = record.payload
        if record.erased:
            self.lines.append(OutboxLine(record.seq, None))
        elif facts.get("event") in OUTBOX_EVENTS and isinstance(item := facts.get("of"), str):
            self.lines.append(OutboxLine(record.seq, item))
            if item in self.done_ms:
                self.done_ms[item] = record.at_ms if facts["event"] in self.done_states else None
        else:  # a message; also a record that this release does not know, which stays as a message does
            self.lines.append(OutboxLine(record.seq, record.id))
            self.done_ms[record.id] = None


def old_items(done_ms: dict[str, int | None], now_ms: int, kept_s: float, kept_max: int) -> frozenset[str]:
    """Return the messages to remove: done for longer than `kept_s`, or not among the latest `kept_max`."""
    done = sorted(((at, item) for item, at in done_ms.items() if at is not None), reverse=True)
    oldest_kept = now_ms - round(kept_s * 1000)
    return frozenset(item for rank, (at, item) in enumerate(done) if rank >= kept_max or at <= oldest_kept)


def plan_trim(index: OutboxIndex, old: frozenset[str]) -> tuple[int, list[int]]:
    """Return the seq up to which the log can be trimmed, and the seqs after it that have to be erased.

    A log can only be trimmed from its beginning. Old records behind a message that stays are erased where they are.
    """
    through = 0
    for line in index.lines:
        # A line stays if its message does. Lines about a message that was removed before are of no use.
        if line.item is not None and line.item in index.done_ms and line.item not in old:
            break
        through = line.seq
    return through, [line.seq for line in index.lines if line.seq > through and line.item in old]


async def trim_outbox(
    log: Log, connector: str, now_ms: int, kept_s: float = DELIVERED_KEPT_S, kept_max: int = DELIVERED_KEPT_MAX
) -> int:
    """Remove old messages that are done, and return how many.

    A notification that was given up is done too: it is of little use after days, and there may be many of them. May be
    repeated, and interrupted anywhere. Messages that arrive meanwhile stay.
    """
    topic = outbox_topic(connector)
    index = OutboxIndex(
        done_states=(*DONE_STATES, *OPEN_STATES) if connector.startswith(WEBHOOK_PREFIX) else DONE_STATES
    )
    try:
        async for record in _read_records(log, topic):
            index.add(record)
    except UnknownCursor:  # another relay is trimming the outbox
        return 0
    old = old_items(index.done_ms, now_ms, kept_s, kept_max)
    through, erased = plan_trim(index, old)
    if through:
        async for _ in trim_steps(log, Trim(topic, through=through)):
            pass
    await forget_records(log, topic, erased)
    # Relay jobs go by their age. Trim never removes mail that waits in a lane.
    async for _ in trim_steps(log, Trim(chat_topic(relay_agent(connector)), max_age_s=kept_s)):
        pass
    return len(old)
