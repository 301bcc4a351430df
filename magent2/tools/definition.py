"""The tool interface: what a model reads, how the tool runs, and how a message that it holds is sent later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import orjson
from pydantic import BaseModel, ValidationError

from magent2.bus.log import Log
from magent2.bus.operations import Append
from magent2.bus.records import digest_of
from magent2.errors import ArgumentsError, ResultError
from magent2.models.json_types import JsonObject, as_json, encodable
from magent2.tools.interface import CallScope, RunFacts, SendMark, current_scope

FAULTS_SHOWN = 3
FAULT_MAX_CHARS = 300
RESULT_JSON = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_SUBCLASS

R = TypeVar("R")
M = TypeVar("M", bound=BaseModel)
Repeat: TypeAlias = Literal["again", "never"]
ToolArguments: TypeAlias = Mapping[str, object]  # JSON values by parameter name
JsonSchema: TypeAlias = Mapping[str, object]
ToolAnswer: TypeAlias = dict[str, object]  # a JSON object that a tool returns


@dataclass(frozen=True, slots=True)
class ToolSignature:
    """What a model reads about a tool."""

    name: str
    description: str
    params_schema: JsonSchema


@dataclass(frozen=True, slots=True)
class ToolExecutionContext:
    """The context of a call: the facts of its run, and the scope that holds its sends, which only a run has."""

    run: RunFacts
    scope: CallScope | None = None

    @property
    def python_execution(self) -> bool:
        """Whether a Python block makes the call."""
        return self.scope is not None and self.scope.block


@dataclass(frozen=True, slots=True)
class ToolExecutionResult(Generic[R]):
    """The result of a call: `tool_message` for the model, `typed_result` for a Python block.

    `skip_turn`: the model need not be called again for this result. `deferred_payload`: the JSON form of a held send.
    """

    tool_message: Any
    typed_result: R
    skip_turn: bool = False
    deferred_payload: Mapping[str, Any] | None = None


AnyToolResult: TypeAlias = ToolExecutionResult[Any]  # of a tool whose result type the caller does not know
Execute: TypeAlias = Callable[[ToolArguments, ToolExecutionContext], Awaitable[AnyToolResult]]
# Holds a send on the thread of a block and returns its answer; `None` for a call that `execute` must make.
Hold: TypeAlias = Callable[[ToolArguments, ToolExecutionContext], ToolAnswer | None]
# Plans the append that sends a payload in its JSON form, as the log is now (decision 26).
ExecuteDeferred: TypeAlias = Callable[
    [Log, Mapping[str, object], ToolExecutionContext, SendMark], Coroutine[object, object, Append]
]


def always(run: RunFacts) -> bool:
    """`ToolDefinition.visible_by_default` of a tool that every run sees."""
    return True


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool. `returns` is the JSON Schema of its typed result; an empty schema accepts any value.

    `repeat`: "never" for a tool that must not run twice, even after a crash that left its outcome unknown.
    `needs_approval`: a person must approve each call of a model. A Python block cannot call it.
    `parses_arguments`: `execute` parses its arguments with the strict model that the schema was made of
    (`parse_arguments`), so `run` does not validate them against the schema as well.
    """

    tool: ToolSignature
    returns: Mapping[str, Any]
    execute: Execute = field(repr=False)
    execute_deferred: ExecuteDeferred | None = field(default=None, repr=False)
    visible_by_default: Callable[[RunFacts], bool] = always
    repeat: Repeat = "again"
    needs_approval: bool = False
    hold: Hold | None = field(default=None, repr=False)
    parses_arguments: bool = False

    @property
    def name(self) -> str:
        return self.tool.name

    @property
    def description(self) -> str:
        return self.tool.description

    @property
    def params_schema(self) -> JsonSchema:
        return self.tool.params_schema

    async def run(self, arguments: ToolArguments, facts: RunFacts) -> AnyToolResult:
        """Validate the arguments and run the tool in the current scope."""
        if not self.parses_arguments:
            check_arguments(self.name, self.params_schema, arguments)
        scope = current_scope()
        if self.repeat == "never" and scope is not None and scope.call_writer is not None:
            await scope.call_writer.begin_once(self.name, digest_of({"arguments": arguments}))
        result = await self.execute(arguments, ToolExecutionContext(facts, scope))
        if result.skip_turn and scope is not None:
            scope.skip_turn = True
        return result

    def shown(self) -> JsonObject:
        return {"name": self.name, "description": self.description, "params_schema": dict(self.params_schema)}


def check_arguments(tool: str, schema: JsonSchema, arguments: object) -> None:
    """Raise `ArgumentsError` with what does not fit. A `$ref` is resolved inside the schema; nothing is fetched."""
    jsonschema, referencing = import_module("jsonschema"), import_module("referencing")
    validator = jsonschema.Draft202012Validator(dict(schema), registry=referencing.Registry())
    try:
        faults = sorted(validator.iter_errors(arguments), key=lambda fault: [str(step) for step in fault.absolute_path])
    except (referencing.exceptions.Unresolvable, RecursionError) as error:
        raise ArgumentsError(f"the arguments of tool {tool!r} cannot be checked: {error}") from error
    if faults:
        raise arguments_error(tool, [(fault.absolute_path, fault.message) for fault in faults])


def json_result(tool: str, value: object) -> Any:
    """The result of a tool as JSON values: for a model, for the log and for a Python block.

    Raises `ResultError` for what JSON cannot hold. See `as_json` for how values of other types are converted.
    """
    if type(value) is str:
        return encodable(value)
    try:
        text = orjson.dumps(value, option=RESULT_JSON)
    except (orjson.JSONEncodeError, RecursionError):
        text = b"null"  # the conversion below accepts more types, and finds out what is wrong
    if b"null" not in text:  # orjson writes NaN and infinity as null
        return orjson.loads(text)

    def refuse(reason: str, path: tuple[str, ...], value: object) -> object:
        place = f" at {'.'.join(path)[:FAULT_MAX_CHARS]!r}" if path else ""
        raise ResultError(f"{tool} ran, but its result cannot be used: it has{place} {reason}")

    return as_json(value, refuse)


def parse_arguments(tool: str, model: type[M], raw: ToolArguments) -> M:
    """Make a pydantic model of arguments. Raise `ArgumentsError` with what does not fit."""
    try:
        return model.model_validate(dict(raw))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        raise arguments_error(tool, [(fault["loc"], fault["msg"]) for fault in faults]) from error


def arguments_error(tool: str, faults: Sequence[tuple[Iterable[object], str]]) -> ArgumentsError:
    """The error that names the first faults of a call's arguments, each with its path in them."""
    lines = [": ".join(filter(None, (".".join(map(str, path)), message))) for path, message in faults[:FAULTS_SHOWN]]
    shown = "; ".join(line[:FAULT_MAX_CHARS] for line in lines)
    more = f"; and {len(faults) - FAULTS_SHOWN} more" if len(faults) > FAULTS_SHOWN else ""
    return ArgumentsError(f"the arguments do not fit tool {tool!r}: {shown}{more}")
