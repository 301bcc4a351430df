"""The sandbox port: run a program, and return what it printed and how it ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, Protocol, TypeAlias

from magent2.tools.interface import ReleasableSlot

CODE_MAX_BYTES = 64 << 10
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

# Why a block failed. `refused`: nothing of it ran, because it is too long, not valid Python, or has type errors.
FailureKind: TypeAlias = Literal[
    "refused", "exception", "time", "memory", "recursion", "calls", "output", "crash", "diverged", "stopped"
]


@dataclass(frozen=True, slots=True)
class BlockLimits:
    """What one block may use."""

    run_s: float = 10.0  # computing time, without the time that its calls take
    turn_s: float = 5.0  # computing time between two calls
    whole_s: float = 600.0  # total time with its calls, without the time it waits for answers
    memory_bytes: int = 32 << 20
    recursion: int = 200
    calls: int = 500
    output_bytes: int = 64 << 10


@dataclass(frozen=True, slots=True)
class Program:
    """Code to run: the functions it may call with their type stubs, and the values of its clock and random seed.

    It runs in the share of `principal`.
    """

    code: str
    functions: Sequence[str] = ()
    stubs: str = ""
    clock: datetime = EPOCH
    seed: str = ""
    principal: str | None = None


@dataclass(frozen=True, slots=True)
class BlockFailure:
    """Why a block failed. The model reads `text` and should be able to correct its code with it."""

    kind: FailureKind
    text: str


@dataclass(frozen=True, slots=True)
class BlockResult:
    """How a block ended: what it printed, the value of its last line as text, and its failure, if it failed."""

    output: str
    value: str | None = None
    failure: BlockFailure | None = None


class AbortBlock(Exception):
    """Raised by a host call to end the block. The code of the block cannot catch it."""

    def __init__(self, failure: BlockFailure) -> None:
        super().__init__(failure.text)
        self.failure = failure


class RaisedByTool(Exception):
    """What the program sees of an error of a tool: the type of the original, with a text that may be shown."""

    def __init__(self, text: str, original: Exception) -> None:
        super().__init__(text)
        self.original = original


# Runs a function that the program calls, by name, with its arguments. An exception is raised in the program.
HostCall: TypeAlias = Callable[[str, tuple[object, ...], Mapping[str, object]], Awaitable[object]]
# The same for calls that need no event loop, on the thread of the program; `None` if it must be a `HostCall`.
QuickCall: TypeAlias = Callable[[str, tuple[object, ...], Mapping[str, object]], "QuickResult | None"]


@dataclass(frozen=True, slots=True)
class QuickResult:
    """What a quick call returned, which may be `None`."""

    value: object


class Sandbox(Protocol):
    """Runs programs concurrently, each isolated from the host and from the others.

    A program reaches the functions it was given and nothing else: no file, network, process or other program. Its types
    are checked against the stubs before it runs. No state is left when it ends. The same program with the same results
    of its calls does the same every time. Programs of one principal do not keep those of another waiting. `run` always
    returns a result; it raises only if its task is cancelled.
    """

    async def run(
        self,
        program: Program,
        call: HostCall,
        on_slot: Callable[[ReleasableSlot], None] | None = None,
        quick: QuickCall | None = None,
    ) -> BlockResult:
        """Run a program. `on_slot` receives the slot that the program occupies, before it runs."""
        ...

    async def aclose(self) -> None: ...
