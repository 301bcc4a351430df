"""What a tool is: how a model sees it, what it gives back, how it is run, and how what it holds back is done later."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from magent2.bus.flow import Flow
from magent2.bus.operations import Append
from magent2.bus.records import digest_of
from magent2.tools.interface import CallScope, RunFacts, SendMark, current_scope
from magent2.tools.parameters import check_arguments

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
ExecuteDeferred: TypeAlias = Callable[[Mapping[str, Any], ToolExecutionContext, SendMark], Flow[Append]]


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
        if self.repeat == "never" and scope is not None and scope.pen is not None:
            await scope.pen.begin(self.name, digest_of({"arguments": arguments}))
        result = await self.execute(arguments, ToolExecutionContext(facts, scope))
        if result.skip_turn and scope is not None:
            scope.skip_turn = True
        return result

    def shown(self) -> dict[str, Any]:
        return {"name": self.name, "description": self.description, "params_schema": dict(self.params_schema)}
