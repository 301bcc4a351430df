"""Retention of outboxes: what was delivered, or given up for good, goes after a while; all else stays.

The oldest are dropped from the log. What lies behind a message that still waits cannot be dropped without it, so it is
emptied where it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from magent2.bus.log import Log
from magent2.bus.operations import OLDEST, Trim
from magent2.bus.records import Record
from magent2.bus.retention import forget_records
from magent2.errors import UnknownCursor
from magent2.models.address import chat_topic, outbox_topic, relay_agent

DELIVERED_KEPT_S = 7 * 86_400.0
DELIVERED_KEPT_MAX = 10_000  # of one connector, the latest
DONE = ("sent", "dropped")  # nobody does anything about them any more
PAGE = 1000


@dataclass(frozen=True, slots=True)
class OutboxLine:
    """A record of an outbox, without its content: the message that it is about, `None` where that was erased."""

    seq: int
    item: str | None


@dataclass(slots=True)
class OutboxIndex:
    """All lines of an outbox, and when each message was done with; `None` for one that is not."""

    lines: list[OutboxLine] = field(default_factory=list)
    done_ms: dict[str, int | None] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        facts = record.payload
        if record.erased:
            self.lines.append(OutboxLine(record.seq, None))
        elif facts["event"] == "queued":
            self.lines.append(OutboxLine(record.seq, record.id))
            self.done_ms[record.id] = None
        else:
            self.lines.append(OutboxLine(record.seq, facts["of"]))
            if facts["of"] in self.done_ms:
                self.done_ms[facts["of"]] = record.at_ms if facts["event"] in DONE else None


def old_items(done_ms: dict[str, int | None], now_ms: int, kept_s: float, kept_max: int) -> frozenset[str]:
    """The messages that may go."""
    done = sorted(((at, item) for item, at in done_ms.items() if at is not None), reverse=True)
    late = now_ms - round(kept_s * 1000)
    return frozenset(item for place, (at, item) in enumerate(done) if place >= kept_max or at <= late)


def plan_trim(book: OutboxIndex, old: frozenset[str]) -> tuple[int, list[int]]:
    """Up to which seq everything may go; and what after it is to be emptied."""
    through = 0
    for line in book.lines:
        if _stays(book, line, old):
            break
        through = line.seq
    return through, [line.seq for line in book.lines if line.seq > through and line.item in old]


def _stays(book: OutboxIndex, line: OutboxLine, old: frozenset[str]) -> bool:
    """A line about a message whose beginning is gone tells nobody anything."""
    return line.item is not None and line.item in book.done_ms and line.item not in old


async def trim_outbox(
    log: Log, connector: str, now_ms: int, kept_s: float = DELIVERED_KEPT_S, kept_max: int = DELIVERED_KEPT_MAX
) -> int:
    """How many messages went. It may be repeated, and cut short anywhere; messages that come meanwhile stay."""
    topic = outbox_topic(connector)
    try:
        book = await _read_lines(log, topic)
    except UnknownCursor:  # somebody else tidies it at this moment
        return 0
    old = old_items(book.done_ms, now_ms, kept_s, kept_max)
    through, emptied = plan_trim(book, old)
    if through:
        await log.run(Trim(topic, through=through))
    await forget_records(log, topic, emptied)
    await log.run(
        Trim(chat_topic(relay_agent(connector)), max_age_s=kept_s)
    )  # the relay's errands; never one that waits
    return len(old)


async def _read_lines(log: Log, topic: str) -> OutboxIndex:
    book, after = OutboxIndex(), OLDEST
    while True:
        page = await log.read(topic, after, PAGE)
        for record in page.records:
            book.add(record)
        if not page.records or page.records[-1].seq >= page.last:
            return book
        after = page.records[-1].seq
