"""Operations of audited workers on a lane: each one also appends an entry to the audit topic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TypeVar

from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Later, Operation, OwnedAppend, Settle
from magent2.bus.records import ClaimedLane, MailRef, NewRecord
from magent2.errors import TransientError
from tests.support.audit import HANDED_BACK, SEEN, SETTLED, STARTED, entry

R = TypeVar("R")

PERSIST_MAX = 50  # attempts before a worker gives up on an unavailable bus
PERSIST_PAUSE_S = 0.1


def mail_to(agent: str, conversations: Sequence[str], control: bool = False) -> Append:
    """One message for each lane."""
    topic = f"control:{agent}" if control else f"chat:{agent}"
    return Append(
        records=tuple(
            NewRecord(topic, {"conversation_id": conversation, "sender": "user:ann"}) for conversation in conversations
        )
    )


def start_append(trail: str, lane: ClaimedLane) -> OwnedAppend:
    return OwnedAppend(owner=lane.owner, n=1, records=(_step(trail, STARTED, lane, 1),))


def steer_append(trail: str, lane: ClaimedLane, n: int) -> OwnedAppend:
    """Take the last mail of the claim as a steer."""
    seen = (lane.mail[-1].ref,)
    return OwnedAppend(owner=lane.owner, n=n, mail=seen, records=(_step(trail, SEEN, lane, n, seen),))


def settle_append(trail: str, lane: ClaimedLane, n: int) -> Settle:
    """End the run of the first mail of the claim."""
    head = (lane.mail[0].ref,)
    return Settle(owner=lane.owner, mail=head, records=(_step(trail, SETTLED, lane, n, head),))


def hand_back_append(trail: str, lane: ClaimedLane, n: int, delay_s: float) -> Later:
    return Later(owner=lane.owner, delay_s=delay_s, records=(_step(trail, HANDED_BACK, lane, n),))


def _step(trail: str, act: str, lane: ClaimedLane, n: int, mail: tuple[MailRef, ...] = ()) -> NewRecord:
    return NewRecord(trail, entry(act, lane, n, mail))


async def acall_with_retry(engine: Engine, operation: Operation[R]) -> R:
    """Retry an operation until the bus answers. Repeating the same object is safe."""
    for _ in range(PERSIST_MAX):
        try:
            return await engine.acall(operation)
        except TransientError:
            await asyncio.sleep(PERSIST_PAUSE_S)
    return await engine.acall(operation)


def call_with_retry(engine: Engine, operation: Operation[R]) -> R:
    """`acall_with_retry` for synchronous code."""
    for _ in range(PERSIST_MAX):
        try:
            return engine.call(operation)
        except TransientError:
            time.sleep(PERSIST_PAUSE_S)
    return engine.call(operation)
