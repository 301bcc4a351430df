"""Send now, or hold: decided here and nowhere else.

Outside a run a send goes out at once. In a run it is held and goes out in the append of the tool's result, or, inside a
Python block, in the append that ends the block. What cannot wait goes out at once there too, under an id that is the
same in every attempt, so that a second attempt sends nothing twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from magent2.bus.interface import Engine
from magent2.bus.log import Log, run_sync
from magent2.bus.operations import Append
from magent2.bus.retry import retry_on_conflict
from magent2.errors import ConditionFailed, Diverged, InvalidInput, Refused, TopicDeleted
from magent2.mail.delivery import SendOptions, plan_delivery
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.steering import plan_steer
from magent2.tools.call_writer import CallWriter
from magent2.tools.interface import CallScope, FailedSend, HeldSend, Planning, PreparedSend, SendMark, current_scope
from magent2.tools.plan_cache import PlanCache

SEND_TRIES_MAX = 8  # how often the log may move on under one send


@dataclass(frozen=True, slots=True)
class SendResult:
    """A send that has left, or waits to: its id and the topics that it is in, or will be."""

    id: str
    topics: tuple[str, ...]
    held: bool


async def send_or_hold(
    log: Log, prepared: PreparedSend, scope: CallScope | None, send_id: str | None = None
) -> SendResult:
    """The rule. `send_id` is for sends outside a run; in a run it follows from the call."""
    if scope is None:
        return await _send_now(log, prepared, SendMark(send_id or str(uuid4())))
    place = scope.place()
    mark = scope.mark(held_id(scope, place), prepared.target)
    if prepared.now:
        return await _send_now(log, prepared, mark)
    like = scope.plan_cache.plan_like(prepared.way) if scope.block else None
    append = like or await _plan(log, scope.plan_cache, prepared, mark)
    scope.hold(place, HeldSend(mark, prepared, append, planned=like is None))
    return SendResult(mark.id, topics_of(append), held=True)


async def dispatch(bus: Engine, prepared: PreparedSend, scope: CallScope | None) -> SendResult:
    """The rule, where a run can be waited for: what cannot wait leaves under the run's token, noted by its place."""
    if scope is None or scope.call_writer is None or not prepared.now:
        return await send_or_hold(Log(bus), prepared, scope)
    place = scope.place()
    scope.left.add(place)
    known = scope.call_writer.earlier_send(place)
    if known is not None:
        return _same_again(prepared, scope, known)
    mark = scope.mark(held_id(scope, place), prepared.target)
    async with scope.call_writer.exclusive():
        for _ in range(SEND_TRIES_MAX):
            append = await _plan(Log(bus), PlanCache(), prepared, mark)
            sent = SendResult(mark.id, topics_of(append), held=False)
            if await _was_sent(scope.call_writer, place, prepared, sent, append):
                return sent
    raise ConditionFailed(f"{prepared.target} keeps changing; send again")


async def _was_sent(
    call_writer: CallWriter, place: int, prepared: PreparedSend, sent: SendResult, append: Append
) -> bool:
    facts = {"id": sent.id, "tool": prepared.tool, "digest": prepared.digest, "topics": list(sent.topics)}
    try:
        await call_writer.send_now(place, facts, append)
    except (Refused, TopicDeleted):
        return False
    return True


def _same_again(prepared: PreparedSend, scope: CallScope, known: Mapping[str, Any]) -> SendResult:
    """What an earlier attempt has sent from this place is not sent again; it must be the same."""
    if (known["tool"], known["digest"]) != (prepared.tool, prepared.digest):
        scope.diverged = (
            f"an earlier attempt has sent a {known['tool']} here at once, this one would send another {prepared.tool}"
        )
        raise Diverged(scope.diverged)
    return SendResult(known["id"], tuple(known["topics"]), held=False)


def send(bus: Engine, envelope: MessageEnvelope, *, steer: bool = False) -> SendResult:
    """Deliver an envelope: held when a run is under way, else, and always as a steer, at once."""
    scope = current_scope()
    facts = SendOptions() if scope is None else SendOptions(principal=scope.run.principal, hops=scope.run.hops + 1)
    planning = delivery_of(envelope, facts, steer)
    prepared = PreparedSend("chat_send", envelope.recipient, lambda: {"version": 1}, planning, now=steer)
    return run_sync(bus if scope is None else scope.run.bus, send_or_hold, prepared, scope, envelope.id)


def delivery_of(envelope: MessageEnvelope, facts: SendOptions, steer: bool = False) -> Planning:
    """How an envelope is sent, as mail or as a steer."""
    return lambda log, mark: plan_envelope(
        log, envelope.model_copy(update={"id": mark.id}), replace(facts, trace=mark.trace or facts.trace), steer
    )


async def plan_envelope(log: Log, envelope: MessageEnvelope, facts: SendOptions, steer: bool = False) -> Append:
    """The append that delivers an envelope, as mail or as a steer, as things stand."""
    return await plan_steer(log, envelope, facts) if steer else await plan_delivery(log, envelope, facts)


async def plan_held_sends(log: Log, sends: Iterable[HeldSend]) -> tuple[list[HeldSend], list[FailedSend]]:
    """All of them planned, and those that cannot go any more."""
    planned: list[HeldSend] = []
    failures: list[FailedSend] = []
    cache = PlanCache()
    for held in sends:
        try:
            append = held.append if held.planned else await cache.plan(log, held.plan)
        except (InvalidInput, Refused, TopicDeleted) as refusal:
            failures.append(FailedSend(held, str(refusal)))
        else:
            planned.append(HeldSend(held.mark, held.prepared, append))
            cache.note(append)
    return planned, failures


async def replan_held_sends(log: Log, sends: Iterable[HeldSend]) -> tuple[list[HeldSend], list[FailedSend]]:
    """The same sends as things stand now, after the log has refused them; and those that cannot go any more."""
    return await plan_held_sends(log, [replace(held, planned=False) for held in sends])


def topics_of(append: Append) -> tuple[str, ...]:
    return tuple(dict.fromkeys([record.topic for record in append.records]))


def held_id(scope: CallScope, place: int) -> str:
    """The same for every attempt at the same call, so that a repeat is told."""
    text = f"{scope.key}\x1f{place}"
    return "send-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


async def _plan(log: Log, cache: PlanCache, prepared: PreparedSend, mark: SendMark) -> Append:
    return await cache.plan(log, lambda cached: prepared.planning(cached, mark))


async def _send_now(log: Log, prepared: PreparedSend, mark: SendMark) -> SendResult:
    async def attempt() -> SendResult:
        append = await _plan(log, PlanCache(), prepared, mark)
        await log.append(append)
        return SendResult(mark.id, topics_of(append), held=False)

    return await retry_on_conflict(attempt, prepared.target, "send again")
