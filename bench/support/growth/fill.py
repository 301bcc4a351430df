"""A log with very many conversations: copies of one that a worker has answered, written with large appends."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from bench.support.growth.turns import ConversationTurns
from magent2.bus.base import EngineBase
from magent2.bus.log import Log
from magent2.bus.operations import RECORDS_PER_APPEND_MAX, Append, Claim, SetHead
from magent2.bus.records import NewRecord, Record
from magent2.bus.retention import RetentionPolicy
from magent2.models.address import chat_topic, conversation_topics, stream_topic
from magent2.sessions.sweep import SweepResult, sweep_log

SESSIONS_PER_OWNER = 100  # so that a page of one owner's sessions is full at every size
FAILED_EVERY = 100  # conversations
LEASE_S = 15.0


@dataclass(frozen=True, slots=True)
class ConversationTemplate:
    """The records of a conversation with one turn, as they are after the compaction of its tokens.

    `text` has them as JSON. `names` are the names in it that differ from one conversation to the next.
    """

    agent: str
    text: str
    names: tuple[str, ...]
    records: int

    def copy(self, number: int) -> tuple[list[NewRecord], SetHead]:
        """The records and the head of one more conversation."""
        conversation, *ids = self.names
        text = self.text.replace(conversation, conversation_name(number))
        for name in ids:
            text = text.replace(name, _new_id(name))
        found, head = orjson.loads(text)
        records = [NewRecord(topic, payload, record_id, headers) for topic, payload, record_id, headers in found]
        for record in records:
            if record.topic == chat_topic(self.agent):
                record.lane = None  # settled: it is no work for a worker any more
        owner = f"user:{number // SESSIONS_PER_OWNER}"
        status = "finished" if (number + 1) % FAILED_EVERY else "failed"
        topic = stream_topic(conversation_name(number))
        return records, SetHead(topic, {**head, "owner": owner, "run_status": status, "title": f"Offer {number}"})


def conversation_name(number: int) -> str:
    return f"session-{number:07}"


def _new_id(name: str) -> str:
    """An id of the same length: the prefix of the old one, and another number."""
    new = uuid.uuid4()
    return str(new) if name.count("-") == str(new).count("-") else name.partition("-")[0] + "-" + new.hex


async def template(engine: EngineBase, agent: str) -> ConversationTemplate:
    """Have one turn of an agent of the SDK with a tool, remove its tokens, and read what is left."""
    one = ConversationTurns.open(engine, agent, lambda: 0.0)
    conversation = f"template-{uuid.uuid4().hex}"
    await one.have_turns(conversation, 1)
    log = Log(engine)
    await sweep(log)
    inbox = chat_topic(agent)
    found: list[Record] = []
    for topic in (*conversation_topics(conversation), inbox):
        page = await log.read(topic, 0, RECORDS_PER_APPEND_MAX)
        found += (record for record in page.records if record.payload["conversation_id"] == conversation)
    (stream,) = await log.describe(stream_topic(conversation))
    mail = next(record for record in found if record.topic == inbox)
    run: str = stream_run(found)
    text = orjson.dumps([[_fields(record) for record in found], stream.head]).decode()
    names = (conversation, str(mail.payload["id"]), mail.id, run)
    return ConversationTemplate(agent, text, names, len(found))


def stream_run(records: list[Record]) -> str:
    return next(str(record.payload["run_id"]) for record in records if "run_id" in record.payload)


def _fields(record: Record) -> list[Any]:
    assigned = record.id.startswith("@")
    return [record.topic, record.payload, None if assigned else record.id, dict(record.headers)]


async def fill(engine: EngineBase, copied: ConversationTemplate, before: int, after: int) -> None:
    """Write the conversations from one number to another, and let the inbox be sorted as a worker does."""
    for records, heads in _appends(copied, range(before, after)):
        await engine.acall(Append(records=tuple(records), heads=tuple(heads)))
    more = True
    while more:
        claim = Claim(worker="growth", agents=(copied.agent,), limit=0, lease_s=LEASE_S)
        more = (await engine.acall(claim)).more


def _appends(copied: ConversationTemplate, numbers: range) -> Iterator[tuple[list[NewRecord], list[SetHead]]]:
    records: list[NewRecord] = []
    heads: list[SetHead] = []
    for number in numbers:
        more, head = copied.copy(number)
        if len(records) + len(more) > RECORDS_PER_APPEND_MAX:
            yield records, heads
            records, heads = [], []
        records += more
        heads.append(head)
    if records:
        yield records, heads


async def sweep(log: Log) -> SweepResult:
    """Visit every conversation, and remove all tokens of complete messages."""
    return await sweep_log(log, RetentionPolicy(tokens_after_s=0.0), time.time_ns() // 1_000_000)
