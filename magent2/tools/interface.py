"""What a tool meets while it runs in a run: who it works for, and where its sends wait.

The runner opens a scope around each call of a tool. A send inside it is held and leaves in the append that records the
tool's result; when the call fails, or its worker dies before that append, it never leaves. A Python block opens a scope
of its own inside that of its call, and what its calls send waits for the block.
"""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import Append
from magent2.errors import InvalidInput, LimitError
from magent2.tools.call_writer import CallWriter
from magent2.tools.hold_limit import HoldBudget
from magent2.tools.plan_cache import PlanCache

if TYPE_CHECKING:
    from magent2.models.envelope import BaseStreamEvent
    from magent2.telemetry.observation import ObservedToolCall

HELD_SENDS_MAX = 100  # of one call or block
ENVELOPE_BYTES = 512  # of a message besides its text, or so


class RunFacts(Protocol):
    """What a tool may know of the run it works for."""

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
        """How often the message that this run answers had been passed on."""
        ...

    @property
    def principal(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class SendMark:
    """What a send goes under: its id, the same in every attempt, and the span that it is traced by, if it is."""

    id: str
    trace: str | None = None


# Makes the append that is the send, as things stand now; a refusal names the reason.
Planning: TypeAlias = Callable[[Log, SendMark], Coroutine[Any, Any, Append]]


class SendKind(NamedTuple):
    """What a send is besides its text: those of one tool that go the same `way` are planned alike."""

    way: Hashable
    text: str


@dataclass(slots=True)
class PreparedSend:
    """A send that was checked and has not left. Read only.

    `target` is whom it goes to in a person's words; `payload()` all that `planning` goes by, as JSON with a `version`.
    `now`: it cannot wait for the end of a call or a block. `digest` is of what its caller asked for.
    `kind`: what of it decides how it is planned, if that can be told.
    """

    tool: str
    target: str
    payload: Callable[[], Mapping[str, Any]]
    planning: Planning
    now: bool = False
    digest: str = ""
    kind: SendKind | None = None

    @property
    def way(self) -> Hashable | None:
        return None if self.kind is None else (self.tool, self.kind.way)


@dataclass(frozen=True, slots=True)
class HeldSend:
    """A send that waits for its call or its block, and the append that would do it as things stood when it was held.

    Not `planned`: the append is that of another send which would go the same way; its own is made when it leaves.
    """

    mark: SendMark
    prepared: PreparedSend
    append: Append
    planned: bool = True

    @property
    def id(self) -> str:
        return self.mark.id

    async def plan(self, log: Log) -> Append:
        """Its own append, as the log stands now."""
        return await self.prepared.planning(log, self.mark)


@dataclass(frozen=True, slots=True)
class FailedSend:
    """A held send that cannot leave any more, and why."""

    send: HeldSend
    reason: str


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What a call comes to: its result, why it failed if it did, and an event of its own for the stream."""

    result: Any
    failure: str | None = None
    event: BaseStreamEvent | None = None


class OutcomeBuilder(Protocol):
    """Words the result of a call once it is known which of its sends leave: the others fail by name."""

    def told(self, sends: Sequence[HeldSend], failures: Sequence[FailedSend]) -> CallOutcome: ...


class ReleasableSlot(Protocol):
    """A place that code can give up while it waits, and take again."""

    async def leave(self) -> None: ...

    async def come_back(self) -> None: ...


# Around a wait: what the run gives up meanwhile.
WaitHook: TypeAlias = Callable[[], AbstractAsyncContextManager[None]]


@dataclass(slots=True)
class CallScope:
    """One call of a tool in a run. `key` is the same in every attempt: hand it to receivers that take one.

    `block`: it is a Python block, whose calls share this scope. `closing` words the result of a call that goes on
    although some of its sends cannot leave.
    """

    run: RunFacts
    key: str
    block: bool = False
    observed: ObservedToolCall | None = None
    call_writer: CallWriter | None = None
    closing: OutcomeBuilder | None = None
    held: dict[int, HeldSend] = field(default_factory=dict)
    plan_cache: PlanCache = field(default_factory=PlanCache)  # what its sends are planned by
    ended: bool = False
    skip_turn: bool = False  # the model need not be asked again because of this call
    diverged: str | None = None  # how this attempt differs from an earlier one that has sent something
    left: set[int] = field(default_factory=set)  # places that something was sent from at once
    depth: int = 0  # blocks inside this one that are at work
    parked: list[ReleasableSlot] = field(default_factory=list)  # who gives up a place while a call of it waits
    waits: tuple[WaitHook, ...] = ()
    _places: int = 0
    _weight: HoldBudget = field(default_factory=HoldBudget)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)  # a tool may send from several threads

    @property
    def sends(self) -> tuple[HeldSend, ...]:
        """In the order of the calls, also where several were made at once."""
        return tuple(self.held[place] for place in sorted(self.held))

    def mark(self, send_id: str, target: str) -> SendMark:
        """A send begins, also for whoever looks on."""
        if self.observed is None:
            return SendMark(send_id)
        return SendMark(send_id, self.observed.send(send_id, target, self.run.conversation_id))

    def place(self) -> int:
        """The number of the next send, held or not."""
        with self._lock:
            self._check_open()
            self._places += 1
            return self._places - 1

    def hold(self, place: int, send: HeldSend) -> None:
        with self._lock:
            self._check_open()
            many = f"{HELD_SENDS_MAX} messages" if len(self.held) >= HELD_SENDS_MAX else None
            full = many or self._weight.add(send.append, _bytes_of(send))
            if full:
                what, more = ("block", "block") if self.block else ("call of a tool", "call")
                raise LimitError(f"one {what} sends at most {full}; send the rest in another {more}")
            self.held[place] = send
            if send.planned:
                self.plan_cache.note(send.append, send.prepared.way)

    def drop_from(self, place: int) -> int:
        """Forget what is held from this place on; how many that were."""
        with self._lock:
            dropped = [held for held in self.held if held >= place]
            for held in dropped:
                send = self.held.pop(held)
                self._weight.take(send.append, _bytes_of(send))
            self.plan_cache = PlanCache(send.append for send in self.sends)
            return len(dropped)

    @property
    def next_place(self) -> int:
        return self._places

    @asynccontextmanager
    async def aside(self) -> AsyncIterator[None]:
        """While code of this call waits for something else: its block's place goes to others."""
        parking = self.parked[-1] if self.parked else None
        if parking is None:
            yield
            return
        await parking.leave()
        try:
            yield
        except Exception:
            await parking.come_back()
            raise
        await parking.come_back()  # a call that was cancelled does not come back: its block is over

    @asynccontextmanager
    async def waiting(self) -> AsyncIterator[None]:
        """While the call waits for an answer: it gives up all that others could use meanwhile."""
        async with AsyncExitStack() as stack:
            for wait in self.waits:
                await stack.enter_async_context(wait())
            await stack.enter_async_context(self.aside())
            yield

    def _check_open(self) -> None:
        if self.ended:
            raise InvalidInput("this call of a tool has ended, its result is recorded; send in another call")


def _bytes_of(send: HeldSend) -> int:
    """How large its records are; or will be, for one that is planned later."""
    kind, records = send.prepared.kind, send.append.records
    if send.planned or kind is None:
        return sum([len(record.body) for record in records])
    return (len(kind.text.encode()) + ENVELOPE_BYTES) * len(records)


_scope: ContextVar[CallScope | None] = ContextVar("magent2_call_scope", default=None)


def current_scope() -> CallScope | None:
    """The call that this code runs in, if a run has made one."""
    return _scope.get()


@contextmanager
def call_scope(scope: CallScope) -> Iterator[CallScope]:
    """Code in here, and what it starts, works for this call. What still runs afterwards can send nothing any more."""
    token = _scope.set(scope)
    try:
        yield scope
    finally:
        scope.ended = True
        _scope.reset(token)
