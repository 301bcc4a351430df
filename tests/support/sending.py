"""A minimal run for sending tools, its call writer, and the append that ends a call."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field
from typing import cast

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Append, SetHead
from magent2.bus.records import NewRecord
from magent2.errors import OutcomeUnknown, Refused, TopicDeleted
from magent2.sessions.history import SendFacts
from magent2.sessions.usage.budgets import NO_ROOT, CallRoot
from magent2.tools.interface import CallScope, FailedSend
from magent2.tools.sending import plan_held_sends, replan_held_sends


@dataclass(frozen=True)
class Facts:
    """The facts of a run that sending tools use."""

    bus: Engine
    conversation_id: str = "one"
    agent: str = "Ada"
    run_id: str = "run-1"
    hops: int = 0
    principal: str | None = None
    root: CallRoot = NO_ROOT


@dataclass
class LogCallWriter:
    """A call writer that stores its records on the log and reads them again in the next attempt."""

    bus: Engine
    call: str = "call"
    begun: set[tuple[str, str]] = field(default_factory=set)

    @property
    def topic(self) -> str:
        return f"call:{self.call}"

    def earlier_send(self, position: int) -> SendFacts | None:
        sent = {record.payload["place"]: record.payload for record in self.bus.read(self.topic)}.get(position)
        return None if sent is None else cast(SendFacts, sent)

    def earlier_positions(self) -> frozenset[int]:
        return frozenset(record.payload["place"] for record in self.bus.read(self.topic))

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def send_now(self, position: int, facts: SendFacts, append: Append) -> None:
        note = NewRecord(self.topic, {"place": position, **facts})
        await self.bus.acall(Append(records=(note, *append.records), conditions=append.conditions, heads=append.heads))

    async def begin_once(self, tool: str, digest: str) -> None:
        if (tool, digest) in self.begun:
            raise OutcomeUnknown(f"{tool} was begun already")
        self.begun.add((tool, digest))

    async def set_head(self, head: SetHead) -> None:
        note = NewRecord(f"{self.topic}:heads", {"topic": head.topic})
        await self.bus.acall(Append(records=(note,), heads=(head,)))


def scope_of(facts: Facts, *, block: bool = True, call: str = "call", call_writer: bool = True) -> CallScope:
    """The scope of one attempt at a call."""
    return CallScope(
        facts, f"{facts.run_id}/0/{call}", block, call_writer=LogCallWriter(facts.bus, call) if call_writer else None
    )


def commit(scope: CallScope) -> list[FailedSend]:
    """End a call successfully: send the held messages in one append, except those that the log now refuses.

    There is no check before the append, so only the conditions of the append can refuse a message.
    """
    bus = scope.run.bus
    sends, failures = run_sync(bus, plan_held_sends, scope.sends)
    while sends:
        first, *others = (held.append for held in sends)
        try:
            bus.call(first.merge(*others))
        except (Refused, TopicDeleted):
            sends, more = run_sync(bus, replan_held_sends, sends)
            failures += more
        else:
            break
    return failures
