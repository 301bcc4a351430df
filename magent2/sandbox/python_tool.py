"""`run_python`: an agent's tools as functions of a block, and the block as a call of a tool."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, TypeAlias
from uuid import uuid4

import orjson

from magent2.bus.log import Log
from magent2.errors import BlockFailed, ConditionFailed, Diverged, InvalidInput, Refused, TopicDeleted
from magent2.sandbox.block_outcome import BlockOutcome, InterruptedBlock
from magent2.sandbox.interface import AbortBlock, BlockFailure, BlockResult, Program, QuickResult, Sandbox
from magent2.sandbox.stubs import ToolFunction, functions_of, stubs_of
from magent2.tools.default_tools import DESCRIPTION, RUN_PYTHON, SCHEMA
from magent2.tools.definition import ToolDefinition, ToolExecutionContext, ToolExecutionResult, ToolSignature
from magent2.tools.interface import CallScope, ReleasableSlot, call_scope
from magent2.tools.sending import plan_held_sends, replan_held_sends

ARGUMENTS_MAX_BYTES = 1 << 20  # of one call from a block
NESTED_MAX = 3  # blocks in blocks
COMMIT_TRIES_MAX = 8
LATE = "Your tools that are called server__tool are functions too, under these names."

# Tools that are only known when a block begins.
LateTools: TypeAlias = Callable[[], Awaitable[Sequence[ToolDefinition]]]


@dataclass(slots=True)
class PythonTool:
    """`run_python` for one agent. `tools` and those that come `late` are all that the agent may use."""

    sandbox: Sandbox
    tools: Iterable[ToolDefinition]
    late: LateTools | None = None
    functions: dict[str, ToolFunction] = field(init=False)
    stubs: str = field(init=False)

    def __post_init__(self) -> None:
        nested = ToolDefinition(
            ToolSignature(RUN_PYTHON, "Run code as a block of its own, inside this one.", SCHEMA),
            {"type": "string"},
            self.execute,
        )
        own = [tool for tool in self.tools if tool.name != RUN_PYTHON]
        self.functions = functions_of([*own, nested])
        self.stubs = stubs_of(self.functions.values())

    def definition(self) -> ToolDefinition:
        listed = "\n".join(function.stub.partition("\n")[0].removesuffix(":") for function in self.functions.values())
        more = "" if self.late is None else f"\n{LATE}"
        signature = ToolSignature(RUN_PYTHON, f"{DESCRIPTION}\nFunctions:\n{listed}{more}", SCHEMA)
        return ToolDefinition(signature, {"type": "string"}, self.execute)

    async def execute(self, given: Mapping[str, Any], context: ToolExecutionContext) -> ToolExecutionResult[str]:
        code = str(given["code"])
        if context.scope is not None and context.scope.block:
            return await self._inside(code, context.scope)
        outer = context.scope
        key = str(uuid4()) if outer is None else outer.key
        scope = CallScope(context.run, key, block=True) if outer is None else _block_scope(outer)
        if outer is not None:
            outer.closing = InterruptedBlock(code, scope)
        closing = await self._run(code, scope)
        if outer is None:
            text = await _commit(scope, closing)
        else:
            outer.held = dict(scope.held) if closing.ended.failure is None else {}
            outer.closing = closing
            text = closing.told(outer.sends, ()).result
        return ToolExecutionResult(text, text, skip_turn=scope.skip_turn and closing.ended.failure is None)

    async def _run(self, code: str, scope: CallScope) -> BlockOutcome:
        """The whole block, up to what it means for what it holds."""
        begun = time.monotonic()
        with call_scope(scope):
            ended = await self._block(code, scope, scope.key)
        held = len(scope.held)
        took = round((time.monotonic() - begun) * 1000)
        return BlockOutcome(scope.run.conversation_id, code, ended, held, took)

    async def _inside(self, code: str, scope: CallScope) -> ToolExecutionResult[str]:
        """A block in a block: what it holds waits for the outer one; if it fails, that is forgotten and it raises."""
        if scope.depth >= NESTED_MAX:
            raise InvalidInput(f"blocks go at most {NESTED_MAX} deep; call a function instead")
        mark = scope.next_place
        scope.depth += 1
        try:
            async with scope.aside():
                ended = await self._block(code, scope, f"{scope.key}/{mark}")
        finally:
            scope.depth -= 1
        if ended.failure is not None:
            scope.drop_from(mark)
            raise BlockFailed(ended.failure.text)
        text = "\n".join(part for part in (ended.output.rstrip("\n"), ended.value or "") if part)
        return ToolExecutionResult(text, text)

    async def _block(self, code: str, scope: CallScope, seed: str) -> BlockResult:
        functions, stubs = await self._callable_now()
        program = Program(code, tuple(functions), stubs, _clock_of(scope), seed)
        calls = _Calls(functions, scope, ToolExecutionContext(scope.run, scope))
        try:
            ended = await self.sandbox.run(program, calls.call, calls.park, calls.quick)
        finally:
            calls.end()
        if scope.depth == 0 and ended.failure is None:
            return replace(ended, failure=_divergence(scope))
        return ended

    async def _callable_now(self) -> tuple[Mapping[str, ToolFunction], str]:
        """The functions of a block that begins now, and their types; what was there first keeps its name."""
        if self.late is None:
            return self.functions, self.stubs
        every = {**functions_of(await self.late()), **self.functions}
        return every, stubs_of(every.values())


@dataclass(slots=True)
class _Calls:
    """The calls that one block makes."""

    functions: Mapping[str, ToolFunction]
    scope: CallScope
    context: ToolExecutionContext
    parking: ReleasableSlot | None = None

    def park(self, parking: ReleasableSlot) -> None:
        self.parking = parking
        self.scope.parked.append(parking)

    def end(self) -> None:
        if self.parking is not None:
            self.scope.parked.remove(self.parking)

    def quick(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> QuickResult | None:
        """A message that is to be held needs nobody: it is, on the thread of the block."""
        function = self.functions[name]
        tool = function.tool
        if tool.hold is None or tool.needs_approval or tool.repeat == "never":
            return None
        arguments = _plain(name, function.bind(args, kwargs))
        answer = tool.hold(arguments, self.context)
        return None if answer is None else QuickResult(answer)

    async def call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        function = self.functions[name]
        tool = function.tool
        arguments = _plain(name, function.bind(args, kwargs))
        if tool.needs_approval:
            raise PermissionError(f"{tool.name} needs a person's approval; call it by itself, not from Python")
        try:
            result = await tool.run(arguments, self.scope.run)
        except Diverged as error:
            raise AbortBlock(BlockFailure("diverged", str(error))) from error
        finally:
            self.scope.plan_cache.forget()
        return _value(result.typed_result)


def _block_scope(outer: CallScope) -> CallScope:
    return CallScope(
        outer.run, outer.key, block=True, observed=outer.observed, call_writer=outer.call_writer, waits=outer.waits
    )


def _divergence(scope: CallScope) -> BlockFailure | None:
    """An earlier attempt has sent at once what this one has not come to."""
    if scope.diverged is not None:
        return BlockFailure("diverged", scope.diverged)
    if scope.call_writer is None:
        return None
    missing = scope.call_writer.earlier_places() - scope.left
    if not missing:
        return None
    return BlockFailure("diverged", f"an earlier attempt has sent {len(missing)} at once that this one did not come to")


def _clock_of(scope: CallScope) -> datetime:
    """The same for every attempt: when what the run answers was written."""
    written = getattr(getattr(scope.run, "envelope", None), "created_at", None)
    return written if isinstance(written, datetime) else datetime.now(UTC)


def _plain(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments as any other call brings them: JSON, and not too much of it."""
    try:
        text = orjson.dumps(arguments)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise TypeError(f"{name}() takes what JSON can say: {error}") from error
    if len(text) > ARGUMENTS_MAX_BYTES:
        raise ValueError(f"the arguments of {name}() take {len(text)} bytes, the limit is {ARGUMENTS_MAX_BYTES}")
    plain: dict[str, Any] = orjson.loads(text)
    return plain


def _value(value: Any) -> Any:
    """What a block is given of a tool's result: what JSON can say of it, else its text."""
    try:
        return orjson.loads(orjson.dumps(value, default=_as_json))
    except (orjson.JSONEncodeError, RecursionError):
        return str(value)


def _as_json(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    return dump(mode="json") if callable(dump) else str(value)


async def _commit(scope: CallScope, closing: BlockOutcome) -> str:
    """Outside a run: what was held leaves in one append, but for what is refused by now."""
    held = scope.sends if closing.ended.failure is None else ()
    sends, failures = await plan_held_sends(Log(scope.run.bus), held)
    for _ in range(COMMIT_TRIES_MAX if sends else 0):
        first, *others = (held.append for held in sends)
        try:
            await scope.run.bus.acall(first.merge(*others))
        except (Refused, TopicDeleted):
            sends, failed = await replan_held_sends(Log(scope.run.bus), sends)
            failures += failed
        else:
            break
        if not sends:
            break
    else:
        if sends:
            raise ConditionFailed("nothing was sent: the recipients keep changing; run the block again")
    return str(closing.told(sends, failures).result)
