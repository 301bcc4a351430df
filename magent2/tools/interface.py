"""What a tool call works with while it runs: the facts of its run, and the scope that holds its sends.

The runner opens a `CallScope` around each tool call. A message that the call sends is held in the scope and is sent in
the append that records the result of the call. If the call fails, or its worker dies before that append, the message is
never sent. A Python block opens a scope of its own inside that of its call, which holds the messages of the block.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import Append
from magent2.errors import InvalidInput, LimitError
from magent2.tools.call_writer import CallWriter
from magent2.tools.plan_cache import PlanCache

if TYPE_CHECKING:
    from pydantic import BaseModel

    from magent2.models.envelope import BaseStreamEvent
    from magent2.telemetry.observation import ObservedToolCall
    from magent2.tools.definition import ToolExecutionContext

# What one call or block may hold. All of it must fit into one append of any engine, together with the call's result.
HELD_SENDS_MAX = 100
HELD_MAX_BYTES = 4 << 20
HELD_RECORDS_MAX = 900
HELD_CONDITIONS_MAX = 240
ENVELOPE_BYTES = 512  # estimated size of a message without its text


class RunFacts(Protocol):
    """What a tool may know about the run that calls it."""

    @property
    def conversation_id(self) -> str: ...

    @property
    def agent(self) -> str: ...

    @property
    def run_id(self) -> str: ...

    @property
    def bus(self) -> Engine: ...

    @property
    def hops(self) -> int:
        """How often the message that this run answers was passed on between agents."""
        ...

    @property
    def principal(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class SendMark:
    """The id of a send, which is the same in every attempt, and the name of its trace span, if it is traced."""

    id: str
    trace: str | None = None


# `SendingTool.perform`: the append that sends a payload, as the log is now. Raises a refusal that names the reason.
Perform: TypeAlias = Callable[[Log, Any, "ToolExecutionContext", SendMark], Coroutine[object, object, Append]]


class SendKind(NamedTuple):
    """What decides how a send is planned (`key`), and its text, which does not."""

    key: Hashable
    text: str


@dataclass(frozen=True, slots=True)
class PreparedSend:
    """A validated send that has not been sent: a tool and its payload.

    The plan is made from the payload alone, as the log is at that time. `target` names the recipient for people.
    `now`: it cannot wait for the end of the call. `digest`, for such sends, identifies the caller's arguments.
    """

    tool: str
    target: str
    payload: BaseModel
    context: ToolExecutionContext
    perform: Perform
    now: bool = False
    digest: str = ""
    kind: SendKind | None = None

    @property
    def plan_key(self) -> Hashable | None:
        """Sends with the same key have the same plan but for id and text; `None`: each has its own."""
        return None if self.kind is None else (self.tool, self.kind.key)

    async def plan(self, log: Log, mark: SendMark) -> Append:
        return await self.perform(log, self.payload, self.context, mark)


@dataclass(frozen=True, slots=True)
class HeldSend:
    """A send that waits for the end of its call or block, and the append that would have sent it when it was held.

    If not `planned`, the append is the plan of an earlier send with the same key; its own plan is made at the end.
    """

    mark: SendMark
    prepared: PreparedSend
    append: Append
    planned: bool = True

    @property
    def id(self) -> str:
        return self.mark.id

    async def plan(self, log: Log) -> Append:
        return await self.prepared.plan(log, self.mark)

    @property
    def size(self) -> int:
        """Bytes of its records; estimated from its text if it is planned later."""
        kind, records = self.prepared.kind, self.append.records
        if self.planned or kind is None:
            return sum([len(record.body) for record in records])
        return (len(kind.text.encode()) + ENVELOPE_BYTES) * len(records)


@dataclass(frozen=True, slots=True)
class FailedSend:
    """A held send that was refused when the call ended, and why."""

    send: HeldSend
    reason: str


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """The outcome of a call: its result, why it failed, if it did, and an event of its own for the stream."""

    result: object
    failure: str | None = None
    event: BaseStreamEvent | None = None


class OutcomeBuilder(Protocol):
    """Builds the outcome of a call that succeeds although some of its sends fail.

    The journal calls it when the sends are planned, and again if the log refuses the append and the plans change.
    """

    def build(self, sends: Sequence[HeldSend], failures: Sequence[FailedSend]) -> CallOutcome: ...


class ReleasableSlot(Protocol):
    """A sandbox process or another scarce slot that a call gives back while it waits."""

    async def release(self) -> None: ...

    async def reacquire(self) -> None: ...


# Entered while a call waits for an answer: releases what the run occupies, and takes it again.
WaitHook: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(slots=True)
class HoldBudget:
    """How much of one append the held sends of a call use."""

    size: int = 0
    records: int = 0
    conditions: int = 0  # conditions that several sends share are counted each time
    appends: list[Append] = field(default_factory=list)

    def add(self, send: HeldSend) -> str | None:
        """Count a send, or return the limit that it would exceed and count nothing."""
        append, size = send.append, self.size + send.size
        if len(self.appends) >= HELD_SENDS_MAX:
            return f"{HELD_SENDS_MAX} messages"
        if size > HELD_MAX_BYTES:
            return f"{HELD_MAX_BYTES} bytes"
        if self.records + len(append.records) > HELD_RECORDS_MAX:
            return f"{HELD_RECORDS_MAX} records"
        # Shared conditions are written once. They are counted exactly only when the sum exceeds the limit.
        conditions = self.conditions + len(append.conditions)
        if conditions > HELD_CONDITIONS_MAX:
            distinct = {condition for held in (*self.appends, append) for condition in held.conditions}
            if len(distinct) > HELD_CONDITIONS_MAX:
                return f"{HELD_CONDITIONS_MAX} conditions, about one per recipient"
        self.size = size
        self.records += len(append.records)
        self.conditions = conditions
        self.appends.append(append)
        return None

    def remove(self, send: HeldSend) -> None:
        self.size -= send.size
        self.records -= len(send.append.records)
        self.conditions -= len(send.append.conditions)
        self.appends.remove(send.append)


@dataclass(slots=True)
class CallScope:
    """One tool call in a run. `key` is the same in every attempt; receivers can use it as an idempotency key.

    `block`: the call is a Python block, whose own calls share this scope.
    """

    run: RunFacts
    key: str
    block: bool = False
    observed: ObservedToolCall | None = None
    call_writer: CallWriter | None = None
    outcome: OutcomeBuilder | None = None  # set by a call whose result depends on which sends succeed
    held: dict[int, HeldSend] = field(default_factory=dict)  # by position
    plan_cache: PlanCache = field(default_factory=PlanCache)
    ended: bool = False
    skip_turn: bool = False  # the model need not be called again because of this call
    diverged: str | None = None  # how this attempt differs from an earlier one that sent something immediately
    sent_now: set[int] = field(default_factory=set)  # positions that sent immediately in this attempt
    depth: int = 0  # nested blocks that run now
    slots: list[ReleasableSlot] = field(default_factory=list)  # of the block and its nested blocks
    wait_hooks: tuple[WaitHook, ...] = ()
    _positions: int = 0
    _budget: HoldBudget = field(default_factory=HoldBudget)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)  # a tool may send from several threads

    @property
    def sends(self) -> tuple[HeldSend, ...]:
        """The held sends in call order, also if calls were made concurrently."""
        return tuple(self.held[position] for position in sorted(self.held))

    @property
    def next_position(self) -> int:
        return self._positions

    def take_position(self) -> int:
        """Number the next send of this call, held or immediate."""
        with self._lock:
            self._check_open()
            self._positions += 1
            return self._positions - 1

    def mark(self, position: int, target: str) -> SendMark:
        """The mark of the send at a position; its trace span starts here."""
        name = send_id(self.key, position)
        if self.observed is None:
            return SendMark(name)
        return SendMark(name, self.observed.send(name, target, self.run.conversation_id))

    def hold(self, position: int, send: HeldSend) -> None:
        with self._lock:
            self._check_open()
            limit = self._budget.add(send)
            if limit:
                what, more = ("block", "block") if self.block else ("call of a tool", "call")
                raise LimitError(f"one {what} sends at most {limit}; send the rest in another {more}")
            self.held[position] = send
            if send.planned:
                self.plan_cache.note(send.append, send.prepared.plan_key)

    def discard_from(self, position: int) -> None:
        """Discard the sends that are held from this position on."""
        with self._lock:
            for held in [held for held in self.held if held >= position]:
                self._budget.remove(self.held.pop(held))
            self.plan_cache = PlanCache(send.append for send in self.sends)

    @asynccontextmanager
    async def slot_released(self) -> AsyncIterator[None]:
        """Release the slot of the innermost block while its call waits.

        A call that is cancelled while it waits does not take the slot again: its block has ended.
        """
        slot = self.slots[-1] if self.slots else None
        if slot is None:
            yield
            return
        await slot.release()
        try:
            yield
        except Exception:
            await slot.reacquire()
            raise
        await slot.reacquire()

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """Release everything that other runs could use while this call waits for an answer."""
        async with AsyncExitStack() as stack:
            for hook in self.wait_hooks:
                await stack.enter_async_context(hook())
            await stack.enter_async_context(self.slot_released())
            yield

    def _check_open(self) -> None:
        if self.ended:
            raise InvalidInput("this call of a tool has ended, its result is recorded; send in another call")


def send_id(call_key: str, position: int) -> str:
    """The id of a send.

    It depends on nothing but the call and the position, so that a repeated attempt sends under the same ids and the log
    recognises what it already has.
    """
    return "send-" + hashlib.blake2b(f"{call_key}\x1f{position}".encode(), digest_size=16).hexdigest()


_scope: ContextVar[CallScope | None] = ContextVar("magent2_call_scope", default=None)


def current_scope() -> CallScope | None:
    """The tool call that this code runs in, if a run made one."""
    return _scope.get()


@contextmanager
def call_scope(scope: CallScope) -> Iterator[CallScope]:
    """Make this the scope of the enclosed code and of the tasks it starts.

    Tasks that still run afterwards keep the scope, but can send nothing: the result of the call is already recorded.
    """
    token = _scope.set(scope)
    try:
        yield scope
    finally:
        scope.ended = True
        _scope.reset(token)
