"""Calls of tools in a journalled run: run once, recorded in one append with what they sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from agents import FunctionTool, ItemHelpers, ToolOutputFileContent, ToolOutputImage, ToolOutputText
from agents.tool import invoke_function_tool
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel

from magent2.bus.log import Log
from magent2.bus.operations import SetHead, Write
from magent2.bus.records import NewRecord
from magent2.errors import InvalidInput, Refused, TopicDeleted
from magent2.models.envelope import BaseStreamEvent, ToolStepEvent
from magent2.runner.event_mapping import RESULT_MAX_CHARS, as_text, cut, encodable, failure_in, plain_text, short_args
from magent2.runner.journal.approvals import refusal_of
from magent2.runner.journal.call_writer import JournalCallWriter
from magent2.runner.journal.journal import Journal
from magent2.runner.stored_response import is_plain, storable
from magent2.sessions.history import ToolRecord
from magent2.sessions.stream import stream_record
from magent2.tools.interface import CallOutcome, CallScope, FailedSend, HeldSend, OutcomeBuilder, call_scope
from magent2.tools.sending import plan_held_sends, replan_held_sends

if TYPE_CHECKING:
    from magent2.telemetry.observation import ObservedToolCall

RESULT_MAX_BYTES = 512 << 10  # of a result on the log; a model is better off with less
SEND_TRIES_MAX = 8  # how often the log may move on under the sends of one call


@dataclass(slots=True)
class RecordedCall:
    """One call of a tool, from its start to its result."""

    journal: Journal
    turn: int
    id: str
    name: str
    arguments: str
    speaker: str
    known: bool = True  # the name is that of a tool which exists
    observed: ObservedToolCall | None = None
    skip_turn: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> tuple[int, str]:
        return self.turn, self.id

    @property
    def recorded(self) -> ToolRecord | None:
        return self.journal.results.get(self.key)

    def scope(self) -> CallScope:
        context = self.journal.context
        key = f"{context.run_id}/{self.turn}/{self.id}"
        call_writer = JournalCallWriter(self.journal, self.turn, self.id)
        return CallScope(
            run=context, key=key, observed=self.observed, call_writer=call_writer, wait_hooks=context.waits
        )

    def observe(self) -> None:
        """Start the observation of the call."""
        run = self.journal.context.observed
        if run is not None:
            self.observed = run.start_tool_call(self.turn, self.id, self.name, self.arguments, self.known)

    def observe_end(self, failure: str | None, result: object = None, sent: int = 0) -> None:
        if self.observed is not None:
            self.observed.end(failure, result, sent)

    async def start(self) -> None:
        self.observe()
        await self.journal.emit(self._step(status="start", args=short_args(self.arguments)))

    async def fail(self, reason: str) -> None:
        """The call ends the run: it has no result."""
        self.observe_end(reason)
        await self.journal.emit(self._ended("", reason))

    async def finish(self, value: Any, output: Any, failure: str | None, sends: Sequence[HeldSend] = ()) -> Any:
        """Record the result and let the sends go, in one append; what the model is to see."""
        record = self._record(value, output, sends)
        if len(record.body) > RESULT_MAX_BYTES:
            refusal: str | None = (
                f"the result takes {len(record.body)} bytes, the limit is {RESULT_MAX_BYTES}; ask for less of it"
            )
        else:
            refusal = await self._commit((record, self._told(as_text(plain_text(value)), failure)), sends)
        if refusal is None:
            self.observe_end(failure, output, len(sends))
            return value
        self.observe_end(refusal, refusal)
        self.skip_turn = False
        await self._commit((self._record(refusal, refusal), self._told(refusal, refusal)), ())
        return refusal

    async def close(self, outcome: OutcomeBuilder, sends: Sequence[HeldSend]) -> Any:
        """Record the result that `outcome` builds, and let those sends go that may: one append, all or nothing."""
        asked = list(sends)
        sends, failures = await plan_held_sends(Log(self.journal.context.bus), sends)
        for _ in range(SEND_TRIES_MAX):
            told = outcome.build(sends, failures)
            if await self._closed(told, sends):
                break
            sends, more = await replan_held_sends(Log(self.journal.context.bus), sends)
            failures = _in_order(asked, [*failures, *more])
        else:
            changing = [FailedSend(held, "the recipient keeps changing; send again") for held in sends]
            told = outcome.build((), _in_order(asked, [*failures, *changing]))
            await self._closed(told, ())
        self.observe_end(told.failure, told.result, len(sends))
        return told.result

    async def _closed(self, told: CallOutcome, sends: Sequence[HeldSend]) -> bool:
        own = self._closing_records(told, sends)
        write = Write(records=own).merge(*(held.append for held in sends))
        try:
            await self.journal.commit(*write.records, heads=write.heads, conditions=write.conditions)
        except (Refused, TopicDeleted):
            return False
        self._known(own[0])
        return True

    def _closing_records(self, told: CallOutcome, sends: Sequence[HeldSend] = ()) -> tuple[NewRecord, ...]:
        """The result comes first."""
        result = self._record(told.result, told.result, sends)
        event = () if told.event is None else (stream_record(self._placed(told.event)),)
        return (result, self._told(as_text(told.result), told.failure), *event)

    @contextmanager
    def at_work(self) -> Iterator[CallScope]:
        """Around the tool's own code. If the run is stopped meanwhile, there is something to tell of it."""
        scope = self.scope()
        unfinished = self.journal.context.unfinished
        unfinished[self.key] = lambda: self._cut_off(scope)
        with call_scope(scope), seen(self.observed):
            try:
                yield scope
            except asyncio.CancelledError:
                raise  # who has cancelled it may want to know
            except BaseException:
                del unfinished[self.key]
                raise
        del unfinished[self.key]

    def _cut_off(self, scope: CallScope) -> Sequence[NewRecord]:
        return () if scope.outcome is None else self._closing_records(scope.outcome.build((), ()))

    def _placed(self, event: BaseStreamEvent) -> dict[str, Any]:
        return {**self.journal.event(event, self.turn, self.speaker), "tool_call_id": self.id}

    async def note(self, output: Any, failure: str) -> None:
        """Record what the SDK answered in the tool's place: it would again, so this rides with the next append."""
        self.observe_end(failure, output)
        await self.journal.put(self._known(self._record(output, output)), self._told(as_text(output), failure))

    async def hand_over(self, output: str, sends: Sequence[HeldSend], heads: tuple[SetHead, ...] = ()) -> None:
        """Record a handoff, which is a call as well. It is done again at no cost, unless something was sent."""
        record = self._record(output, output, sends)
        if not sends:
            await self.journal.put(self._known(record), heads=heads)
        elif (refusal := await self._commit((record,), sends, heads)) is not None:
            self.observe_end(refusal)
            raise InvalidInput(f"{self.name}: {refusal}")
        self.observe_end(None, output, len(sends))

    async def _commit(
        self, told: Sequence[NewRecord], sends: Sequence[HeldSend], own_heads: tuple[SetHead, ...] = ()
    ) -> str | None:
        """One append, the first record the result; or why its sends cannot be sent."""
        for _ in range(SEND_TRIES_MAX):
            write = Write(records=tuple(told)).merge(*(held.append for held in sends), Write(heads=own_heads))
            try:
                await self.journal.commit(*write.records, heads=write.heads, conditions=write.conditions)
            except (Refused, TopicDeleted):
                sends, failures = await replan_held_sends(Log(self.journal.context.bus), sends)
                if failures:
                    return f"nothing was sent: {failures[0].reason}"
            else:
                self._known(told[0])
                return None
        return "nothing was sent: the recipients keep changing; send again"

    def _record(self, value: Any, output: Any, sends: Sequence[HeldSend] = ()) -> NewRecord:
        more = {} if isinstance(value, str) else {"value": value}
        if self.skip_turn:
            more["skip_turn"] = True
        ids = [held.id for held in sends]
        return self.journal.context.key.tool(self.turn, self.id, self.name, output, ids, **more)

    def _known(self, record: NewRecord) -> NewRecord:
        self.journal.results[self.key] = cast(ToolRecord, record.payload)
        return record

    def _told(self, text: str, failure: str | None) -> NewRecord:
        return stream_record(self._ended(text, failure))

    def _ended(self, text: str, failure: str | None) -> dict[str, Any]:
        return self._step(
            status="success" if failure is None else "error",
            result_summary=cut(text, RESULT_MAX_CHARS),
            error=None if failure is None else cut(encodable(failure), RESULT_MAX_CHARS),
            duration_ms=round((time.monotonic() - self.started) * 1000),
        )

    def _step(self, **facts: Any) -> dict[str, Any]:
        event = ToolStepEvent(
            conversation_id=self.journal.context.conversation_id, name=self.name, tool_call_id=self.id, **facts
        )
        return self.journal.event(event, self.turn, self.speaker)


def _in_order(asked: Sequence[HeldSend], failures: Sequence[FailedSend]) -> list[FailedSend]:
    places = {held.id: place for place, held in enumerate(asked)}
    return sorted(failures, key=lambda failure: places[failure.send.id])


def seen(observed: ObservedToolCall | None) -> AbstractContextManager[None]:
    """Around the code of a tool: spans that it makes itself are parts of its call."""
    return nullcontext() if observed is None else observed.current()


# --- The tools of a journalled run: each is asked once, and its answer put as the log keeps it and as a model sees it

CONTENT = frozenset({"text", "image", "file", "input_text", "input_image", "input_file"})  # of the SDK, by `type`

Structured = ToolOutputText | ToolOutputImage | ToolOutputFileContent


async def call_tool(journal: Journal, tool: FunctionTool, context: ToolContext[Any], arguments: str, agent: str) -> Any:
    """What the tool answers: from the journal when it has answered already."""
    call = RecordedCall(journal, journal.turn - 1, context.tool_call_id, tool.name, arguments, agent)
    if call.recorded is not None:
        return call.recorded.get("value", call.recorded["output"])
    await call.start()
    if (refusal := refusal_of(journal, call.key)) is not None:
        return await call.finish(refusal, refusal, refusal)
    try:
        with call.at_work() as scope:
            value = _settled(await _invoke(tool, context, arguments), tool)
    except Exception as error:
        await call.fail(f"{type(error).__name__}: {error}")
        raise
    failed = journal.failures.pop(call.id, None)
    call.skip_turn = scope.skip_turn and failed is None
    if scope.outcome is not None and failed is None:
        return await call.close(scope.outcome, scope.sends)
    told = failed or failure_in(value, as_text(value))
    value = _worded(value)
    output = _shown(context, tool, value, failed)
    return await call.finish(value, output, told, () if failed else scope.sends)


async def _invoke(tool: FunctionTool, context: ToolContext[Any], arguments: str) -> Any:
    """The SDK leaves a mark on the context when it words a failure itself; it stays if nothing is put in between."""
    if tool.timeout_seconds is None:
        return await tool.on_invoke_tool(context, arguments)
    return await invoke_function_tool(function_tool=tool, context=context, arguments=arguments)


def _worded(value: Any) -> Any:
    """Objects and lists as JSON: the SDK would show a model how Python prints them. Its own content stays as it is."""
    blocks = value if isinstance(value, list) else [value]
    is_content = any(isinstance(block, Mapping) and block.get("type") in CONTENT for block in blocks)
    return as_text(value) if isinstance(value, dict | list) and not is_content else value


def _settled(result: Any, tool: FunctionTool) -> Any:
    """The result in a form that is the same now and when it is read from the log."""
    if isinstance(result, str):
        return encodable(result)
    if isinstance(result, Structured):
        return result.model_dump(mode="json", exclude_none=True)
    if isinstance(result, list | tuple) and result and all(isinstance(item, Structured) for item in result):
        return [item.model_dump(mode="json", exclude_none=True) for item in result]
    if isinstance(result, BaseModel) and tool.output_json_schema is not None:
        return storable(result.model_dump(mode="json", by_alias=True))
    return result if is_plain(result) else encodable(str(result))


def _shown(context: ToolContext[Any], tool: FunctionTool, value: Any, failed: str | None) -> Any:
    """The result as the SDK will show it to the model."""
    call = context.tool_call or ResponseFunctionToolCall(
        type="function_call", call_id=context.tool_call_id, name=tool.name, arguments=context.tool_arguments
    )
    schema = None if failed else tool.output_json_schema
    return ItemHelpers.tool_call_output_item(call, value, output_json_schema=schema)["output"]
