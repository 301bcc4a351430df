"""Tools by name: what each does, what it takes, and the function that does it.

    @tool
    def weather(city: str) -> str:
        '''The weather in a city.'''

A parameter annotated `RunFacts` is given the facts of the run and is not the caller's to fill.
"""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any, TypeAlias, overload

from magent2.errors import InvalidInput, SettingsError, UnknownTool
from magent2.tools.builtins import BUILTINS
from magent2.tools.definition import (
    Parameters,
    Repeat,
    ToolDefinition,
    ToolExecutionContext,
    ToolExecutionResult,
    ToolSignature,
    check_arguments,
    check_schema,
    facts_parameter,
    returns_of,
)
from magent2.tools.interface import RunFacts

TOOL_MAX_S = 300.0  # what one call may take, unless its tool says otherwise
NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # what models take as the name of a function
DESCRIPTION_MAX_CHARS = 4000


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool. Without a `params_schema` it is taken from the function's signature."""

    name: str
    description: str
    func: Callable[..., Any]
    params_schema: Mapping[str, Any] = field(default_factory=dict)
    timeout_s: float = TOOL_MAX_S
    repeat: Repeat = "again"
    needs_approval: bool = False
    _parameters: Parameters | None = field(default=None, init=False, repr=False, compare=False)
    _facts: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise InvalidInput(f"tool {self.name[:80]!r} needs a name of 1 to 64 letters, digits, '_' or '-'")
        if not self.description.strip():
            raise InvalidInput(f"tool {self.name!r} needs a description: a model reads it to know when to call it")
        if self.timeout_s <= 0:
            raise InvalidInput(f"tool {self.name!r}: timeout_s must be more than 0, not {self.timeout_s:g}")
        object.__setattr__(self, "_facts", facts_parameter(self.func))
        if not self.params_schema:
            parameters = Parameters.of(self.func)
            object.__setattr__(self, "_parameters", parameters)
            object.__setattr__(self, "params_schema", parameters.schema())
        check_schema(self.name, self.params_schema)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The function itself, as if it had not been made a tool."""
        return self.func(*args, **kwargs)

    async def run(self, arguments: Mapping[str, Any], facts: RunFacts) -> Any:
        """Check the arguments and call the function: on the loop if it is asynchronous, else in a thread."""
        given = self.prepared(arguments)
        if self._facts is not None:
            given[self._facts] = facts
        clock = asyncio.timeout(self.timeout_s)
        try:
            async with clock:
                if inspect.iscoroutinefunction(self.func):
                    return await self.func(**given)
                return await asyncio.to_thread(self.func, **given)
        except TimeoutError as error:
            if not clock.expired():
                raise
            raise TimeoutError(f"{self.name} took longer than {self.timeout_s:g} s") from error

    def prepared(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        check_arguments(self.name, self.params_schema, arguments)
        return dict(arguments) if self._parameters is None else self._parameters.values(self.name, arguments)

    def definition(self) -> ToolDefinition:
        """The tool as the registry keeps it: what the function returns is for the model and for code alike."""

        async def execute(arguments: Mapping[str, Any], context: ToolExecutionContext) -> ToolExecutionResult[Any]:
            value = await self.run(arguments, context.run)
            return ToolExecutionResult(value, value)

        signature = ToolSignature(self.name, self.description, self.params_schema)
        return ToolDefinition(
            signature, returns_of(self.func), execute, repeat=self.repeat, needs_approval=self.needs_approval
        )


@overload
def tool(func: Callable[..., Any]) -> ToolSpec: ...


@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    params_schema: Mapping[str, Any] | None = None,
    timeout_s: float = TOOL_MAX_S,
    repeat: Repeat = "again",
    needs_approval: bool = False,
) -> Callable[[Callable[..., Any]], ToolSpec]: ...


def tool(func: Callable[..., Any] | None = None, **options: Any) -> ToolSpec | Callable[[Callable[..., Any]], ToolSpec]:
    """Make a tool of a function. Name and description are the function's own unless they are given."""
    return spec_of(func, **options) if func is not None else lambda inner: spec_of(inner, **options)


def spec_of(
    func: Callable[..., Any],
    *,
    name: str | None = None,
    description: str | None = None,
    params_schema: Mapping[str, Any] | None = None,
    timeout_s: float = TOOL_MAX_S,
    repeat: Repeat = "again",
    needs_approval: bool = False,
) -> ToolSpec:
    words = description or inspect.cleandoc(func.__doc__ or "").partition("\n\n")[0]
    text = " ".join(words.split())[:DESCRIPTION_MAX_CHARS]
    named = name or str(getattr(func, "__name__", ""))
    return ToolSpec(named, text, func, params_schema or {}, timeout_s, repeat, needs_approval)


class ToolRegistry:
    """Tools that there are, each name once."""

    def __init__(self, tools: Iterable[ToolSpec | ToolDefinition] = ()) -> None:
        self._tools: dict[str, ToolDefinition] = {}
        self._paths: dict[str, str] = {}
        for given in tools:
            self.register(given)

    def register(self, given: ToolSpec | ToolDefinition) -> ToolDefinition:
        definition = given.definition() if isinstance(given, ToolSpec) else given
        if definition.name in self._tools:
            raise InvalidInput(f"there is a tool {definition.name!r} already; give this one another name")
        self._tools[definition.name] = definition
        return definition

    def follow(self, paths: Mapping[str, str], folder: Path | None = None) -> None:
        """Register what a file of agents names, `name = "module:attribute"`; what it no longer names goes.

        `folder` is where modules are looked for first. A module that was imported is not imported again.
        """
        changed = {name: path for name, path in paths.items() if self._paths.get(name) != path}
        found = {name: load_tool(name, path, folder) for name, path in changed.items()}
        for name in [name for name in self._paths if name not in paths or name in changed]:
            del self._tools[name], self._paths[name]
        for name, loaded in found.items():
            self.register(loaded)
            self._paths[name] = paths[name]

    def __contains__(self, name: str) -> bool:
        return name in self._tools

    def get(self, name: str) -> ToolDefinition:
        if name not in self._tools:
            raise UnknownTool(f"there is no tool {name[:80]!r}; there is: {', '.join(self.names()) or 'none'}")
        return self._tools[name]

    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._tools))

    def schemas(self) -> list[dict[str, Any]]:
        """Every tool as `{name, description, params_schema}`, by name."""
        return [self._tools[name].shown() for name in self.names()]

    def check_arguments(self, name: str, arguments: object) -> None:
        """Raise `UnknownTool`, or `ArgumentsError` with what does not fit."""
        check_arguments(name, self.get(name).params_schema, arguments)


def load_tool(name: str, path: str, folder: Path | None = None) -> ToolSpec | ToolDefinition:
    """The tool at `module:attribute`: a `ToolSpec`, a `ToolDefinition` of that name, or any function."""
    module, _, attribute = path.partition(":")
    if folder is not None and str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
    try:
        found: Any = import_module(module)
        for step in attribute.split("."):
            found = getattr(found, step)
    except (ImportError, AttributeError, SyntaxError, ValueError) as error:
        raise SettingsError(
            f"tool {name!r}: {path[:200]!r} cannot be loaded ({type(error).__name__}: {error})"
        ) from error
    if isinstance(found, ToolDefinition):
        if found.name != name:
            raise SettingsError(f"tool {name!r}: {path[:200]!r} is called {found.name!r}; name it so in the file")
        return found
    if isinstance(found, ToolSpec):
        return (
            found
            if found.name == name
            else spec_of(
                found.func,
                name=name,
                description=found.description,
                params_schema=None if found._parameters else found.params_schema,
                timeout_s=found.timeout_s,
                repeat=found.repeat,
                needs_approval=found.needs_approval,
            )
        )
    if not callable(found):
        raise SettingsError(f"tool {name!r}: {path[:200]!r} is a {type(found).__name__}, not a function")
    return spec_of(found, name=name)


# --- What an agent's two lists allow: its own tools by name, and those of MCP servers as `server.tool`.

# Server → the tools of it that may be used; all of them where there is None.
Grants: TypeAlias = Mapping[str, frozenset[str] | None]


def grants_of(tools: Iterable[str], servers: Iterable[str]) -> Grants:
    """What the lists allow of MCP servers."""
    granted: dict[str, frozenset[str] | None] = {}
    for name in tools:
        server, dot, tool = name.partition(".")
        if dot:
            granted[server] = (granted.get(server) or frozenset()) | {tool}
    return {**{name: None for name in servers if name not in granted}, **granted}


def may_run(tools: Collection[str], servers: Iterable[str], name: str) -> bool:
    """Whether the lists allow a tool to be run by name. Built-in tools are not: the model's provider runs them."""
    if not name or name in BUILTINS:
        return False
    server, dot, tool = name.partition(".")
    if not dot:
        return name in tools
    granted = grants_of(tools, servers).get(server, frozenset())
    return granted is None or tool in granted
