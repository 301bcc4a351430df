"""The state of a running tool call: the facts of its run, its writer, and the scope that holds its sends.

The runner opens a `CallScope` around each tool call. A message that the call sends is held in the scope and is sent in
the append that records the result of the call. If the call fails, or its worker dies before that append, the message is
never sent. A Python block opens a scope of its own inside that of its call, which holds the messages of the block.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Concatenate, NamedTuple, ParamSpec, Protocol, TypeAlias, TypeVar, cast

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import AnyOperation, Append, Describe, Find, Operation, Read, SetHead
from magent2.bus.records import TopicInfo
from magent2.errors import AddressError, InvalidInput, LimitError, Magent2Error, Refused, ToolError
from magent2.failures import Failure, cause_of, failure_id, log_failure, text_for_users
from magent2.fair_share import FairThreads
from magent2.mail.headers import FIRST_TEXT, LAST_TEXT
from magent2.sessions.history import SendFacts
from magent2.sessions.usage.budgets import CallRoot

if TYPE_CHECKING:
    from pydantic import BaseModel

    from magent2.models.envelope import BaseStreamEvent
    from magent2.telemetry.observation import ObservedToolCall
    from magent2.tools.definition import ToolExecutionContext

TOOL_THREADS_MAX = 64  # synchronous tools that a runner runs at the same time
TOOL_THREADS_PER_PRINCIPAL_MAX = 16  # of them, those of one principal

# What one call or block may hold. All of it must fit into one append of any engine, together with the call's result.
HELD_SENDS_MAX = 100
HELD_MAX_BYTES = 4 << 20
HELD_RECORDS_MAX = 900
HELD_CONDITIONS_MAX = 240
ENVELOPE_BYTES = 512  # estimated size of a message without its text
DISPLAY_FIELDS = frozenset({FIRST_TEXT, LAST_TEXT})  # head fields that do not decide how a later message is planned

SHOWN_TOOL_ERRORS = (ToolError, InvalidInput, Refused)  # their texts are for the caller of the tool
_REPORTED = "_magent2_failure"  # attribute of an error that was reported as the failure of a tool

log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


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

    @property
    def root(self) -> CallRoot:
        """Whose budgets the run uses: the user, and the root of the tree of subagents that the run belongs to."""
        ...


class CallWriter(Protocol):
    """Writes what must be on the log before the call has a result.

    Every append is made under the token of the run's owner: a worker that has lost the lane writes nothing.
    """

    def earlier_send(self, position: int) -> SendFacts | None:
        """Return what an earlier attempt sent immediately at this position."""
        ...

    def earlier_positions(self) -> frozenset[int]:
        """Return the positions of the call at which earlier attempts sent something immediately."""
        ...

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        """Serialize sends of a run: hold this while a send is planned and appended, so that each plan sees the last."""
        ...

    async def send_now(self, position: int, facts: SendFacts, append: Append) -> None:
        """Send, and record the send, in one append.

        Raises `Refused` or `TopicDeleted` when nothing was written; plan the send again.
        """
        ...

    async def begin_once(self, tool: str, digest: str) -> None:
        """Record that a tool that must not run twice is about to run. Raises `OutcomeUnknown` if it was started."""
        ...

    async def set_head(self, head: SetHead) -> None:
        """Set a head with the next append."""
        ...


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


class PlanCache:
    """A cache of reads while sends are planned that are written together. Held sends count as sent.

    A cached read may be out of date. That is safe, because the append carries its conditions: if the log refuses it,
    the sends are planned again.
    """

    __slots__ = ("_heads", "_infos", "_plans", "_reads")

    def __init__(self, held: Iterable[Append] = ()) -> None:
        self._reads: dict[AnyOperation, object] = {}
        self._infos: dict[tuple[str, ...], tuple[TopicInfo, ...]] = {}
        self._plans: dict[Hashable, Append] = {}
        self._heads: dict[str, dict[str, object]] = {}  # fields that held sends will set
        for append in held:
            self.note(append)

    async def plan(
        self, log: Log, planning: Callable[Concatenate[Log, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run `planning` over a log that answers repeated reads from this cache."""
        try:
            return await planning(_CachedLog(log, self), *args, **kwargs)
        except Magent2Error:
            self.forget()  # the next attempt must read again
            raise

    def plan_like(self, key: Hashable | None) -> Append | None:
        """Return the plan of an earlier send with this key, if nothing that it depends on has changed since."""
        return None if key is None else self._plans.get(key)

    def note(self, append: Append, key: Hashable | None = None) -> None:
        """Count `append` as sent: later plans see the heads that it sets."""
        if all(head.fields.keys() <= DISPLAY_FIELDS for head in append.heads):
            self._plans.setdefault(key, append)
        else:
            self._plans.clear()
        if not append.heads:
            return
        for head in append.heads:
            self._heads[head.topic] = {**self._heads.get(head.topic, {}), **head.fields}
        for topics, infos in self._infos.items():
            self._infos[topics] = tuple(map(self._with_held_heads, infos))

    def forget(self) -> None:
        """Drop all reads, because the log may have changed. Held sends still count."""
        self._reads.clear()
        self._infos.clear()
        self._plans.clear()

    async def read(self, log: Log, operation: Read | Find) -> object:
        page = self._reads.get(operation)
        if page is None:
            page = self._reads[operation] = await log.run(operation)
        return page

    async def describe(self, log: Log, operation: Describe) -> tuple[TopicInfo, ...]:
        infos = self._infos.get(operation.topics)
        if infos is None:
            infos = tuple(map(self._with_held_heads, await log.run(operation)))
            self._infos[operation.topics] = infos
        return infos

    def _with_held_heads(self, info: TopicInfo) -> TopicInfo:
        if info.deleted:
            raise AddressError(f"{info.topic.partition(':')[2]!r} was deleted; send to another conversation")
        fields = self._heads.get(info.topic)
        return replace(info, head={**info.head, **fields}) if fields else info


class _CachedLog(Log):
    """The log, with reads answered by a `PlanCache`."""

    __slots__ = ("_cache", "_log")

    def __init__(self, log: Log, cache: PlanCache) -> None:
        super().__init__(log.bus)
        self._log = log
        self._cache = cache

    async def run(self, operation: Operation[R]) -> R:
        if isinstance(operation, Describe):
            return cast("R", await self._cache.describe(self._log, operation))
        if isinstance(operation, Read | Find):
            return cast("R", await self._cache.read(self._log, operation))
        return await self._log.run(operation)

    async def give_way(self) -> None:
        await self._log.give_way()


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

    `block`: the call is a Python block, whose own calls share this scope. While the block calls a tool, `key` is the
    key of that call.
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
    started_agents: list[str] = field(default_factory=list)  # ids of subagents; they stay if the call fails
    depth: int = 0  # nested blocks that run now
    slots: list[ReleasableSlot] = field(default_factory=list)  # of the block and its nested blocks
    wait_hooks: tuple[WaitHook, ...] = ()
    threads: FairThreads | None = None  # where synchronous code of the call runs
    send_key: str = field(init=False)  # the ids of the sends are made of it; it is the key of the model's call
    _positions: int = 0
    _block_calls: int = 0
    _budget: HoldBudget = field(default_factory=HoldBudget)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)  # a tool may send from several threads

    def __post_init__(self) -> None:
        self.send_key = self.key

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

    @contextmanager
    def block_call(self) -> Iterator[None]:
        """Give the tool that a block calls a key of its own: the key of the block and the number of the call in it.

        With one key for the whole block, a receiver that recognises repeats would drop the second call. A block calls
        one tool at a time, apart from nested blocks, and makes the same calls in the same order in every attempt.
        """
        self._block_calls += 1
        outer, self.key = self.key, f"{self.send_key}/{self._block_calls}"
        try:
            yield
        finally:
            self.key = outer

    def mark(self, position: int, target: str) -> SendMark:
        """The mark of the send at a position; its trace span starts here."""
        name = send_id(self.send_key, position)
        if self.observed is None:
            return SendMark(name)
        return SendMark(name, self.observed.send(name, target, self.run.conversation_id))

    def hold(self, position: int, send: HeldSend) -> None:
        with self._lock:
            self._check_open()
            limit = self._budget.add(send)
            if limit:
                unit = "block" if self.block else "tool call"
                raise LimitError(f"one {unit} sends at most {limit}; send the rest in another {unit}")
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
        """Release everything that other runs could use while this call waits for an answer.

        The slot comes back last: a call that waits for its turn in a hook must not hold a slot that others need.
        """
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self.slot_released())
            for hook in self.wait_hooks:
                await stack.enter_async_context(hook())
            yield

    def _check_open(self) -> None:
        if self.ended:
            raise InvalidInput("this tool call has ended and its result is recorded; send in another call")


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


def context_without_scope() -> Context:
    """The current context for a task that other calls need too: it is part of no call, and in no principal's share."""
    context = copy_context()
    context.run(_scope.set, None)
    return context


def tool_failure(tool: str, error: BaseException, scope: CallScope | None = None) -> Failure:
    """Log the failure of a tool, once, and return what the model and the user may see of it.

    A refusal and a `ToolError` are texts for the caller: they are shown, and logged only if they have a cause. The text
    of any other error stays in the log, because a model may repeat to the user whatever it reads. The failure id is
    made of the key of the call: a block that runs again and catches the error must see the same text.
    """
    scope = scope or current_scope()
    parts = () if scope is None else (scope.key,)
    known = getattr(error, _REPORTED, None)
    if isinstance(known, Failure) and (known.id is None or not parts or known.id == failure_id(*parts)):
        return known
    if isinstance(error, SHOWN_TOOL_ERRORS):
        failure = Failure(text_for_users(error) or "", cause_of(error), None, type(error).__name__)
        logged = error.__cause__ is not None and isinstance(error, ToolError)
    else:
        failure, logged = Failure.of(error, f"{tool} failed", *parts), True
    if logged:
        facts: dict[str, object] = {"tool": tool, "failure_id": failure.id, **_run_facts(scope)}
        log_failure(log, logging.WARNING, "a tool failed", error, facts, with_traceback=True)
    setattr(error, _REPORTED, failure)
    return failure


def _run_facts(scope: CallScope | None) -> dict[str, object]:
    if scope is None:
        return {}
    run = scope.run
    return {"run_id": run.run_id, "conversation_id": run.conversation_id, "agent": run.agent, "call": scope.key}


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


async def run_in_tool_thread(own: FairThreads, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a synchronous function of a tool: on the threads of the run, in the share of its principal.

    Outside a run there is no principal, and `own` threads of the tool are used.
    """
    scope = current_scope()
    if scope is None or scope.threads is None:
        return await own.run(None, function, *args, **kwargs)
    return await scope.threads.run(scope.run.principal, function, *args, **kwargs)


class ToolCallExecutor(ThreadPoolExecutor):
    """The default executor of an event loop that runs tools.

    Synchronous tools of the Agents SDK, and asynchronous tools that call `asyncio.to_thread`, use the default executor.
    Their code runs on the threads for tools, in the share of their principal. The threads of this executor are left for
    everything else on the loop, such as the name resolution of HTTP clients.
    """

    def submit(self, fn: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Future[R]:
        scope = current_scope()
        if scope is None or scope.threads is None:
            return super().submit(fn, *args, **kwargs)
        return scope.threads.submit(scope.run.principal, fn, *args, **kwargs)
