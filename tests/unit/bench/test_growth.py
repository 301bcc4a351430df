"""The parts of `make bench-growth`: copies of a conversation, and counts of what is read."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bench.support.growth.fill import conversation_name, fill, template
from bench.support.growth.turns import ConversationTurns
from magent2.bus.operations import Describe, Lanes, Read, Topics
from magent2.bus.sqlite import SqliteBus
from magent2.models.address import conversation_topics
from magent2.sessions.history import HistoryCache

AGENT = "Echo"
FIRST, LAST = 0, 120  # more than one append


@pytest.fixture
async def bus(tmp_path: Path) -> AsyncIterator[SqliteBus]:
    bus = SqliteBus(tmp_path / "log.db")
    yield bus
    await bus.aclose()


async def test_copies_are_conversations_that_wait_for_nothing(bus: SqliteBus) -> None:
    copied = await template(bus, AGENT)

    await fill(bus, copied, FIRST, LAST)

    listed = await bus.acall(Topics("stream:", limit=1000))
    assert len(listed.topics) == LAST + 1  # and the template
    assert await bus.acall(Lanes(AGENT)) == ()


async def test_a_copy_has_the_records_of_a_conversation_without_its_tokens(bus: SqliteBus) -> None:
    copied = await template(bus, AGENT)

    await fill(bus, copied, FIRST, LAST)

    name = conversation_name(LAST - 1)
    lengths = [info.last for info in await bus.acall(Describe(conversation_topics(name)))]
    assert sum(lengths) == copied.records - 1  # the other one is in the inbox
    history = await HistoryCache(bus).read(name)
    assert [run.end["status"] for run in history.runs.values() if run.end] == ["finished"]
    shown = await bus.acall(Read(f"stream:{name}", 0, 100))
    assert all(record.payload["conversation_id"] == name for record in shown.records)


async def test_a_worker_that_knows_the_conversation_reads_only_its_mail(bus: SqliteBus) -> None:
    conversations = ConversationTurns.open(bus, AGENT, lambda: 0.0)

    (turn,) = await conversations.measure(3, 1)

    assert turn.records == 2  # the claim and the feed of steers each return the message
    assert turn.items == 4 * 3 + 1  # three earlier runs of four items, and the question
