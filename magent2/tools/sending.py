"""Tools that send messages, and the one rule that decides when a message is sent.

The author of a sending tool writes a `SendingTool`: `prepare` validates a call and returns a payload, `perform` returns
the append that sends it. `definition_of` makes a tool of it. `send_or_hold` decides when the append is written:

- Outside a run, immediately.
- In a run, with the result of the call; in a Python block, in the append that ends the block. Until then it is held.
- If it cannot wait (`Arguments.urgent`), immediately. Its id is the same in every attempt at the call, so a second
  attempt does not send it twice.

When the call ends, `plan_held_sends` makes the missing plans. If the log refuses the append, because something that a
plan depends on has changed, `replan_held_sends` plans all of them again; a send that is refused then fails by name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Generic, TypeVar
from uuid import uuid4

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from magent2.bus.interface import Engine
from magent2.bus.log import Log, run_sync
from magent2.bus.operations import Append
from magent2.bus.records import digest_of
from magent2.bus.retry import retry_on_conflict
from magent2.bus.v1_adapter import is_engine
from magent2.errors import BlockDiverged, ConditionFailed, InvalidInput, Refused, TopicDeleted
from magent2.mail.delivery import SendOptions, plan_delivery
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.history import SendFacts
from magent2.sessions.steering import plan_steer
from magent2.sessions.store import with_user_message
from magent2.tools.definition import (
    ToolAnswer,
    ToolArguments,
    ToolDefinition,
    ToolExecutionContext,
    ToolExecutionResult,
    ToolSignature,
    parse_arguments,
)
from magent2.tools.interface import (
    CallScope,
    CallWriter,
    FailedSend,
    HeldSend,
    PlanCache,
    PreparedSend,
    SendKind,
    SendMark,
)


class Arguments(BaseModel):
    """The arguments of a sending tool.

    They are as strict as the JSON Schema that is made of them: "3" is not accepted as a number. A field of a type that
    JSON does not have, such as a date, needs `Field(strict=False)`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    now: bool = Field(
        default=False, description="Send immediately. The message is then sent even if the script fails later."
    )

    @property
    def urgent(self) -> bool:
        """Whether the message must be sent immediately instead of at the end of the call or block."""
        return self.now


class Payload(BaseModel):
    """All that `perform` needs to send a message, besides the log. Change `version` when the fields change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int = 1


A = TypeVar("A", bound=Arguments)
P = TypeVar("P", bound=Payload)


@dataclass(frozen=True, slots=True)
class SendResult:
    """A send that was written or is held: its id, and the topics that it is in or will be in.

    `held`: it waits for the end of the call or block.
    """

    id: str
    topics: tuple[str, ...]
    held: bool


class SendingTool(ABC, Generic[A, P]):
    """A tool that sends a message, in two steps.

    `prepare` validates the call, resolves the recipient and fixes what is sent; it changes nothing. `perform` returns
    the append that sends it, as the log is when it is called; it is called again when the log has changed. Both refuse
    with `InvalidInput` or `Refused` and a message that tells the model what to do. Both may await only `log`: a block
    also calls them on its own thread.
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
        """The recipient, as the status line of a block names it: "@bob", "agent:Sales"."""

    def kind(self, payload: P) -> SendKind | None:
        """The key that decides, together with the log, how `perform` plans this payload; and the text, which does not.

        Of the sends of a block with the same `SendKind.key`, only the first is planned when it is held. The others are
        planned when the block ends. `None`: each is planned when it is held.
        """
        return None

    def answer(self, payload: P, result: SendResult) -> ToolAnswer:
        """What the caller of the tool gets. `result.held` is true only in a block, which may still fail."""
        return {"ok": True, "envelope_id": result.id, "held": result.held}

    # The rest makes a tool of the methods above. A subclass overrides `respond` to do more than send.

    async def execute(self, raw: ToolArguments, context: ToolExecutionContext) -> ToolExecutionResult[ToolAnswer]:
        """`ToolDefinition.execute`: send or hold, on the event loop."""
        return await self.respond(parse_arguments(self.name, self.arguments, raw), context)

    async def respond(self, arguments: A, context: ToolExecutionContext) -> ToolExecutionResult[ToolAnswer]:
        log = Log(engine_of(self.name, context))
        payload = await self.prepare(log, arguments, context)
        writer = None if context.scope is None else context.scope.call_writer
        result = await send_or_hold(log, self.prepared(arguments, payload, context), writer)
        # Outside a block, the model gets this answer only after the append that sends the message with it.
        answer = self.answer(payload, replace(result, held=result.held and context.python_execution))
        deferred_payload = payload.model_dump(mode="json") if result.held else None
        return ToolExecutionResult(answer, answer, deferred_payload=deferred_payload)

    def hold(self, raw: ToolArguments, context: ToolExecutionContext) -> ToolAnswer | None:
        """`ToolDefinition.hold`: hold the send on the thread of a block, or return `None` if it cannot be held.

        A block that loops over its recipients would otherwise switch to the event loop and back for every message.
        """
        arguments, scope = parse_arguments(self.name, self.arguments, raw), context.scope
        if arguments.urgent or scope is None:
            return None
        return run_sync(engine_of(self.name, context), self._hold, arguments, context, scope)

    async def _hold(self, log: Log, arguments: A, context: ToolExecutionContext, scope: CallScope) -> ToolAnswer:
        payload = await scope.plan_cache.plan(log, self.prepare, arguments, context)
        result = await send_or_hold(log, self.prepared(arguments, payload, context))
        return self.answer(payload, result)

    async def execute_deferred(
        self, log: Log, stored: Mapping[str, object], context: ToolExecutionContext, mark: SendMark
    ) -> Append:
        """`ToolDefinition.execute_deferred`: the same plan as `perform`, from a payload in its JSON form."""
        version = self.payload.model_fields["version"].default
        if stored.get("version") != version:
            raise InvalidInput(f"{self.name}: the stored payload has version {stored.get('version')}, not {version}")
        try:
            payload = self.payload.model_validate(dict(stored))
        except ValidationError as error:
            raise InvalidInput(f"{self.name}: the stored payload cannot be read: {error}") from error
        return await self.perform(log, payload, context, mark)

    def prepared(self, arguments: A, payload: P, context: ToolExecutionContext) -> PreparedSend:
        now = arguments.urgent
        digest = digest_of({"arguments": arguments.model_dump(mode="json")}) if now else ""
        kind = self.kind(payload)
        return PreparedSend(self.name, self.target(payload), payload, context, self.perform, now, digest, kind)


def definition_of(tool: SendingTool[A, P]) -> ToolDefinition:
    """The tool as the registry takes it."""
    schema = tool.arguments.model_json_schema()
    schema.pop("title", None)
    schema["properties"]["now"] = schema["properties"].pop("now")  # the common parameter comes last
    signature = ToolSignature(tool.name, tool.description, schema)
    return ToolDefinition(
        signature, {"type": "object"}, tool.execute, tool.execute_deferred, hold=tool.hold, parses_arguments=True
    )


def has_engine(context: ToolExecutionContext) -> bool:
    """Whether the run has an engine to append to. A bus of contract v1 cannot hold messages."""
    return is_engine(context.run.bus)


def engine_of(tool: str, context: ToolExecutionContext) -> Engine:
    if not has_engine(context):
        raise InvalidInput(f"{tool} cannot send on this bus; run the agent with `magent2 worker`")
    return context.run.bus


async def send_or_hold(log: Log, prepared: PreparedSend, writer: CallWriter | None = None) -> SendResult:
    """Send now, or hold until the call or block ends. Only this function decides it.

    `writer` is for callers on the event loop of a run: an immediate send is then recorded with its position in the
    call. Without it, an immediate send is written directly, under the same id.
    """
    scope = prepared.context.scope
    if scope is None:
        return await _send_directly(log, prepared, SendMark(str(uuid4())))
    position = scope.take_position()
    if prepared.now and writer is not None:
        return await _send_recorded(log, prepared, scope, position, writer)
    mark = scope.mark(position, prepared.target)
    if prepared.now:
        return await _send_directly(log, prepared, mark)
    similar = scope.plan_cache.plan_like(prepared.plan_key) if scope.block else None
    append = similar if similar is not None else await scope.plan_cache.plan(log, prepared.plan, mark)
    scope.hold(position, HeldSend(mark, prepared, append, planned=similar is None))
    return SendResult(mark.id, topics_of(append), held=True)


async def _send_directly(log: Log, prepared: PreparedSend, mark: SendMark) -> SendResult:
    async def attempt() -> SendResult:
        append = await PlanCache().plan(log, prepared.plan, mark)
        await log.append(append)
        return SendResult(mark.id, topics_of(append), held=False)

    result = await retry_on_conflict(attempt, prepared.target, "send again")
    _observe_sent(prepared, mark)
    return result


def _observe_sent(prepared: PreparedSend, mark: SendMark) -> None:
    """Count a message that was sent before its call has ended, whatever becomes of the call."""
    scope = prepared.context.scope
    if scope is not None and scope.observed is not None:
        scope.observed.sent_now(mark.id)


async def _send_recorded(
    log: Log, prepared: PreparedSend, scope: CallScope, position: int, writer: CallWriter
) -> SendResult:
    """Send through the writer of the run, which records the send in the same append.

    A later attempt finds the record at this position and does not send again. It must make the same call there. If it
    does not, the code has diverged from what was already sent, and the block must not continue.
    """
    scope.sent_now.add(position)
    earlier = writer.earlier_send(position)
    if earlier is not None:
        if (earlier["tool"], earlier["digest"]) != (prepared.tool, prepared.digest):
            scope.diverged = (
                f"an earlier attempt sent another {earlier['tool']} at this position,"
                f" where this attempt calls {prepared.tool}"
            )
            raise BlockDiverged(scope.diverged)
        return SendResult(earlier["id"], tuple(earlier["topics"]), held=False)
    mark = scope.mark(position, prepared.target)

    async def attempt() -> SendResult:
        append = await PlanCache().plan(log, prepared.plan, mark)
        topics = topics_of(append)
        facts = SendFacts(id=mark.id, tool=prepared.tool, digest=prepared.digest, topics=list(topics))
        with refusal_as_conflict():
            await writer.send_now(position, facts, append)
        return SendResult(mark.id, topics, held=False)

    async with writer.exclusive():
        result = await retry_on_conflict(attempt, prepared.target, "send again")
    _observe_sent(prepared, mark)
    return result


@contextmanager
def refusal_as_conflict() -> Iterator[None]:
    """Raise the refusal of an append as `ConditionFailed`, for `retry_on_conflict`.

    Nothing was written. If the reason for the refusal persists, the next plan fails with an error that names it.
    """
    try:
        yield
    except (Refused, TopicDeleted) as refusal:
        raise ConditionFailed(str(refusal)) from refusal


async def plan_envelope(log: Log, envelope: MessageEnvelope, options: SendOptions, steer: bool = False) -> Append:
    """The append that delivers an envelope, as mail or as a steer, with the event that shows it in its conversation."""
    # Plans are made again, so the event has an id of the send: it is the same event in every plan.
    shown = with_user_message(envelope, options, steer=steer, record_id=f"shown:{envelope.id}")
    return await plan_steer(log, envelope, shown) if steer else await plan_delivery(log, envelope, shown)


async def plan_held_sends(log: Log, sends: Iterable[HeldSend]) -> tuple[list[HeldSend], list[FailedSend]]:
    """Plan the sends that have no plan of their own yet; return the planned ones and those that are refused."""
    planned: list[HeldSend] = []
    failures: list[FailedSend] = []
    cache = PlanCache()
    for held in sends:
        try:
            append = held.append if held.planned else await cache.plan(log, held.prepared.plan, held.mark)
        except (InvalidInput, Refused, TopicDeleted) as refusal:
            failures.append(FailedSend(held, str(refusal)))
        else:
            planned.append(HeldSend(held.mark, held.prepared, append))
            cache.note(append)
    return planned, failures


async def replan_held_sends(log: Log, sends: Iterable[HeldSend]) -> tuple[list[HeldSend], list[FailedSend]]:
    """Plan all of the sends again, after the log has refused their append."""
    return await plan_held_sends(log, [replace(held, planned=False) for held in sends])


def topics_of(append: Append) -> tuple[str, ...]:
    return tuple(dict.fromkeys([record.topic for record in append.records]))
