"""`run_python`: run a block of Python code, with the other tools of the agent as functions.

A block is one tool call. Its messages are held in a scope of its own. If it succeeds, they move to the scope of the
call, and the append that records the result of the call sends them. If it fails, they are discarded.
"""

from __future__ import annotations

import json
import keyword
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TypeAlias
from uuid import uuid4

import orjson

from magent2.bus.log import Log
from magent2.bus.retry import retry_on_conflict
from magent2.errors import BlockDiverged, BlockFailed, InvalidInput
from magent2.sandbox.block_outcome import BlockOutcome, InterruptedBlock
from magent2.sandbox.interface import (
    AbortBlock,
    BlockFailure,
    BlockResult,
    Program,
    QuickResult,
    RaisedByTool,
    Sandbox,
)
from magent2.tools.default_tools import RUN_PYTHON, RUN_PYTHON_DESCRIPTION, RUN_PYTHON_SCHEMA
from magent2.tools.definition import (
    JsonSchema,
    ToolArguments,
    ToolDefinition,
    ToolExecutionContext,
    ToolExecutionResult,
    ToolSignature,
    json_result,
)
from magent2.tools.interface import CallScope, FailedSend, HeldSend, ReleasableSlot, call_scope, tool_failure
from magent2.tools.sending import plan_held_sends, refusal_as_conflict, replan_held_sends

ARGUMENTS_MAX_BYTES = 1 << 20  # of one call from a block
NESTED_MAX = 3  # blocks inside blocks
LATE_TOOLS_NOTE = "Your tools that are called server__tool are functions too, under these names."

DOC_MAX_CHARS = 300
HEADER = "from typing import Any, Literal\n\n"
SIMPLE = {"string": "str", "integer": "int", "number": "float", "boolean": "bool", "null": "None"}
ANY = "Any"

# Returns the tools that are known only when a block starts, such as those of MCP servers.
LateTools: TypeAlias = Callable[[], Awaitable[Sequence[ToolDefinition]]]


@dataclass(slots=True)
class PythonTool:
    """`run_python` for one agent. Its functions are `tools` and the late tools: all that the agent may use."""

    sandbox: Sandbox
    tools: Iterable[ToolDefinition]
    late: LateTools | None = None
    functions: dict[str, ToolFunction] = field(init=False)
    stubs: str = field(init=False)

    def __post_init__(self) -> None:
        nested = ToolDefinition(
            ToolSignature(RUN_PYTHON, "Run code as a block of its own, inside this block.", RUN_PYTHON_SCHEMA),
            {"type": "string"},
            self.execute,
        )
        own = [tool for tool in self.tools if tool.name != RUN_PYTHON]
        self.functions = functions_of([*own, nested])
        self.stubs = stubs_of(self.functions.values())

    def definition(self) -> ToolDefinition:
        signatures = "\n".join(
            function.stub.partition("\n")[0].removesuffix(":") for function in self.functions.values()
        )
        more = "" if self.late is None else f"\n{LATE_TOOLS_NOTE}"
        description = f"{RUN_PYTHON_DESCRIPTION}\nFunctions:\n{signatures}{more}"
        signature = ToolSignature(RUN_PYTHON, description, RUN_PYTHON_SCHEMA)
        return ToolDefinition(signature, {"type": "string"}, self.execute)

    async def execute(self, arguments: ToolArguments, context: ToolExecutionContext) -> ToolExecutionResult[str]:
        code, call = str(arguments["code"]), context.scope
        if call is None:
            scope = CallScope(context.run, str(uuid4()), block=True)
            text = await _send_without_run(scope, await self._run(code, scope))
            return ToolExecutionResult(text, text, skip_turn=scope.skip_turn)
        if call.block:
            return await self._run_nested(code, call)
        scope = CallScope(
            call.run,
            call.key,
            block=True,
            observed=call.observed,
            call_writer=call.call_writer,
            wait_hooks=call.wait_hooks,
            threads=call.threads,
        )
        call.outcome = InterruptedBlock(code, scope)  # recorded if the run is stopped while the block runs
        outcome = await self._run(code, scope)
        succeeded = outcome.result.failure is None
        call.held = dict(scope.held) if succeeded else {}
        call.outcome = outcome
        # Which messages are sent is known only when the result is recorded, so `outcome` words the result then.
        return ToolExecutionResult("", "", skip_turn=scope.skip_turn and succeeded)

    async def _run(self, code: str, scope: CallScope) -> BlockOutcome:
        started = time.monotonic()
        with call_scope(scope):
            result = await self._run_program(code, scope, scope.send_key)
        if result.failure is None:
            result = replace(result, failure=_divergence(scope))
        scope.skip_turn = scope.skip_turn and result.failure is None
        duration_ms = round((time.monotonic() - started) * 1000)
        agents = tuple(scope.started_agents)
        return BlockOutcome(scope.run.conversation_id, code, result, len(scope.held), duration_ms, agents)

    async def _run_nested(self, code: str, scope: CallScope) -> ToolExecutionResult[str]:
        """Run a block inside a block. Its messages wait for the outer block; if it fails, they are discarded."""
        if scope.depth >= NESTED_MAX:
            raise InvalidInput(f"blocks can be nested {NESTED_MAX} deep; call a function instead")
        first = scope.next_position
        scope.depth += 1
        try:
            async with scope.slot_released():
                result = await self._run_program(code, scope, f"{scope.send_key}/{first}")
        finally:
            scope.depth -= 1
        if result.failure is not None:
            scope.discard_from(first)
            raise BlockFailed(result.failure.text)
        text = "\n".join(part for part in (result.output.rstrip("\n"), result.value or "") if part)
        return ToolExecutionResult(text, text)

    async def _run_program(self, code: str, scope: CallScope, seed: str) -> BlockResult:
        functions, stubs = self.functions, self.stubs
        if self.late is not None:  # a late tool does not replace one of the same name
            functions = {**functions_of(await self.late()), **self.functions}
            stubs = stubs_of(functions.values())
        program = Program(code, tuple(functions), stubs, _clock_of(scope), seed, scope.run.principal)
        calls = _BlockCalls(functions, scope, ToolExecutionContext(scope.run, scope))
        try:
            return await self.sandbox.run(program, calls.call, calls.add_slot, calls.hold)
        finally:
            calls.remove_slot()


@dataclass(slots=True)
class _BlockCalls:
    """The calls that one block makes to its functions."""

    functions: Mapping[str, ToolFunction]
    scope: CallScope
    context: ToolExecutionContext
    slot: ReleasableSlot | None = None

    def add_slot(self, slot: ReleasableSlot) -> None:
        self.slot = slot
        self.scope.slots.append(slot)

    def remove_slot(self) -> None:
        if self.slot is not None:
            self.scope.slots.remove(self.slot)

    def hold(self, name: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> QuickResult | None:
        """A `QuickCall`: hold a message without leaving the thread of the block."""
        function = self.functions[name]
        tool = function.tool
        if tool.hold is None or tool.needs_approval or tool.repeat == "never":
            return None
        arguments = _json_arguments(name, function.bind(args, kwargs))
        try:
            answer = tool.hold(arguments, self.context)
        except Exception as error:
            raise self._raised(tool, error) from error
        return None if answer is None else QuickResult(answer)

    async def call(self, name: str, args: tuple[object, ...], kwargs: Mapping[str, object]) -> object:
        function = self.functions[name]
        tool = function.tool
        arguments = _json_arguments(name, function.bind(args, kwargs))
        if tool.needs_approval:
            raise PermissionError(f"{tool.name} needs a person's approval; call it by itself, not from Python")
        try:
            with self.scope.block_call():
                try:
                    result = await tool.run(arguments, self.scope.run)
                except (AbortBlock, BlockDiverged):
                    raise
                except Exception as error:
                    raise self._raised(tool, error) from error
        except BlockDiverged as error:
            raise AbortBlock(BlockFailure("diverged", str(error))) from error
        finally:
            # The tool may have changed anything: messages that are held from now on are planned with new reads.
            self.scope.plan_cache.forget()
        return json_result(tool.name, result.typed_result)

    def _raised(self, tool: ToolDefinition, error: Exception) -> RaisedByTool:
        return RaisedByTool(tool_failure(tool.name, error, self.scope).text, error)


def _divergence(scope: CallScope) -> BlockFailure | None:
    """Fail a block whose earlier attempt sent messages immediately that this attempt did not send."""
    if scope.diverged is not None:
        return BlockFailure("diverged", scope.diverged)
    if scope.call_writer is None:
        return None
    missing = scope.call_writer.earlier_positions() - scope.sent_now
    if not missing:
        return None
    return BlockFailure("diverged", f"an earlier attempt sent {len(missing)} messages that this attempt did not reach")


def _clock_of(scope: CallScope) -> datetime:
    """The time that a block sees: that of the message which the run answers, so that every attempt sees the same."""
    created_at = getattr(getattr(scope.run, "envelope", None), "created_at", None)
    return created_at if isinstance(created_at, datetime) else datetime.now(UTC)


def _json_arguments(name: str, arguments: Mapping[str, object]) -> dict[str, object]:
    """Arguments in the form that a model's call has them: JSON of a limited size."""
    try:
        text = orjson.dumps(arguments)
    except (orjson.JSONEncodeError, RecursionError) as error:
        raise TypeError(f"the arguments of {name}() must be JSON values: {error}") from error
    if len(text) > ARGUMENTS_MAX_BYTES:
        raise ValueError(f"the arguments of {name}() take {len(text)} bytes, the limit is {ARGUMENTS_MAX_BYTES}")
    json_arguments: dict[str, object] = orjson.loads(text)
    return json_arguments


async def _send_without_run(scope: CallScope, outcome: BlockOutcome) -> str:
    """Send what a block outside a run held, in one append, and return the text of its outcome."""
    log, plan = Log(scope.run.bus), plan_held_sends
    sends: Sequence[HeldSend] = scope.sends if outcome.result.failure is None else ()
    failures: list[FailedSend] = []

    async def attempt() -> None:
        nonlocal sends, plan
        sends, refused = await plan(log, sends)
        failures.extend(refused)
        plan = replan_held_sends  # the next attempt must not use the plans of this one
        if sends:
            first, *others = (send.append for send in sends)
            with refusal_as_conflict():
                await log.append(first.merge(*others))

    await retry_on_conflict(attempt, "nothing was sent: a recipient", "run the block again")
    return str(outcome.build(sends, failures).result)


# --- Tools as typed Python functions: the stubs that a block is checked against and that a model reads ---------------


@dataclass(frozen=True, slots=True)
class ToolFunction:
    """A tool as a function: its name in Python, its parameters in order (`names`), and its type stub."""

    name: str
    tool: ToolDefinition
    names: tuple[str, ...]
    stub: str

    @classmethod
    def of(cls, tool: ToolDefinition) -> ToolFunction:
        name = re.sub(r"\W", "_", tool.name)
        name = f"tool_{name}" if name[0].isdigit() or keyword.iskeyword(name) else name
        schema = tool.params_schema
        names, signature = _signature(schema)
        returns = type_of(tool.returns, tool.returns)
        doc = json.dumps(" ".join(tool.description.split())[:DOC_MAX_CHARS], ensure_ascii=False)
        return cls(name, tool, names, f"def {name}({signature}) -> {returns}:\n    {doc}\n    ...\n")

    def bind(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> dict[str, object]:
        """Bind positional and named arguments to the parameters."""
        if len(args) > len(self.names):
            raise TypeError(f"{self.name}() takes {len(self.names)} arguments, not {len(args)}")
        values = dict(zip(self.names, args, strict=False))
        for name, value in kwargs.items():
            if name in values:
                raise TypeError(f"{self.name}() got two values for {name!r}")
            values[name] = value
        return values


def functions_of(tools: Iterable[ToolDefinition]) -> dict[str, ToolFunction]:
    """The functions of tools by their name in Python. If two tools have the same name, the first keeps it."""
    functions: dict[str, ToolFunction] = {}
    for tool in tools:
        function = ToolFunction.of(tool)
        functions.setdefault(function.name, function)
    return functions


def stubs_of(functions: Iterable[ToolFunction]) -> str:
    return HEADER + "\n".join(function.stub for function in functions)


def _signature(schema: JsonSchema) -> tuple[tuple[str, ...], str]:
    declared = schema.get("properties")
    properties: Mapping[str, object] = declared if isinstance(declared, Mapping) else {}
    required = set(_items(schema.get("required")))
    usable = [name for name in properties if name.isidentifier() and not keyword.iskeyword(name)]
    names = (
        *(name for name in usable if name in required),
        *(name for name in usable if name not in required),
    )
    parts = [f"{name}: {type_of(properties[name], schema)}" + ("" if name in required else " = ...") for name in names]
    if len(usable) < len(properties) or schema.get("additionalProperties") is True:
        parts.append("**others: Any")
    return names, ", ".join(parts)


def type_of(schema: object, root: JsonSchema, depth: int = 0) -> str:
    """The Python type of a JSON Schema. It accepts at least what the schema accepts; `Any` if there is no such type."""
    if not isinstance(schema, Mapping) or depth > 8:
        return ANY
    if "$ref" in schema:
        return type_of(_resolved(str(schema["$ref"]), root), root, depth + 1)
    if "const" in schema or "enum" in schema:
        return _literal(_items(schema.get("enum", [schema.get("const")])))
    options = _items(schema.get("anyOf") or schema.get("oneOf"))
    if options:
        return _union(type_of(option, root, depth + 1) for option in options)
    kind = schema.get("type")
    if isinstance(kind, list):
        return _union(_simple_type(one, schema, root, depth) for one in kind)
    return _simple_type(kind, schema, root, depth)


def _simple_type(kind: object, schema: JsonSchema, root: JsonSchema, depth: int) -> str:
    if kind == "array":
        return f"list[{type_of(schema.get('items'), root, depth + 1)}]"
    if kind == "object":
        more = schema.get("additionalProperties")
        return f"dict[str, {type_of(more, root, depth + 1) if isinstance(more, Mapping) and more else ANY}]"
    return SIMPLE.get(str(kind), ANY)


def _union(types: Iterable[str]) -> str:
    options = list(dict.fromkeys(types))
    return ANY if ANY in options or not options else " | ".join(options)


def _literal(values: Sequence[object]) -> str:
    if not values or not all(value is None or isinstance(value, str | int | bool) for value in values):
        return ANY
    return f"Literal[{', '.join(map(repr, values))}]"


def _items(value: object) -> Sequence[object]:
    return value if isinstance(value, list | tuple) else ()


def _resolved(reference: str, root: JsonSchema) -> object:
    """The part of the schema that a reference names."""
    if not reference.startswith("#/"):
        return None
    part: object = root
    for step in reference[2:].split("/"):
        part = part.get(step) if isinstance(part, Mapping) else None
    return part
