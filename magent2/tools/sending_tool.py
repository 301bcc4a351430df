"""A tool that sends, as its author writes it: `prepare` and `perform`. When it leaves is decided elsewhere."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magent2.bus.interface import Engine
from magent2.bus.log import Log, run_sync
from magent2.bus.operations import Append
from magent2.bus.records import digest_of
from magent2.errors import InvalidInput
from magent2.tools.definition import ToolDefinition, ToolExecutionContext, ToolExecutionResult, ToolSignature
from magent2.tools.interface import CallScope, PreparedSend, SendKind, SendMark
from magent2.tools.sending import SendResult, dispatch, send_or_hold


class Arguments(BaseModel):
    """What the caller of a sending tool gives."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    now: bool = Field(default=False, description="Send at once, even if the script around this call fails later.")

    @property
    def urgent(self) -> bool:
        """Whether it cannot wait for the end of a block."""
        return self.now


class Payload(BaseModel):
    """All that a send needs when it leaves: kept as JSON. Give another `version` to another shape."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1


A = TypeVar("A", bound=Arguments)
P = TypeVar("P", bound=Payload)


class SendingTool(ABC, Generic[A, P]):
    """The two halves of a send.

    `prepare` validates, resolves the target and pins what is sent; it changes nothing. `perform` makes the append that
    is the send, as things stand when it leaves; it is asked again when the log has moved on. Both refuse with
    `InvalidInput` or `Refused`, in words that tell the model what to do.
    """

    name: str
    description: str
    arguments: type[A]
    payload: type[P]

    @abstractmethod
    async def prepare(self, log: Log, arguments: A, context: ToolExecutionContext) -> P: ...

    @abstractmethod
    async def perform(self, log: Log, payload: P, context: ToolExecutionContext, mark: SendMark) -> Append: ...

    @abstractmethod
    def target(self, payload: P) -> str:
        """Whom it goes to, for the status line: "@bob", "agent:Sales"."""

    def kind(self, payload: P) -> SendKind | None:
        """What decides how `perform` goes about it, besides the log, and the text, which does not.

        Of sends that go the same way only the first of a block is planned when it is held, the others when the block
        has ended. `None`: each is planned when it is held.
        """
        return None

    def answer(self, payload: P, sent: SendResult) -> dict[str, Any]:
        """What the caller is told."""
        return {"ok": True, "envelope_id": sent.id, "held": sent.held}


def definition_of(tool: SendingTool[A, P]) -> ToolDefinition:
    """The tool as the registry takes it."""
    schema = tool.arguments.model_json_schema()
    schema.pop("title", None)
    schema["properties"]["now"] = schema["properties"].pop("now")  # what all have in common comes last

    def prepared(arguments: A, payload: P, context: ToolExecutionContext) -> PreparedSend:
        now = arguments.urgent
        asked = digest_of({"arguments": arguments.model_dump(mode="json")}) if now else ""
        stored = partial(payload.model_dump, mode="json")

        def planning(log: Log, mark: SendMark) -> Coroutine[Any, Any, Append]:
            return tool.perform(log, payload, context, mark)

        return PreparedSend(tool.name, tool.target(payload), stored, planning, now, asked, tool.kind(payload))

    async def execute(given: Mapping[str, Any], context: ToolExecutionContext) -> ToolExecutionResult[dict[str, Any]]:
        arguments, bus = _parsed(tool.name, tool.arguments, given), log_of(tool.name, context)
        payload = await tool.prepare(Log(bus), arguments, context)
        ready = prepared(arguments, payload, context)
        sent = await dispatch(bus, ready, context.scope)
        answer = tool.answer(payload, sent)
        return ToolExecutionResult(answer, answer, deferred_payload=ready.payload() if sent.held else None)

    async def holding(log: Log, arguments: A, context: ToolExecutionContext, scope: CallScope) -> dict[str, Any]:
        payload = await scope.plan_cache.plan(log, lambda log: tool.prepare(log, arguments, context))
        sent = await send_or_hold(log, prepared(arguments, payload, context), scope)
        return tool.answer(payload, sent)

    def hold(given: Mapping[str, Any], context: ToolExecutionContext) -> dict[str, Any] | None:
        arguments, scope = _parsed(tool.name, tool.arguments, given), context.scope
        if arguments.urgent or scope is None:
            return None
        return run_sync(log_of(tool.name, context), holding, arguments, context, scope)

    async def execute_deferred(
        log: Log, stored: Mapping[str, Any], context: ToolExecutionContext, mark: SendMark
    ) -> Append:
        _check_version(tool, stored)
        return await tool.perform(log, _parsed(tool.name, tool.payload, stored), context, mark)

    signature = ToolSignature(tool.name, tool.description, schema)
    return ToolDefinition(signature, {"type": "object"}, execute, execute_deferred, hold=hold)


def has_log(context: ToolExecutionContext) -> bool:
    """Whether there is anywhere to hold a message: a run of contract v1 on its own has no log."""
    return hasattr(context.run.bus, "call")


def log_of(tool: str, context: ToolExecutionContext) -> Engine:
    """Where a send goes."""
    if not has_log(context):
        raise InvalidInput(f"{tool} has no log to send on here; run the agent on a bus, as `magent2 worker` does")
    return context.run.bus


def _check_version(tool: SendingTool[Any, Any], stored: Mapping[str, Any]) -> None:
    own = tool.payload.model_fields["version"].default
    if stored.get("version") != own:
        raise InvalidInput(f"{tool.name}: a payload of version {stored.get('version')} was kept, this reads {own}")


M = TypeVar("M", bound=BaseModel)


def _parsed(tool: str, model: type[M], given: Mapping[str, Any]) -> M:
    try:
        return model.model_validate(dict(given))
    except ValidationError as error:
        faults = error.errors(include_url=False, include_context=False, include_input=False)
        told = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in faults[:3])
        raise InvalidInput(f"{tool}: {told}") from error
