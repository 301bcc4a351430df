"""How many runs per second one worker can claim, record and settle."""

from __future__ import annotations

import asyncio
from statistics import median

from bench.support.report import Envelope, Scale, Stopwatch, envelope
from magent2.bus.base import EngineBase
from magent2.bus.operations import RECORDS_PER_APPEND_MAX, Append, Claim, OwnedAppend, SetHead, Settle
from magent2.bus.records import ClaimedLane, NewRecord

CONCURRENCY = 64  # runs of the worker at a time
CLAIM_AT = 32  # free slots at which the worker claims more
LEASE_S = 30.0


async def lanes_per_s(bus: EngineBase, scale: Scale) -> float:
    """Claim, append of 2, settle with 2; the median of the rounds, after one to warm up."""
    figures = [await _round(bus, f"Bench{number}", scale.lanes) for number in range(scale.rounds + 1)]
    return median(figures[1:])


async def _round(bus: EngineBase, agent: str, lanes: int) -> float:
    mail = [_mail(agent, f"{agent}-{number}") for number in range(lanes)]
    for start in range(0, lanes, RECORDS_PER_APPEND_MAX):
        await bus.acall(Append(records=tuple(mail[start : start + RECORDS_PER_APPEND_MAX])))
    with Stopwatch() as watch:
        await drain(bus, agent, lanes)
    return lanes / watch.seconds


def _mail(agent: str, conversation: str) -> NewRecord:
    payload = envelope(conversation, f"agent:{agent}")
    return NewRecord(f"chat:{agent}", payload, payload["id"])


async def drain(bus: EngineBase, agent: str, lanes: int) -> None:
    """Work like one worker until this many lanes are settled."""
    running: set[asyncio.Task[None]] = set()
    settled = 0
    while settled < lanes:
        if CONCURRENCY - len(running) >= CLAIM_AT:
            claims = await bus.acall(
                Claim(worker="bench", agents=(agent,), limit=CONCURRENCY - len(running), lease_s=LEASE_S)
            )
            running |= {asyncio.create_task(_work(bus, lane)) for lane in claims.lanes}
            if claims.lanes or claims.more:
                continue
        if not running:
            raise RuntimeError(f"{settled} of {lanes} lanes were handed out, and the rest is nowhere")
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        settled += len([task.result() for task in done])


async def _work(bus: EngineBase, lane: ClaimedLane) -> None:
    """The records of an echo run."""
    conversation, head = lane.owner.conversation, lane.mail[0]
    stream, text = f"stream:{conversation}", head.payload["content"]
    started = NewRecord(stream, _event(conversation, "run", status="started"))
    token = NewRecord(stream, _event(conversation, "token", text=text, index=0))
    output = NewRecord(stream, _event(conversation, "output", text=text))
    end = NewRecord(f"history:{conversation}", _event(conversation, "end", text=text))
    await bus.acall(OwnedAppend(owner=lane.owner, n=1, records=(started, token)))
    await bus.acall(Settle(owner=lane.owner, mail=(head.ref,), records=(output, end)))


def _event(conversation: str, kind: str, **fields: object) -> Envelope:
    return {"event": kind, "conversation_id": conversation, "run_id": f"run-{conversation}", **fields}


async def converse(bus: EngineBase, agent: str, conversations: int) -> None:
    """Create conversations with one message, one answer and a head, as delivery and a worker do."""
    for number in range(conversations):
        conversation = f"{agent}-{number}"
        payload = envelope(conversation, f"agent:{agent}")
        topics = (f"chat:{agent}", f"chat:{conversation}", f"stream:{conversation}")
        head = SetHead(f"stream:{conversation}", {"owner": "ada", "title": "Three offers", "agent": agent})
        await bus.acall(
            Append(records=tuple(NewRecord(topic, payload, payload["id"]) for topic in topics), heads=(head,))
        )
    await drain(bus, agent, conversations)
