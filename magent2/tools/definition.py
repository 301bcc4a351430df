"""What a tool is: how a model sees it, what it gives back, how it is run, and how what it holds back is done later."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from typing import Any, Generic, Literal, TypeAlias, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from magent2.bus.log import Log
from magent2.bus.operations import Append
from magent2.bus.records import digest_of
from magent2.errors import ArgumentsError, InvalidInput
from magent2.tools.interface import CallScope, RunFacts, SendMark, current_scope

R = TypeVar("R")
Repeat: TypeAlias = Literal["again", "never"]


@dataclass(frozen=True, slots=True)
class ToolSignature:
    """A tool as a model reads it."""

    name: str
    description: str
    params_schema: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ToolExecutionContext:
    """What a call is made in. `scope` is where its sends wait; there is none outside a run."""

    run: RunFacts
    scope: CallScope | None = None

    @property
    def python_execution(self) -> bool:
        """Whether a Python block makes the call."""
        return self.scope is not None and self.scope.block


@dataclass(frozen=True, slots=True)
class ToolExecutionResult(Generic[R]):
    """What a call gave: `tool_message` for the model, `typed_result` for code, `deferred_payload` when it holds a send.

    `skip_turn`: the model need not be asked again because of it.
    """

    tool_message: Any
    typed_result: R
    skip_turn: bool = False
    deferred_payload: Mapping[str, Any] | None = None


Execute: TypeAlias = Callable[[Mapping[str, Any], ToolExecutionContext], Awaitable[ToolExecutionResult[Any]]]
# Hold a send at once, on any thread, and give what its caller is told; `None` for a call that is not to be held.
Hold: TypeAlias = Callable[[Mapping[str, Any], ToolExecutionContext], dict[str, Any] | None]
# From a payload and what it goes under: the append that is the send, as things stand now.
ExecuteDeferred: TypeAlias = Callable[
    [Log, Mapping[str, Any], ToolExecutionContext, SendMark], Coroutine[Any, Any, Append]
]


def always(run: RunFacts) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ToolDefinition:
    """A tool. `returns` is the JSON Schema of its typed result; an empty one says nothing about it.

    `repeat`: "never" for what must not be done a second time, even after a crash that left open whether it was done.
    `needs_approval`: a person is asked before a model's call of it is made; from a Python block it cannot be called.
    """

    tool: ToolSignature
    returns: Mapping[str, Any]
    execute: Execute = field(repr=False)
    execute_deferred: ExecuteDeferred | None = field(default=None, repr=False)
    visible_by_default: Callable[[RunFacts], bool] = always
    repeat: Repeat = "again"
    needs_approval: bool = False
    hold: Hold | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        return self.tool.name

    @property
    def description(self) -> str:
        return self.tool.description

    @property
    def params_schema(self) -> Mapping[str, Any]:
        return self.tool.params_schema

    async def run(self, arguments: Mapping[str, Any], facts: RunFacts) -> ToolExecutionResult[Any]:
        """Check the arguments, then do it, in the scope that is open."""
        check_arguments(self.name, self.params_schema, arguments)
        scope = current_scope()
        if self.repeat == "never" and scope is not None and scope.call_writer is not None:
            await scope.call_writer.begin_once(self.name, digest_of({"arguments": arguments}))
        result = await self.execute(arguments, ToolExecutionContext(facts, scope))
        if result.skip_turn and scope is not None:
            scope.skip_turn = True
        return result

    def shown(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "params_schema": dict(self.params_schema)}


# --- The parameters of a tool as JSON Schema: taken from its function, and held against what a call brings.

FAULTS_SHOWN = 3
FAULT_MAX_CHARS = 300
NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class Parameters:
    """What a function takes from its caller, but for the facts of the run. Fields are numbered, as any name is free."""

    model: type[BaseModel]
    names: tuple[str, ...]

    @classmethod
    def of(cls, func: Callable[..., Any]) -> Parameters:
        hints = _hints(func)
        fields: dict[str, Any] = {}
        names: list[str] = []
        for name, parameter in inspect.signature(func).parameters.items():
            if hints.get(name) is RunFacts:
                continue
            if parameter.kind not in NAMED:
                raise InvalidInput(
                    f"{_name(func)}: parameter {name!r} cannot be given by name; hand in a params_schema"
                )
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[f"p{len(names)}"] = (hints.get(name, Any), Field(default, alias=name))
            names.append(name)
        return cls(_model(func, fields), tuple(names))

    def schema(self) -> dict[str, Any]:
        """JSON Schema without the titles that pydantic makes up."""
        schema = self.model.model_json_schema()
        schema.pop("title", None)
        schema.setdefault("properties", {})
        for inner in schema["properties"].values():
            inner.pop("title", None)
        return schema

    def values(self, tool: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Arguments as the function wants them: a date as a date, a model as a model."""
        try:
            made = self.model.model_validate(dict(arguments))
        except ValidationError as error:
            faults = error.errors(include_url=False, include_context=False, include_input=False)
            raise _refusal(tool, (f"{_place(fault['loc'])}{fault['msg']}" for fault in faults)) from error
        return {name: getattr(made, f"p{number}") for number, name in enumerate(self.names)}


def facts_parameter(func: Callable[..., Any]) -> str | None:
    """The parameter that wants the facts of the run, by its annotation `RunFacts`."""
    return next((name for name, hint in _hints(func).items() if hint is RunFacts and name != "return"), None)


def returns_of(func: Callable[..., Any]) -> dict[str, Any]:
    """JSON Schema of what a function returns; an empty one where its annotation does not say, or says too much."""
    hint = _hints(func).get("return", Any)
    try:
        return TypeAdapter(hint).json_schema(mode="serialization")
    except (PydanticSchemaGenerationError, PydanticUserError):
        return {}


def check_schema(tool: str, schema: Mapping[str, Any]) -> None:
    """Refuse a schema that no call could be held against."""
    jsonschema = import_module("jsonschema")
    if schema.get("type") != "object":
        raise InvalidInput(f'params_schema of tool {tool!r} must have "type": "object"')
    try:
        jsonschema.Draft202012Validator.check_schema(dict(schema))
    except jsonschema.SchemaError as error:
        raise InvalidInput(f"params_schema of tool {tool!r} is no JSON Schema: {error.message[:200]}") from error


def check_arguments(tool: str, schema: Mapping[str, Any], arguments: object) -> None:
    """Raise `ArgumentsError` with what does not fit; `$ref` stays inside the schema, nothing is fetched."""
    jsonschema, referencing = import_module("jsonschema"), import_module("referencing")
    validator = jsonschema.Draft202012Validator(dict(schema), registry=referencing.Registry())
    try:
        faults = sorted(validator.iter_errors(arguments), key=lambda fault: [str(step) for step in fault.absolute_path])
    except (referencing.exceptions.Unresolvable, RecursionError) as error:
        raise ArgumentsError(f"the arguments of tool {tool!r} cannot be checked: {error}") from error
    if faults:
        raise _refusal(tool, (f"{_place(fault.absolute_path)}{fault.message}" for fault in faults))


def _refusal(tool: str, faults: Iterator[str]) -> ArgumentsError:
    told = list(faults)
    shown = "; ".join(fault[:FAULT_MAX_CHARS] for fault in told[:FAULTS_SHOWN])
    more = f"; and {len(told) - FAULTS_SHOWN} more" if len(told) > FAULTS_SHOWN else ""
    return ArgumentsError(f"the arguments do not fit tool {tool!r}: {shown}{more}")


def _place(path: Any) -> str:
    place = ".".join(str(step) for step in path)
    return f"{place}: " if place else ""


def _model(func: Callable[..., Any], fields: dict[str, Any]) -> type[BaseModel]:
    try:
        return create_model("Parameters", __config__=ConfigDict(extra="forbid"), **fields)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise InvalidInput(
            f"{_name(func)}: its parameters have no JSON Schema ({error}); give a params_schema"
        ) from error


@lru_cache(maxsize=1024)
def _hints(func: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(func, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidInput(f"{_name(func)}: an annotation cannot be read ({error}); give a params_schema") from error


def _name(func: Callable[..., Any]) -> str:
    return getattr(func, "__qualname__", repr(func))
