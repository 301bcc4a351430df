"""Tools made of Python functions, the registry of tools by name, and which of them an agent may use.

    @tool
    def weather(city: str) -> str:
        '''The weather in a city.'''

A parameter annotated `RunFacts` receives the facts of the run; the model does not see it.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints, overload

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, create_model
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from magent2.errors import InvalidInput, SettingsError, ToolTimedOut, UnknownTool
from magent2.errors import ToolError as ToolError  # noqa: PLC0414  re-exported: tool authors import it with `tool`
from magent2.fair_share import FairThreads
from magent2.import_path import import_attribute
from magent2.models.json_types import JsonObject
from magent2.tools.builtins import BUILTINS
from magent2.tools.definition import (
    JsonSchema,
    Repeat,
    ToolArguments,
    ToolDefinition,
    ToolExecutionContext,
    ToolExecutionResult,
    ToolSignature,
    check_arguments,
    parse_arguments,
)
from magent2.tools.interface import TOOL_THREADS_MAX, RunFacts, run_in_tool_thread

TOOL_MAX_S = 300.0  # default time limit of one call
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # the names that models accept for functions
DESCRIPTION_MAX_CHARS = 4000
NAMED_PARAMETERS = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


@dataclass(frozen=True, slots=True)
class FunctionParameters:
    """The parameters of a function without the facts of the run, as a pydantic model.

    Its fields are numbered, because a parameter may have a name that pydantic does not allow for a field.
    """

    model: type[BaseModel]
    names: tuple[str, ...]

    @classmethod
    def of(cls, func: Callable[..., object]) -> FunctionParameters:
        hints = _hints(func)
        fields: dict[str, Any] = {}
        names: list[str] = []
        for name, parameter in inspect.signature(func).parameters.items():
            if hints.get(name) is RunFacts:
                continue
            if parameter.kind not in NAMED_PARAMETERS:
                raise InvalidInput(f"{_name(func)}: parameter {name!r} cannot be passed by name; give a params_schema")
            default = ... if parameter.default is inspect.Parameter.empty else parameter.default
            fields[f"p{len(names)}"] = (hints.get(name, Any), Field(default, alias=name))
            names.append(name)
        return cls(_model(func, fields), tuple(names))

    def schema(self) -> JsonObject:
        """JSON Schema without the titles that pydantic generates."""
        schema = self.model.model_json_schema()
        schema.pop("title", None)
        schema.setdefault("properties", {})
        for inner in schema["properties"].values():
            inner.pop("title", None)
        return schema

    def values(self, tool: str, arguments: ToolArguments) -> dict[str, object]:
        """Convert arguments to the types that the function declares, such as dates and models.

        The arguments fit the schema already. The model alone would not do: it converts "3" to a number, and a strict
        model would refuse the text of a date.
        """
        parsed = parse_arguments(tool, self.model, arguments)
        return {name: getattr(parsed, f"p{number}") for number, name in enumerate(self.names)}


def facts_parameter(func: Callable[..., object]) -> str | None:
    """The name of the parameter that is annotated `RunFacts`, if there is one."""
    return next((name for name, hint in _hints(func).items() if hint is RunFacts and name != "return"), None)


def returns_of(func: Callable[..., object]) -> JsonObject:
    """JSON Schema of what a function returns; empty if its annotation has none."""
    hint: Any = _hints(func).get("return", Any)
    try:
        return TypeAdapter(hint).json_schema(mode="serialization")
    except (PydanticSchemaGenerationError, PydanticUserError):
        return {}


def check_schema(tool: str, schema: JsonSchema) -> None:
    """Refuse a schema that arguments cannot be validated against."""
    jsonschema = import_module("jsonschema")
    if schema.get("type") != "object":
        raise InvalidInput(f'params_schema of tool {tool!r} must have "type": "object"')
    try:
        jsonschema.Draft202012Validator.check_schema(dict(schema))
    except jsonschema.SchemaError as error:
        raise InvalidInput(f"params_schema of tool {tool!r} is not a JSON Schema: {error.message[:200]}") from error


def _model(func: Callable[..., object], fields: dict[str, Any]) -> type[BaseModel]:
    try:
        return create_model("Parameters", __config__=ConfigDict(extra="forbid"), **fields)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        raise InvalidInput(
            f"{_name(func)}: its parameters have no JSON Schema ({error}); give a params_schema"
        ) from error


@lru_cache(maxsize=1024)
def _hints(func: Callable[..., object]) -> dict[str, object]:
    try:
        return get_type_hints(func, include_extras=True)
    except (NameError, TypeError) as error:
        raise InvalidInput(f"{_name(func)}: an annotation cannot be read ({error}); give a params_schema") from error


def _name(func: Callable[..., object]) -> str:
    return getattr(func, "__qualname__", repr(func))


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool made of a function. Without a `params_schema`, it is derived from the function's signature."""

    name: str
    description: str
    func: Callable[..., Any]
    params_schema: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = TOOL_MAX_S
    repeat: Repeat = "again"
    needs_approval: bool = False
    _parameters: FunctionParameters | None = field(default=None, init=False, repr=False, compare=False)
    _facts: str | None = field(default=None, init=False, repr=False, compare=False)
    _threads: FairThreads = field(
        default_factory=lambda: FairThreads(TOOL_THREADS_MAX), init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InvalidInput(f"tool {self.name[:80]!r} needs a name of 1 to 64 letters, digits, '_' or '-'")
        if not self.description.strip():
            raise InvalidInput(f"tool {self.name!r} needs a description: a model reads it to know when to call it")
        if self.timeout_s <= 0:
            raise InvalidInput(f"tool {self.name!r}: timeout_s must be more than 0, not {self.timeout_s:g}")
        object.__setattr__(self, "_facts", facts_parameter(self.func))
        if not self.params_schema:
            parameters = FunctionParameters.of(self.func)
            object.__setattr__(self, "_parameters", parameters)
            object.__setattr__(self, "params_schema", parameters.schema())
        check_schema(self.name, self.params_schema)

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Call the function itself."""
        return self.func(*args, **kwargs)

    async def run(self, arguments: ToolArguments, facts: RunFacts) -> object:
        """Validate the arguments and call the function."""
        check_arguments(self.name, self.params_schema, arguments)
        return await self.call(arguments, facts)

    async def call(self, arguments: ToolArguments, facts: RunFacts) -> object:
        """Call the function with validated arguments: on the event loop if it is asynchronous, else in a thread."""
        parameters = self._parameters
        values = dict(arguments) if parameters is None else parameters.values(self.name, arguments)
        if self._facts is not None:
            values[self._facts] = facts
        clock = asyncio.timeout(self.timeout_s)
        try:
            async with clock:
                if inspect.iscoroutinefunction(self.func):
                    return await self.func(**values)
                return await run_in_tool_thread(self._threads, self.func, **values)
        except TimeoutError:
            if not clock.expired():
                raise
            raise ToolTimedOut(f"{self.name} took longer than {self.timeout_s:g} s") from None

    def definition(self) -> ToolDefinition:
        """The tool as the registry keeps it. The model and Python blocks get what the function returns."""
        signature = ToolSignature(self.name, self.description, self.params_schema)
        return ToolDefinition(
            signature, returns_of(self.func), self._execute, repeat=self.repeat, needs_approval=self.needs_approval
        )

    async def _execute(self, arguments: ToolArguments, context: ToolExecutionContext) -> ToolExecutionResult[object]:
        value = await self.call(arguments, context.run)  # `ToolDefinition.run` has validated the arguments
        return ToolExecutionResult(value, value)


@overload
def tool(func: Callable[..., object]) -> ToolSpec: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    params_schema: JsonSchema | None = None,
    timeout_s: float = TOOL_MAX_S,
    repeat: Repeat = "again",
    needs_approval: bool = False,
) -> Callable[[Callable[..., object]], ToolSpec]: ...


def tool(
    func: Callable[..., object] | None = None, **options: Any
) -> ToolSpec | Callable[[Callable[..., object]], ToolSpec]:
    """Make a tool of a function. Name and description default to those of the function."""
    return spec_of(func, **options) if func is not None else lambda inner: spec_of(inner, **options)


def spec_of(
    func: Callable[..., object],
    *,
    name: str | None = None,
    description: str | None = None,
    params_schema: JsonSchema | None = None,
    timeout_s: float = TOOL_MAX_S,
    repeat: Repeat = "again",
    needs_approval: bool = False,
) -> ToolSpec:
    summary = description or inspect.cleandoc(func.__doc__ or "").partition("\n\n")[0]
    text = " ".join(summary.split())[:DESCRIPTION_MAX_CHARS]
    return ToolSpec(
        name or str(getattr(func, "__name__", "")), text, func, params_schema or {}, timeout_s, repeat, needs_approval
    )


class ToolRegistry:
    """The tools of a process by name."""

    def __init__(self, tools: Iterable[ToolSpec | ToolDefinition] = ()) -> None:
        self._tools: dict[str, ToolDefinition] = {}
        self._paths: dict[str, str] = {}
        for entry in tools:
            self.register(entry)

    def register(self, entry: ToolSpec | ToolDefinition) -> ToolDefinition:
        definition = entry.definition() if isinstance(entry, ToolSpec) else entry
        if definition.name in self._tools:
            raise InvalidInput(f"a tool {definition.name!r} is registered already; give this one another name")
        self._tools[definition.name] = definition
        return definition

    def follow(self, paths: Mapping[str, str], folder: Path | None = None) -> None:
        """Register the tools of an agents file, `name = "module:attribute"`, and remove those it no longer names.

        Modules are looked for in `folder` first. A module that was imported is not imported again.
        """
        new = {name: load_tool(name, path, folder) for name, path in paths.items() if self._paths.get(name) != path}
        for name in [name for name in self._paths if name not in paths or name in new]:
            del self._tools[name], self._paths[name]
        for name, entry in new.items():
            self.register(entry)
            self._paths[name] = paths[name]

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def get(self, name: str) -> ToolDefinition:
        if name not in self._tools:
            raise UnknownTool(f"unknown tool {name[:80]!r}; known tools: {', '.join(self.names()) or 'none'}")
        return self._tools[name]

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._tools))

    def schemas(self) -> list[JsonObject]:
        """Every tool as `{name, description, params_schema}`, by name."""
        return [self._tools[name].shown() for name in self.names()]

    def check_arguments(self, name: str, arguments: object) -> None:
        """Raise `UnknownTool`, or `ArgumentsError` with what does not fit."""
        check_arguments(name, self.get(name).params_schema, arguments)


def load_tool(name: str, path: str, folder: Path | None = None) -> ToolSpec | ToolDefinition:
    """The tool at `module:attribute`: a `ToolSpec`, a `ToolDefinition` of that name, or any function."""
    target = import_attribute(path, folder, what=f"tool {name!r}")
    if isinstance(target, ToolDefinition):
        if target.name != name:
            raise SettingsError(f"tool {name!r}: {path[:200]!r} is called {target.name!r}; use that name in the file")
        return target
    if isinstance(target, ToolSpec):
        return (
            target
            if target.name == name
            else spec_of(
                target.func,
                name=name,
                description=target.description,
                params_schema=None if target._parameters else target.params_schema,
                timeout_s=target.timeout_s,
                repeat=target.repeat,
                needs_approval=target.needs_approval,
            )
        )
    if not callable(target):
        raise SettingsError(f"tool {name!r}: {path[:200]!r} is a {type(target).__name__}, not a function")
    return spec_of(target, name=name)


# MCP server → its tools that an agent may use; `None` for all of them.
Grants: TypeAlias = Mapping[str, frozenset[str] | None]


def grants_of(tools: Iterable[str], servers: Iterable[str]) -> Grants:
    """The tools of MCP servers that an agent's lists allow: `server.tool` in `tools`, or whole servers."""
    granted: dict[str, frozenset[str] | None] = {}
    for name in tools:
        server, dot, tool = name.partition(".")
        if dot:
            granted[server] = (granted.get(server) or frozenset()) | {tool}
    return {**{name: None for name in servers if name not in granted}, **granted}


def may_run(tools: Collection[str], servers: Iterable[str], name: str) -> bool:
    """Whether an agent's lists allow a tool to be run by name. Built-in tools run at the model's provider only."""
    if not name or name in BUILTINS:
        return False
    server, dot, tool = name.partition(".")
    if not dot:
        return name in tools
    granted = grants_of(tools, servers).get(server, frozenset())
    return granted is None or tool in granted
