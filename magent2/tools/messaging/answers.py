"""What came of a message that somebody waits for: the text of the run that answers it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, cast

from magent2.bus.interface import Engine
from magent2.bus.operations import OLDEST, Find
from magent2.bus.records import Record
from magent2.errors import Refused
from magent2.models.address import stream_topic
from magent2.sessions.exchange import Exchange


def shown_id(envelope_id: str) -> str:
    """The id of the event that shows mail in the conversation it goes to."""
    return f"shown:{envelope_id}"


async def answer_to(bus: Engine, conversation: str, envelope_id: str, timeout_s: float) -> dict[str, Any]:
    """`answer` is the text, or `None` with the reason: nobody has answered yet, or the run has failed."""
    try:
        async with asyncio.timeout(timeout_s):
            exchange = await _ended(bus, conversation, envelope_id)
    except TimeoutError:
        return {"answer": None, "reason": f"no answer within {timeout_s:g} s; it may still come"}
    if exchange.status == "finished":
        return {"answer": exchange.text}
    return {"answer": None, "reason": f"the run has {exchange.status}: {exchange.reason or 'no reason is known'}"}


async def _ended(bus: Engine, conversation: str, envelope_id: str) -> Exchange:
    topic = stream_topic(conversation)
    shown: Record | None = await bus.acall(Find(topic, shown_id(envelope_id)))
    exchange = Exchange(envelope_id)
    records = bus.follow(topic, OLDEST if shown is None else shown.seq)
    async with aclosing(cast("AsyncGenerator[Record]", records)) as found:
        async for record in found:
            exchange.take(record)
            if exchange.status is not None:
                return exchange
    raise Refused(f"{conversation!r} was deleted before it had an answer")
