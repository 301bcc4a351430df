"""Send now, or hold: decided here and nowhere else.

In a run a send is held and goes out in the append of the tool's result. Outside a run it goes out at once, and so does
a steer: it is for a run that may not be under way any more when the tool has ended.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from magent2.bus.delivery import Delivered, Sending, delivering
from magent2.bus.flow import Flow, run
from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Condition, HeadIs, SetHead
from magent2.bus.records import Appended, NewRecord, TopicInfo
from magent2.errors import AddressError, ConditionFailed
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.steering import steering
from magent2.tools.interface import CallScope, HeldSend, current_scope


def send(bus: Engine, envelope: MessageEnvelope, *, steer: bool = False) -> Delivered:
    """Deliver an envelope: held when a run is under way, else, and always as a steer, at once."""
    scope = current_scope()
    if scope is None:
        return run(bus, steering(envelope) if steer else delivering(envelope))
    return urge(scope, envelope) if steer else hold(scope, envelope)


def urge(scope: CallScope, envelope: MessageEnvelope) -> Delivered:
    """Steer from inside a call, under an id of the call: an attempt that runs it again says nothing twice."""
    sending = Sending(principal=scope.run.principal, hops=scope.run.hops + 1)
    with scope.lock:
        named = envelope.model_copy(update={"id": held_id(scope, f"now/{scope.count_urgent()}")})
    return run(scope.run.bus, steering(named, sending))


def hold(scope: CallScope, envelope: MessageEnvelope) -> Delivered:
    """Plan the delivery now, so that a bad address fails the call; let it wait for the call's result."""
    sending = Sending(principal=scope.run.principal, hops=scope.run.hops + 1)
    with scope.lock:
        named = envelope.model_copy(update={"id": held_id(scope, len(scope.sends))})
        if scope.observed is not None:
            sending = replace(sending, trace=scope.trace(named))
        append, delivered = run(scope.run.bus, _planning(named, sending, [held.append for held in scope.sends]))
        scope.hold(HeldSend(named, sending, append))
    return delivered


def planning_again(sends: Iterable[HeldSend]) -> Flow[list[HeldSend]]:
    """The same deliveries as things stand now, after the log has refused them."""
    planned: list[HeldSend] = []
    for held in sends:
        append, _ = yield from _planning(held.envelope, held.sending, [earlier.append for earlier in planned])
        planned.append(replace(held, append=append))
    return planned


def joined(sends: Sequence[HeldSend]) -> tuple[tuple[NewRecord, ...], tuple[SetHead, ...], tuple[Condition, ...]]:
    """All of them as parts of one append, in order: what one of them sets, those after it need not find on the log."""
    records: list[NewRecord] = []
    heads: dict[str, dict[str, Any]] = {}
    conditions: dict[Condition, None] = {}
    for held in sends:
        records.extend(held.append.records)
        conditions.update((item, None) for item in held.append.conditions if not _is_set(heads, item))
        for head in held.append.heads:
            heads[head.topic] = {**head.fields, **heads.get(head.topic, {})}
    return tuple(records), tuple(SetHead(topic, fields) for topic, fields in heads.items()), tuple(conditions)


def _is_set(heads: dict[str, dict[str, Any]], condition: Condition) -> bool:
    return isinstance(condition, HeadIs) and condition.name in heads.get(condition.topic, ())


def _planning(envelope: MessageEnvelope, sending: Sending, earlier: Sequence[Append]) -> Flow[tuple[Append, Delivered]]:
    """Go through the delivery up to its append, as if those before it had happened.

    The delivery is told once that its append was refused: that is when it looks whether the name is free.
    """
    flow = delivering(envelope, sending)
    operation = next(flow)
    told = False
    while not (isinstance(operation, Append) and told):
        if isinstance(operation, Append):
            told = True
            operation = flow.throw(ConditionFailed("not sent yet"))
        else:
            state: tuple[TopicInfo, ...] = yield operation
            operation = flow.send(tuple(_after(info, earlier) for info in state))
    try:
        flow.send(Appended(()))
    except StopIteration as planned:
        return operation, planned.value
    raise AssertionError("a delivery ends with its append")


def _after(info: TopicInfo, earlier: Sequence[Append]) -> TopicInfo:
    if info.deleted:
        raise AddressError(f"{info.topic.partition(':')[2]!r} was deleted; send to another conversation")
    fields = {
        name: value
        for append in reversed(earlier)
        for head in append.heads
        if head.topic == info.topic
        for name, value in head.fields.items()
    }
    return replace(info, head={**info.head, **fields}) if fields else info


def held_id(scope: CallScope, index: int | str) -> str:
    """The same for every attempt at the same call, so that a repeat is told."""
    text = f"{scope.key}\x1f{index}"
    return "send-" + hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
