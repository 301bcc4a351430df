"""What a tool meets while it runs in a run: who it works for, and where its sends wait.

The runner opens a scope around each call of a tool. A send inside it is held and leaves in the append that records the
tool's result; when the call fails, or its worker dies before that append, it never leaves. A Python block opens a scope
of its own inside that of its call, and what its calls send waits for the block.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from magent2.bus.flow import Flow
from magent2.bus.interface import Engine
from magent2.bus.operations import Append
from magent2.errors import InvalidInput, LimitError

if TYPE_CHECKING:
    from magent2.telemetry.turns import ObservedCall

HELD_SENDS_MAX = 100  # of one call or block


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
Planning: TypeAlias = Callable[[SendMark], Flow[Append]]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A send that was checked and has not left.

    `target` is whom it goes to in a person's words; `payload` all that `planning` goes by, as JSON with a `version`.
    `now`: it cannot wait for the end of a call or a block.
    """

    tool: str
    target: str
    payload: Mapping[str, Any]
    planning: Planning
    now: bool = False


@dataclass(frozen=True, slots=True)
class HeldSend:
    """A send that waits for its call or its block, and the append that would do it as things stood when it was held."""

    mark: SendMark
    prepared: Prepared
    append: Append

    @property
    def id(self) -> str:
        return self.mark.id


@dataclass(slots=True)
class CallScope:
    """One call of a tool in a run. `key` is the same in every attempt: hand it to receivers that take one.

    `block`: it is a Python block, whose calls share this scope.
    """

    run: RunFacts
    key: str
    block: bool = False
    observed: ObservedCall | None = None
    held: dict[int, HeldSend] = field(default_factory=dict)
    ended: bool = False
    _places: int = 0
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
            if len(self.held) >= HELD_SENDS_MAX:
                what, more = ("block", "block") if self.block else ("call of a tool", "call")
                raise LimitError(f"one {what} sends at most {HELD_SENDS_MAX} messages; send the rest in another {more}")
            self.held[place] = send

    def _check_open(self) -> None:
        if self.ended:
            raise InvalidInput("this call of a tool has ended, its result is recorded; send in another call")


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
