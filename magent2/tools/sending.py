"""Send now, or hold: decided here and nowhere else.

Outside a run a send goes out at once. In a run it is held and goes out in the append of the tool's result, or, inside a
Python block, in the append that ends the block. What cannot wait goes out at once there too, under an id that is the
same in every attempt, so that a second attempt sends nothing twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from magent2.bus.flow import Flow, arun, run
from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Condition, HeadIs, SetHead
from magent2.bus.records import AppendResult, NewRecord
from magent2.errors import ConditionFailed, Diverged, InvalidInput, Refused, TopicDeleted
from magent2.mail.delivery import Sending, planning
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.steering import steering
from magent2.tools.call_writer import Pen
from magent2.tools.interface import CallScope, Failure, HeldSend, Planning, Prepared, SendMark, current_scope
from magent2.tools.plan_cache import Outlook

__all__ = [
    "Failure",
    "Sent",
    "dispatch",
    "held_id",
    "joined",
    "planning_again",
    "planning_delivery",
    "planning_rest",
    "send",
    "sending",
    "topics_of",
]

SEND_TRIES_MAX = 8  # how often the log may move on under one send


@dataclass(frozen=True, slots=True)
class Sent:
    """A send that has left, or waits to: its id and the topics that it is in, or will be."""

    id: str
    topics: tuple[str, ...]
    held: bool


def sending(prepared: Prepared, scope: CallScope | None, send_id: str | None = None) -> Flow[Sent]:
    """The rule. `send_id` is for sends outside a run; in a run it follows from the call."""
    if scope is None:
        return (yield from _leaving(prepared, SendMark(send_id or str(uuid4()))))
    place = scope.place()
    mark = scope.mark(held_id(scope, place), prepared.target)
    if prepared.now:
        return (yield from _leaving(prepared, mark))
    like = scope.outlook.plan_like(prepared.way) if scope.block else None
    append = like or (yield from scope.outlook.through(prepared.planning(mark)))
    scope.hold(place, HeldSend(mark, prepared, append, planned=like is None))
    return Sent(mark.id, topics_of(append), held=True)


async def dispatch(bus: Engine, prepared: Prepared, scope: CallScope | None) -> Sent:
    """The rule, where a run can be waited for: what cannot wait leaves under the run's token, noted by its place."""
    if scope is None or scope.pen is None or not prepared.now:
        return await arun(bus, sending(prepared, scope))
    place = scope.place()
    scope.left.add(place)
    known = scope.pen.left(place)
    if known is not None:
        return _same_again(prepared, scope, known)
    mark = scope.mark(held_id(scope, place), prepared.target)
    async with scope.pen.alone():
        for _ in range(SEND_TRIES_MAX):
            append = await arun(bus, Outlook().through(prepared.planning(mark)))
            sent = Sent(mark.id, topics_of(append), held=False)
            if await _has_left(scope.pen, place, prepared, sent, append):
                return sent
    raise ConditionFailed(f"{prepared.target} keeps changing; send again")


async def _has_left(pen: Pen, place: int, prepared: Prepared, sent: Sent, append: Append) -> bool:
    facts = {"id": sent.id, "tool": prepared.tool, "digest": prepared.digest, "topics": list(sent.topics)}
    try:
        await pen.leave(place, facts, append)
    except (Refused, TopicDeleted):
        return False
    return True


def _same_again(prepared: Prepared, scope: CallScope, known: Mapping[str, Any]) -> Sent:
    """What an earlier attempt has sent from this place is not sent again; it must be the same."""
    if (known["tool"], known["digest"]) != (prepared.tool, prepared.digest):
        scope.diverged = (
            f"an earlier attempt has sent a {known['tool']} here at once, this one would send another {prepared.tool}"
        )
        raise Diverged(scope.diverged)
    return Sent(known["id"], tuple(known["topics"]), held=False)


def send(bus: Engine, envelope: MessageEnvelope, *, steer: bool = False) -> Sent:
    """Deliver an envelope: held when a run is under way, else, and always as a steer, at once."""
    scope = current_scope()
    facts = Sending() if scope is None else Sending(principal=scope.run.principal, hops=scope.run.hops + 1)
    planning = delivery_of(envelope, facts, steer)
    prepared = Prepared("chat_send", envelope.recipient, lambda: {"version": 1}, planning, now=steer)
    return run(bus if scope is None else scope.run.bus, sending(prepared, scope, envelope.id))


def delivery_of(envelope: MessageEnvelope, facts: Sending, steer: bool = False) -> Planning:
    """How an envelope is sent, as mail or as a steer."""
    return lambda mark: planning_delivery(
        envelope.model_copy(update={"id": mark.id}), replace(facts, trace=mark.trace or facts.trace), steer
    )


def planning_delivery(envelope: MessageEnvelope, facts: Sending, steer: bool = False) -> Flow[Append]:
    """The append that delivers an envelope, as mail or as a steer, as things stand."""
    return _planning_steer(envelope, facts) if steer else planning(envelope, facts)


def _planning_steer(envelope: MessageEnvelope, facts: Sending) -> Flow[Append]:
    """Go through the delivery up to its append."""
    flow = steering(envelope, facts)
    operation = next(flow)
    while not isinstance(operation, Append):
        found = yield operation
        operation = flow.send(found)
    flow.close()
    return operation


def planning_rest(sends: Iterable[HeldSend]) -> Flow[tuple[list[HeldSend], list[Failure]]]:
    """All of them planned, and those that cannot go any more."""
    planned: list[HeldSend] = []
    failures: list[Failure] = []
    outlook = Outlook()
    for held in sends:
        try:
            append = held.append if held.planned else (yield from outlook.through(held.prepared.planning(held.mark)))
        except (InvalidInput, Refused, TopicDeleted) as refusal:
            failures.append(Failure(held, str(refusal)))
        else:
            planned.append(HeldSend(held.mark, held.prepared, append))
            outlook.note(append)
    return planned, failures


def planning_again(sends: Iterable[HeldSend]) -> Flow[tuple[list[HeldSend], list[Failure]]]:
    """The same sends as things stand now, after the log has refused them; and those that cannot go any more."""
    return planning_rest([replace(held, planned=False) for held in sends])


def joined(sends: Sequence[HeldSend]) -> tuple[tuple[NewRecord, ...], tuple[SetHead, ...], tuple[Condition, ...]]:
    """All of them as parts of one append, in order: what one of them sets, those after it need not find on the log."""
    records: list[NewRecord] = []
    heads: dict[str, dict[str, Any]] = {}
    conditions: dict[Condition, None] = {}
    for held in sends:
        records.extend(held.append.records)
        conditions.update((item, None) for item in held.append.conditions if not _is_set(heads, item))
        for head in held.append.heads:
            heads[head.topic] = {**heads.get(head.topic, {}), **head.fields}
    return tuple(records), tuple(SetHead(topic, fields) for topic, fields in heads.items()), tuple(conditions)


def topics_of(append: Append) -> tuple[str, ...]:
    return tuple(dict.fromkeys([record.topic for record in append.records]))


def held_id(scope: CallScope, place: int) -> str:
    """The same for every attempt at the same call, so that a repeat is told."""
    text = f"{scope.key}\x1f{place}"
    return "send-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _leaving(prepared: Prepared, mark: SendMark) -> Flow[Sent]:
    for _ in range(SEND_TRIES_MAX):
        append = yield from Outlook().through(prepared.planning(mark))
        try:
            _appended: AppendResult = yield append
        except ConditionFailed:
            continue
        return Sent(mark.id, topics_of(append), held=False)
    raise ConditionFailed(f"{prepared.target} keeps changing; send again")


def _is_set(heads: dict[str, dict[str, Any]], condition: Condition) -> bool:
    return isinstance(condition, HeadIs) and condition.name in heads.get(condition.topic, ())
