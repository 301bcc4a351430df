"""The port of a sandbox: a program goes in, what it printed and how it ended comes out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal, Protocol, TypeAlias

from magent2.tools.interface import ReleasableSlot

CODE_MAX_BYTES = 64 << 10
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

# Why a block has failed. `refused` is before anything of it ran: too long, no Python, types that do not fit.
FailureKind: TypeAlias = Literal[
    "refused", "exception", "time", "memory", "recursion", "calls", "output", "crash", "diverged", "stopped"
]


@dataclass(frozen=True, slots=True)
class BlockLimits:
    """What one block may take. Time that it waits for a call is not its own, but for `whole_s`."""

    run_s: float = 10.0  # of its own work
    turn_s: float = 5.0  # between two calls
    whole_s: float = 600.0  # with the time that its calls take; waiting for answers is not counted
    memory_bytes: int = 32 << 20
    recursion: int = 200
    calls: int = 500
    output_bytes: int = 64 << 10


@dataclass(frozen=True, slots=True)
class Program:
    """Code, the stubs of the functions that it may call, and what it takes for the time and for chance."""

    code: str
    functions: Sequence[str] = ()
    stubs: str = ""
    clock: datetime = EPOCH
    seed: str = ""


@dataclass(frozen=True, slots=True)
class BlockFailure:
    """Why a block did not end well, in words that whoever wrote it can act on."""

    kind: FailureKind
    text: str


@dataclass(frozen=True, slots=True)
class BlockResult:
    """How a block has ended: what it printed, the value of its last line as text, and why it failed, if it did."""

    output: str
    value: str | None = None
    failure: BlockFailure | None = None


class AbortBlock(Exception):
    """Raised by a call to end the block there and then, whatever it would catch."""

    def __init__(self, failure: BlockFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


# A call of a function: its name, its arguments. What it raises is raised inside the block.
HostCall: TypeAlias = Callable[[str, tuple[Any, ...], Mapping[str, Any]], Awaitable[Any]]


# A call that can be made on the thread of the block, at once; `None` when it cannot.
QuickCall: TypeAlias = Callable[[str, tuple[Any, ...], Mapping[str, Any]], "QuickResult | None"]


@dataclass(frozen=True, slots=True)
class QuickResult:
    """What a quick call gave."""

    value: Any


class Sandbox(Protocol):
    """Runs programs, many side by side, each in a place of its own that nothing is left of afterwards.

    A program reaches the functions it was given and nothing else: no file, no network, no process, no other program.
    It is checked against the stubs before anything of it runs. The same program with the same answers to its calls does
    the same each time. Whatever it does, `run` returns; it raises only what the caller's task is cancelled with.
    """

    async def run(
        self,
        program: Program,
        call: HostCall,
        park: Callable[[ReleasableSlot], None] | None = None,
        quick: QuickCall | None = None,
    ) -> BlockResult: ...

    async def aclose(self) -> None: ...
