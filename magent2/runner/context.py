"""What a run is given: who it is for, what is recorded of it, and the writer of its records."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from magent2.bus.interface import Engine
from magent2.bus.lane_writer import LaneWriter
from magent2.bus.records import MailRef, NewRecord
from magent2.models.envelope import MessageEnvelope
from magent2.runner.steers import Steer, no_steers
from magent2.sessions.history import History, RunKey, RunRecord, message_id_of
from magent2.tools.interface import WaitHook

if TYPE_CHECKING:
    from magent2.telemetry.observation import ObservedRun


async def go_on() -> None:
    """Do not stop the run between turns."""


@dataclass(frozen=True, slots=True)
class WaitingCall:
    """A call that may not be made before a person says so."""

    turn: int
    id: str
    name: str
    arguments: str
    speaker: str


@dataclass(slots=True)
class RunContext:
    """One attempt at one run; also the run context that the SDK hands to tools.

    `run` is what earlier attempts recorded. `closing` are records that need not be on the log before the run ends:
    they ride in the append that settles it, which takes `closing_mail` from the lane. `unfinished` tells, of calls at
    work, what rides there if the run is stopped. A runner awaits `between_turns` before it asks a model: it may be
    stopped there; then `steers`: what was said to the run and no answer has seen.
    A runner that ends with calls in `waiting` is paused, and begun again once `run.decisions` has one on each of them.
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
    kind: str = "message"  # what the mail's header says it is: `tool` and `route` are runs of their own sort
    closing: list[NewRecord] = field(default_factory=list)
    closing_mail: list[MailRef] = field(default_factory=list)
    unfinished: dict[tuple[int, str], Callable[[], Sequence[NewRecord]]] = field(default_factory=dict)
    between_turns: Callable[[], Awaitable[None]] = go_on
    observed: ObservedRun | None = None  # set when metrics or traces are on
    steers: Callable[[], Awaitable[Sequence[Steer]]] = no_steers
    waiting: list[WaitingCall] = field(default_factory=list)
    waits: tuple[WaitHook, ...] = ()  # what the run gives up while a tool of it waits for an answer

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
