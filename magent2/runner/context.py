"""The input of a run: the message that it answers, its earlier records, its writer, and the messages that steer it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, cast

from magent2.bus.interface import Engine
from magent2.bus.lane_writer import LaneWriter
from magent2.bus.records import MailRef, NewRecord
from magent2.context.block import bus_message_block
from magent2.models.envelope import MessageEnvelope
from magent2.models.events import ReceiptEvent, ReceivedMessage
from magent2.models.json_types import JsonObject
from magent2.models.run_options import NO_OPTIONS, RunOptions
from magent2.runner.circuit import Circuits
from magent2.sessions.folds import steer_items
from magent2.sessions.history import History, RunKey, RunRecord, SeenSteer, message_id_of
from magent2.sessions.usage.budgets import NO_ROOT, Busy, CallRoot, Reached
from magent2.sessions.usage.state import BudgetState, refuse
from magent2.tools.interface import WaitHook

if TYPE_CHECKING:
    from agents import TResponseInputItem

    from magent2.telemetry.observation import ObservedRun

ModelRequest: TypeAlias = "str | list[TResponseInputItem]"

TALK = "message"  # the kind of a run that answers a message of the conversation
TURN_MAX_BYTES = 128 << 10  # of new steers in one request; the rest waits for the next request


@dataclass(frozen=True, slots=True)
class Steer:
    """A message to a running run. `ref` is the mail that carries it, which stays in the lane until an answer saw it."""

    id: str
    source: str
    text: str
    ref: MailRef

    @property
    def payload(self) -> SeenSteer:
        return {"id": self.id, "source": self.source, "text": self.text, "seq": self.ref.seq}


async def no_steers() -> Sequence[Steer]:
    """The steers of a run that cannot be steered: none."""
    return ()


async def go_on() -> None:
    """Do not stop the run between turns."""


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A tool call that waits for approval. `client`: it is a tool of the client, and waits for its output."""

    turn: int
    id: str
    name: str
    arguments: str
    speaker: str
    client: bool = False


@dataclass(slots=True)
class RunContext:
    """One attempt at one run; also the run context that the SDK hands to tools.

    `run` is what earlier attempts recorded. `closing` are records that need not be on the log before the run ends: they
    are written by the append that settles it, which also takes `closing_mail` from the lane. `unfinished` builds, for
    each call that is running, the records to write there if the run is stopped.
    A runner awaits `calls_changed` when a call was added to `unfinished` or removed from it, and may be held there.
    Before each model call, it awaits `between_turns`, where the run may be stopped, and then `steers`: the messages to
    the run that no answer has seen.
    A runner that ends with calls in `waiting` is paused. It is started again when `run.decisions` has a decision on
    each of them.
    """

    envelope: MessageEnvelope
    agent: str
    attempt: int
    bus: Engine
    writer: LaneWriter
    history: History
    run: RunRecord
    hops: int = 0
    principal: str | None = None
    kind: str = TALK  # from the mail's header; `tool` and `route` are runs without a conversation with a model
    options: RunOptions = NO_OPTIONS  # those of the message
    closing: list[NewRecord] = field(default_factory=list)
    closing_mail: list[MailRef] = field(default_factory=list)
    unfinished: dict[tuple[int, str], Callable[[], Sequence[NewRecord]]] = field(default_factory=dict)
    calls_changed: Callable[[], Awaitable[None]] = go_on
    between_turns: Callable[[], Awaitable[None]] = go_on
    observed: ObservedRun | None = None  # set when metrics or traces are on
    steers: Callable[[], Awaitable[Sequence[Steer]]] = no_steers
    waiting: list[WaitingCall] = field(default_factory=list)
    usage: JsonObject | None = None  # of a run with calls in `waiting`
    circuits: Circuits = field(default_factory=Circuits)  # those of the worker
    mcp_unavailable: dict[str, str] = field(default_factory=dict)  # MCP server → why it has no tools in this run
    waits: tuple[WaitHook, ...] = ()  # called while a tool of the run waits for an answer
    budgets: BudgetState = field(default_factory=BudgetState)  # that of the worker
    root: CallRoot = NO_ROOT  # whose budgets the run uses
    # Awaited where a budget is used up. A run that can be paused does not return from it.
    budget_reached: Callable[[Reached | Busy], Awaitable[None]] = refuse
    # Gives the records of a model call that is cut off, for the append that ends the attempt.
    open_call: Callable[[], Sequence[NewRecord]] = tuple

    @property
    def ends_with_calls(self) -> bool:
        """Whether the run ends here, because it has called tools of a client that sends no outputs to it."""
        return self.options.after_tool_calls == "end" and any(call.client for call in self.waiting)

    @property
    def conversation_id(self) -> str:
        return self.envelope.conversation_id

    @property
    def run_id(self) -> str:
        return self.run.run

    @property
    def key(self) -> RunKey:
        return RunKey(self.conversation_id, self.run_id, self.agent)

    def message_id(self, turn: int) -> str:
        return message_id_of(self.run_id, turn)


class SteerLedger:
    """The steers of one attempt, and their positions in its model requests.

    A steer first appears at the end of a request. The SDK does not know of it, so it is inserted into every later
    request of the run again, at the same position: behind the same number of the SDK's own items.
    One append records the first answer to a request with the steer and takes the steer from the lane.
    """

    def __init__(self, run: RunRecord) -> None:
        self._by_turn: dict[int, Sequence[SeenSteer]] = {turn: run.steers(turn) for turn in run.answers}
        self._positions: dict[int, int] = {}  # turn → the number of the SDK's items before its steers
        self._recorded: set[MailRef] = set()
        self._new: tuple[Steer, ...] = ()
        self._new_position = 0

    def pass_turn(self, turn: int, request: ModelRequest) -> None:
        """Skip a turn whose answer is recorded. Its steers are at the end of the request, which is not sent."""
        if self._by_turn.get(turn):
            self._positions[turn] = len(items_of(request))

    def take(self, waiting: Sequence[Steer]) -> None:
        """Choose the new steers of the next request. A repeated request has the same ones, and those that came since.

        At least one is taken, then as many as fit into `TURN_MAX_BYTES`.
        """
        room = TURN_MAX_BYTES
        new: list[Steer] = []
        for steer in (steer for steer in waiting if steer.ref not in self._recorded):
            room -= len(steer.text.encode())
            if new and room < 0:
                break
            new.append(steer)
        self._new = tuple(new)

    def insert_into(self, request: ModelRequest) -> ModelRequest:
        """The request with all steers of the run at their positions."""
        if not self._new and not self._positions:
            return request
        items = items_of(request)
        self._new_position = len(items)
        tail = _steer_items(steer.payload for steer in self._new)
        for turn in sorted(self._positions, reverse=True):
            # A handoff may have shortened what the SDK sends. Then the steer moves to the new end, and stays there.
            position = self._positions[turn] = min(self._positions[turn], len(items))
            tail = [*_steer_items(self._by_turn[turn]), *items[position:], *tail]
            items = items[:position]
        return [*items, *tail]

    def count_before(self, position: int) -> int:
        """How many steers are in the request before this item of the SDK."""
        return sum(len(self._by_turn[turn]) for turn, place in self._positions.items() if place < position)

    def end_turn(self, turn: int) -> tuple[Steer, ...]:
        """The model has answered. Return the steers that it saw for the first time."""
        new, self._new = self._new, ()
        if new:
            self._by_turn[turn] = [steer.payload for steer in new]
            self._positions[turn] = self._new_position
            self._recorded |= {steer.ref for steer in new}
        return new


def items_of(request: ModelRequest) -> list[TResponseInputItem]:
    return [{"role": "user", "content": request}] if isinstance(request, str) else list(request)


def _steer_items(steers: Iterable[SeenSteer]) -> list[TResponseInputItem]:
    return cast("list[TResponseInputItem]", steer_items(steers, bus_message_block))


def receipt(conversation: str, steers: Sequence[Steer]) -> ReceiptEvent:
    """The event that tells the senders of steers that an answer saw them."""
    messages = [
        ReceivedMessage(id=steer.id, source=steer.source, seq=steer.ref.seq, outcome="seen", text=steer.text)
        for steer in steers
    ]
    return ReceiptEvent(conversation_id=conversation, messages=messages)
