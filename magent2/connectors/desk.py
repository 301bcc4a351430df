"""What a person sees of outboxes, and can do about what is stuck: send it again, or drop it."""

from __future__ import annotations

from dataclasses import replace

from magent2.bus.flow import Flow
from magent2.bus.mail import errand
from magent2.bus.operations import OLDEST, Append, Read
from magent2.bus.records import ID_MAX_CHARS, NewRecord, Page, Record
from magent2.connectors.outbox import OPEN_STATES, Item, destination_of, fold, told
from magent2.directory.connectors import finding_connector, parse_connector
from magent2.errors import InvalidInput, UnknownCursor, UnknownEntity
from magent2.models.address import outbox_topic

PAGE = 1000


def reading_outbox(connector: str) -> Flow[list[Item]]:
    """Every message that the outbox still has, oldest first."""
    records: list[Record] = []
    after = OLDEST
    topic = outbox_topic(parse_connector(connector))
    while True:
        try:
            page: Page = yield Read(topic, after, PAGE)
        except UnknownCursor:  # it was tidied meanwhile
            records, after = [], OLDEST
            continue
        records += page.records
        if not page.records or page.records[-1].seq >= page.last:
            return list(fold(records).values())
        after = page.records[-1].seq


def finding_item(connector: str, item_id: str) -> Flow[Item]:
    items = yield from reading_outbox(connector)
    for item in items:
        if item.id == item_id:
            return item
    raise UnknownEntity(f"the outbox of {connector!r} has no message {item_id[:80]!r}; `magent2 outbox ls` shows them")


def retrying_item(connector: str, item_id: str) -> Flow[Item]:
    """Send a message again that was given up, or whose outcome nobody knows; it goes behind what waits already."""
    item = yield from _stuck(connector, item_id)
    registration = yield from finding_connector(connector)
    lane = destination_of(registration.state, item.message.target)
    again = errand(connector, lane, item.id, f"again:{item.state_seq}:{item.id}"[:ID_MAX_CHARS])
    yield Append(records=(_decided(item, connector, "retried"), again))
    return (yield from finding_item(connector, item_id))


def dropping_item(connector: str, item_id: str) -> Flow[Item]:
    """Give up a message for good."""
    item = yield from _stuck(connector, item_id)
    yield Append(records=(_decided(item, connector, "dropped"),))
    return (yield from finding_item(connector, item_id))


def _decided(item: Item, connector: str, state: str) -> NewRecord:
    """One decision per state: of two people who decide at once, one is told that it was decided."""
    return replace(told(item.id, connector, state), id=f"decided:{item.state_seq}:{item.id}"[:ID_MAX_CHARS])


def _stuck(connector: str, item_id: str) -> Flow[Item]:
    item = yield from finding_item(connector, item_id)
    if item.state not in OPEN_STATES:
        raise InvalidInput(f"message {item_id[:80]!r} is {item.state}; only what is dead or unknown waits for a person")
    return item
