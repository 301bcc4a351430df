"""What a tool meets while it runs in a run: who it works for, and where its sends wait.

The runner opens a scope around each call of a tool. A send inside it is held and leaves in the append that records the
tool's result; when the call fails, or its worker dies before that append, it never leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from magent2.bus.delivery import Sending
from magent2.bus.interface import Engine
from magent2.bus.operations import Append
from magent2.errors import InvalidInput, LimitError
from magent2.models.envelope import MessageEnvelope

if TYPE_CHECKING:
    from magent2.telemetry.turns import ObservedCall

HELD_SENDS_MAX = 100  # of one call


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
class HeldSend:
    """A delivery that waits for its call: what is to be delivered, and the append that would do it as things stood."""

    envelope: MessageEnvelope
    sending: Sending
    append: Append


@dataclass(slots=True)
class CallScope:
    """One call of a tool in a run. `key` is the same in every attempt: hand it to receivers that take one."""

    run: RunFacts
    key: str
    observed: ObservedCall | None = None
    sends: list[HeldSend] = field(default_factory=list)
    urgent: int = 0  # messages that went out at once
    ended: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)  # a tool may send from several threads

    def trace(self, envelope: MessageEnvelope) -> str | None:
        """Names the send of this envelope to whoever gets it; nothing where nobody looks on."""
        if self.observed is None:
            return None
        return self.observed.send(envelope.id, envelope.recipient, envelope.conversation_id)

    def hold(self, send: HeldSend) -> None:
        self._check_room()
        self.sends.append(send)

    def count_urgent(self) -> int:
        """The number of a message that goes out at once: the same in every attempt that sends in the same order."""
        self._check_room()
        self.urgent += 1
        return self.urgent - 1

    def _check_room(self) -> None:
        if self.ended:
            raise InvalidInput("this call of a tool has ended, its result is recorded; send in another call")
        if len(self.sends) + self.urgent >= HELD_SENDS_MAX:
            raise LimitError(
                f"one call of a tool sends at most {HELD_SENDS_MAX} messages; send the rest in another call"
            )


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
