"""One program in one Monty process: its steps, its output, and the texts of its errors. Every method blocks."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from pydantic_monty import (
    CollectString,
    ExcType,
    ExternalSettledResult,
    FunctionSnapshot,
    FutureSnapshot,
    Monty,
    MontyComplete,
    MontyCrashedError,
    MontyError,
    MontyRuntimeError,
    MontySession,
    MontySyntaxError,
    MontyTypingError,
    NameLookupSnapshot,
    OSPolicy,
    ResourceLimits,
    SyncSnapshot,
)

from magent2.sandbox.interface import BlockFailure, BlockLimits, BlockResult, Program, QuickCall, RaisedByTool

ERROR_MAX_CHARS = 4000
VALUE_MAX_CHARS = 8000
SCRIPT = "block.py"
MONTY_SCRIPT = "<python-input-0>"  # Monty's name for the code, in tracebacks

# Exceptions of tools that keep their type in the program. All others are raised there as `Exception`.
# The first that fits is chosen, so that a subclass stands before its base class.
RAISABLE: Mapping[type[Exception], ExcType] = {
    PermissionError: "PermissionError",
    FileNotFoundError: "FileNotFoundError",
    FileExistsError: "FileExistsError",
    IsADirectoryError: "IsADirectoryError",
    NotADirectoryError: "NotADirectoryError",
    TimeoutError: "TimeoutError",
    LookupError: "LookupError",
    NotImplementedError: "NotImplementedError",
    RuntimeError: "RuntimeError",
    TypeError: "TypeError",
    ValueError: "ValueError",
    OSError: "OSError",
}
# Monty's interpreter has these names, but the stubs of its type checker lack them and refuse `except PermissionError`.
MISSING_STUBS = "".join(
    f"class {name}(OSError): ...\n"
    for name in ("PermissionError", "FileNotFoundError", "FileExistsError", "IsADirectoryError", "NotADirectoryError")
)


class TooManyCalls(Exception):
    """The program made more calls than its limit allows."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a host function that the program waits for."""

    name: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]


class BlockSession:
    """Runs one program from call to call. At most one thread uses it at a time, besides `kill`."""

    def __init__(self, program: Program, limits: BlockLimits, quick: QuickCall | None = None) -> None:
        self._program = program
        self._quick_call = quick
        self._limits = limits
        self._session: MontySession | None = None
        self._printed: list[str] = []
        self._collector = CollectString(limits.output_bytes)
        self._dump: bytes | None = None
        self._calls = 0
        self._pid: int | None = None
        self.snapshot: FunctionSnapshot | None = None

    @property
    def is_open(self) -> bool:
        return self._session is not None

    def start(self, pool: Monty, *, checked: bool) -> FunctionCall | BlockResult:
        program = self._program
        stubs = None if checked else MISSING_STUBS + program.stubs
        session = pool.checkout(
            script_name=SCRIPT,
            limits=self._resources(),
            type_check=not checked,
            type_check_stubs=stubs,
            type_check_format="concise",
            os_policy=self._policy(),
        )
        self._session = session.__enter__()
        self._pid = session.worker_pid
        return self._continue(self._session.feed_start(program.code, print_callback=self._collector))

    def resume(self, result: ExternalSettledResult) -> FunctionCall | BlockResult:
        """Continue with the result of the call. A value that Monty cannot convert is an error in the program."""
        snapshot, self.snapshot = self.snapshot, None
        assert snapshot is not None  # noqa: S101  for the type checker: only a waiting call is resumed, and once
        return self._continue(snapshot.resume(result))

    def _continue(self, snapshot: SyncSnapshot) -> FunctionCall | BlockResult:
        """Run the program until it ends or calls a function that needs the event loop."""
        while not isinstance(snapshot, MontyComplete):
            self._calls += 1
            if self._calls > self._limits.calls:
                raise TooManyCalls(_too_many_calls(self._limits))
            if isinstance(snapshot, FunctionSnapshot) and not snapshot.is_os_function:
                result = self._quick(snapshot)
                if result is None:
                    self.snapshot = snapshot
                    return FunctionCall(str(snapshot.function_name), snapshot.args, snapshot.kwargs)
                snapshot = snapshot.resume(result)
            else:
                snapshot = self._refuse_or_look_up(snapshot)
        block_result = self.result_of(None, snapshot)
        self.close()
        return block_result

    def _quick(self, snapshot: FunctionSnapshot) -> ExternalSettledResult | None:
        """Answer a call on this thread, or return `None` if the host must make it."""
        name = str(snapshot.function_name)
        if name not in self._program.functions:
            return {"exc_type": "NameError", "message": f"name {name!r} is not defined"}
        if self._quick_call is None:
            return None
        try:
            result = self._quick_call(name, snapshot.args, snapshot.kwargs)
        except Exception as error:  # noqa: BLE001  a tool may raise anything; the block may catch it
            return exception_of(error)
        return None if result is None else {"return_value": result.value}

    def _refuse_or_look_up(self, snapshot: FunctionSnapshot | NameLookupSnapshot | FutureSnapshot) -> SyncSnapshot:
        if isinstance(snapshot, NameLookupSnapshot):
            name = snapshot.variable_name
            if snapshot.object_id is not None or name not in self._program.functions:
                return snapshot.resume()
            # The program names a function without calling it. With a value it can pass it on and call it later.
            return snapshot.resume(value=_function_named(name))
        if isinstance(snapshot, FutureSnapshot):
            refusal: ExternalSettledResult = {
                "exc_type": "RuntimeError",
                "message": "functions return their results directly; do not use await",
            }
            return snapshot.resume(dict.fromkeys(snapshot.pending_call_ids, refusal))
        return snapshot.resume_not_handled()

    def dump(self) -> None:
        """Store the state of the program, which waits for a call, and give its process back."""
        assert self.snapshot is not None  # noqa: S101  for the type checker: only a waiting call is dumped
        self._dump = self.snapshot.dump()
        self._keep_prints()
        self.close()

    def load(self, pool: Monty) -> None:
        """Restore the stored state in another process. The output limit is what is left of it."""
        assert self._dump is not None  # noqa: S101  for the type checker: it was dumped before
        left = self._limits.output_bytes - sum(len(text.encode()) for text in self._printed)
        self._collector = CollectString(max(1, left))
        session = pool.checkout(script_name=SCRIPT, limits=self._resources(), os_policy=self._policy())
        self._session = session.__enter__()
        self._pid = session.worker_pid
        snapshot = self._session.load_snapshot(self._dump, print_callback=self._collector)
        assert isinstance(snapshot, FunctionSnapshot)  # noqa: S101  for the type checker: it was dumped in a call
        self.snapshot, self._dump = snapshot, None

    def kill(self) -> None:
        """Kill the process during a step, from another thread. The pool starts another process."""
        pid = self._pid
        if pid is not None and self._session is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self._pid = None
        session, self._session = self._session, None
        if session is not None:
            session.__exit__(None, None, None)

    def result_of(self, failure: BlockFailure | None, done: MontyComplete | None = None) -> BlockResult:
        self._keep_prints()
        value = None if done is None else _value_text(done)
        return BlockResult("".join(self._printed), value, failure)

    def _keep_prints(self) -> None:
        self._printed.append(self._collector.output)
        self._collector = CollectString(1)

    def _resources(self) -> ResourceLimits:
        limits = self._limits
        return ResourceLimits(
            max_feed_duration_secs=limits.run_s,
            max_turn_duration_secs=limits.turn_s,
            max_memory=limits.memory_bytes,
            max_recursion_depth=limits.recursion,
            max_suspensions=limits.calls + 1,
        )

    def _policy(self) -> OSPolicy:
        program = self._program
        return OSPolicy(sleep="zero", datetime=program.clock, random_start={"seed": program.seed})


def exception_of(error: Exception) -> ExternalSettledResult:
    """An exception of the host in the form in which Monty raises it in the program."""
    original = error.original if isinstance(error, RaisedByTool) else error
    name = next((name for kind, name in RAISABLE.items() if isinstance(original, kind)), None)
    return {"exc_type": name or "Exception", "message": str(error) or type(original).__name__}


def _function_named(name: str) -> Callable[[], None]:
    """A function object with this name: Monty calls the host function by its name."""

    def function() -> None: ...

    function.__name__ = name
    return function


def _value_text(done: MontyComplete) -> str | None:
    """The value of the last line as text: as JSON if it can be, else as Python shows it."""
    value = done.output
    if value is None:
        return None
    if isinstance(value, str):
        return value[:VALUE_MAX_CHARS]
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    return text[:VALUE_MAX_CHARS]


def failure_of(error: MontyError, limits: BlockLimits) -> BlockFailure:
    """The failure that an error of Monty means, in words for the author of the program."""
    if isinstance(error, MontyTypingError):
        return BlockFailure("refused", _cut(f"nothing was run; fix this first:\n{error.display().strip()}"))
    if isinstance(error, MontySyntaxError):
        return BlockFailure("refused", _cut(f"nothing was run; fix this first:\n{_traceback(error)}"))
    if isinstance(error, MontyCrashedError):
        if error.timed_out:
            return BlockFailure(
                "time", f"the block ran longer than {limits.run_s:g} s and was killed; do less in one block"
            )
        return BlockFailure("crash", "the process that ran the block crashed; do less in one block")
    if isinstance(error, MontyRuntimeError):
        return _runtime_failure(error, limits)
    return BlockFailure("exception", _cut(str(error)))


def _runtime_failure(error: MontyRuntimeError, limits: BlockLimits) -> BlockFailure:
    inner, text = error.exception(), str(error)
    if isinstance(inner, TimeoutError) and "time limit exceeded" in text:
        longest = f"{limits.run_s:g} s, or {limits.turn_s:g} s between two calls"
        return BlockFailure("time", f"the block ran longer than {longest}; do less in one block")
    if isinstance(inner, MemoryError):
        if f"> {limits.memory_bytes} bytes" in text:
            return BlockFailure(
                "memory", f"the block used more than {limits.memory_bytes >> 20} MB of memory; do less in one block"
            )
        return BlockFailure("output", f"the block printed more than {limits.output_bytes} bytes; print less")
    if isinstance(inner, RuntimeError) and "suspension limit" in text:
        return BlockFailure("calls", _too_many_calls(limits))
    if isinstance(inner, RecursionError):
        return BlockFailure("recursion", _cut(_traceback(error)))
    return BlockFailure("exception", _cut(_traceback(error)))


def _too_many_calls(limits: BlockLimits) -> str:
    return f"the block made more than {limits.calls} calls; do the rest in another block"


def _traceback(error: MontyRuntimeError | MontySyntaxError) -> str:
    return error.display("traceback").replace(MONTY_SCRIPT, SCRIPT)


def _cut(text: str) -> str:
    """Cut a long text at its beginning: the last line names the error."""
    return text if len(text) <= ERROR_MAX_CHARS else f"…{text[-ERROR_MAX_CHARS:]}"
