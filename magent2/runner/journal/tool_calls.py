"""Tool calls of a journalled run: each runs once, and its result is recorded in one append with what it sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from agents import FunctionTool, ItemHelpers, ToolOutputFileContent, ToolOutputImage, ToolOutputText
from agents.tool import invoke_function_tool
from agents.tool_context import ToolContext
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel

from magent2.bus.log import Log
from magent2.bus.operations import Append, SetHead, Write
from magent2.bus.records import NewRecord
from magent2.errors import InvalidInput, OutcomeUnknown, Refused, ResultError, TopicDeleted
from magent2.models.envelope import ToolStepEvent
from magent2.models.json_types import encodable, storable
from magent2.runner.event_mapping import RESULT_MAX_CHARS, as_text, cut, failure_in, plain_text, short_args
from magent2.runner.journal.approvals import rejection_text
from magent2.runner.journal.journal import Journal
from magent2.runner.sdk_run import sdk_tool_failure
from magent2.sessions.folds import function_calls
from magent2.sessions.history import SendFacts, ToolRecord
from magent2.sessions.stream import stream_record
from magent2.tools.definition import json_result
from magent2.tools.interface import CallOutcome, CallScope, FailedSend, HeldSend, OutcomeBuilder, call_scope
from magent2.tools.sending import plan_held_sends, replan_held_sends

if TYPE_CHECKING:
    from magent2.telemetry.observation import ObservedToolCall

RESULT_MAX_BYTES = 512 << 10  # of a result on the log; longer results do not help a model
SEND_TRIES_MAX = 8  # how often the log may change while the sends of one call are planned and written

CONTENT_TYPES = frozenset({"text", "image", "file", "input_text", "input_image", "input_file"})  # of the SDK

StructuredOutput = ToolOutputText | ToolOutputImage | ToolOutputFileContent


async def call_tool(journal: Journal, tool: FunctionTool, context: ToolContext, arguments: str, agent: str) -> object:
    """Run a tool that the model called, record its result and return it. A recorded result is returned at once."""
    call = RecordedCall(journal, journal.last_turn, context.tool_call_id, tool.name, arguments, agent)
    if (record := call.result_record) is not None:
        return record.get("value", record["output"])
    await call.start()
    if (rejection := rejection_text(journal, call.key)) is not None:
        return await call.finish(rejection, rejection, rejection)
    try:
        async with call.running() as scope:
            value = await _run_tool(tool, context, arguments)
    except ResultError as error:
        return await call.finish(str(error), str(error), f"ResultError: {error}")
    except Exception as error:
        await call.fail(sdk_tool_failure(tool.name, error).named)
        raise
    # The SDK turns what a tool raises into text for the model; the wrapped formatters note the reason.
    raised = journal.failures.pop(call.id, None)
    call.skip_turn = scope.skip_turn and raised is None
    if scope.outcome is not None and raised is None:
        return await call.finish_with_outcome(scope.outcome, scope.sends)
    failure = raised or failure_in(value, as_text(value))
    value = _objects_as_json(value)
    output = _output_for_model(context, tool, value, raised)
    return await call.finish(value, output, failure, () if raised else scope.sends)


async def _run_tool(tool: FunctionTool, context: ToolContext, arguments: str) -> object:
    """Run the tool's code. The result has a form that is the same now and when it is read from the log.

    Raises `ResultError` for a result that JSON cannot hold.
    """
    if tool.timeout_seconds is None:
        # Called directly, because the SDK marks the context when it formats a failure itself. The mark must reach the
        # SDK's own invocation, which is around this one.
        result = await tool.on_invoke_tool(context, arguments)
    else:
        result = await invoke_function_tool(function_tool=tool, context=context, arguments=arguments)
    if isinstance(result, str):
        return encodable(result)
    if isinstance(result, StructuredOutput):
        return result.model_dump(mode="json", exclude_none=True)
    if isinstance(result, list | tuple) and result and all(isinstance(item, StructuredOutput) for item in result):
        return [item.model_dump(mode="json", exclude_none=True) for item in result]
    if isinstance(result, BaseModel) and tool.output_json_schema is not None:
        result = result.model_dump(mode="json", by_alias=True)
    return storable(json_result(tool.name, result))


def _objects_as_json(value: object) -> object:
    """Objects and lists as JSON text; the SDK would show their Python form. Content items of the SDK stay objects."""
    items = value if isinstance(value, list) else [value]
    is_content = any(isinstance(item, Mapping) and item.get("type") in CONTENT_TYPES for item in items)
    return as_text(value) if isinstance(value, dict | list) and not is_content else value


def _output_for_model(context: ToolContext, tool: FunctionTool, value: object, raised: str | None) -> object:
    """The result as the SDK will show it to the model."""
    call = context.tool_call or ResponseFunctionToolCall(
        type="function_call", call_id=context.tool_call_id, name=tool.name, arguments=context.tool_arguments
    )
    schema = None if raised else tool.output_json_schema
    return ItemHelpers.tool_call_output_item(call, value, output_json_schema=schema)["output"]


async def record_sdk_outputs(journal: Journal, request: object, speaker: str) -> None:
    """Record outputs in a request that are not those of the tools, so that later runs see the same as this model.

    The SDK answers some calls itself: an unknown tool, a guardrail, a second handoff. A guardrail may also replace the
    result of a tool after it was recorded.
    """
    calls = {call["call_id"]: call for call in function_calls(journal.last_output)}
    for item in request if calls and isinstance(request, list) else ():  # without calls, the history is not searched
        if not isinstance(item, Mapping) or item.get("type") != "function_call_output":
            continue
        requested = calls.get(str(item.get("call_id")))
        if requested is None:
            continue
        facts = requested["call_id"], requested["name"], requested["arguments"], speaker
        call = RecordedCall(journal, journal.last_turn, *facts, tool_exists=False)
        output = storable(item.get("output"))
        record = call.result_record
        if record is None:
            await call.start()
            await call.record_sdk_output(output, journal.failures.pop(call.id, as_text(output)))
        elif isinstance(output, str) and record["output"] != output:
            await call.record_sdk_output(output, as_text(output))


@dataclass(slots=True)
class RecordedCall:
    """One tool call or handoff, from its start to its recorded result."""

    journal: Journal
    turn: int
    id: str
    name: str
    arguments: str
    speaker: str
    tool_exists: bool = True
    observed: ObservedToolCall | None = None
    skip_turn: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> tuple[int, str]:
        return self.turn, self.id

    @property
    def result_record(self) -> ToolRecord | None:
        return self.journal.results.get(self.key)

    def observe(self) -> None:
        """Start the trace span of the call."""
        run = self.journal.context.observed
        if run is not None:
            self.observed = run.start_tool_call(self.turn, self.id, self.name, self.arguments, self.tool_exists)

    async def start(self) -> None:
        self.observe()
        event = ToolStepEvent(
            conversation_id=self.journal.context.conversation_id,
            name=self.name,
            tool_call_id=self.id,
            status="start",
            args=short_args(self.arguments),
        )
        await self.journal.emit(self.journal.event(event, self.turn, self.speaker))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[CallScope]:
        """Open the scope of the call around the tool's own code."""
        context = self.journal.context
        scope = CallScope(
            run=context,
            key=f"{context.run_id}/{self.turn}/{self.id}",
            observed=self.observed,
            call_writer=JournalCallWriter(self.journal, self.turn, self.id),
            wait_hooks=context.waits,
            threads=self.journal.threads,
        )
        context.unfinished[self.key] = lambda: self._unfinished_records(scope)
        await context.calls_changed()
        span = nullcontext() if self.observed is None else self.observed.current()
        with call_scope(scope), span:
            try:
                yield scope
            except asyncio.CancelledError:
                # The entry stays: if the run was stopped, the worker writes these records in its last append.
                raise
            except BaseException:
                del context.unfinished[self.key]
                await context.calls_changed()
                raise
        del context.unfinished[self.key]
        await context.calls_changed()

    def _unfinished_records(self, scope: CallScope) -> Sequence[NewRecord]:
        """The records of a call whose run is stopped: what a block has done so far, without its held sends."""
        return () if scope.outcome is None else self._outcome_records(scope.outcome.build((), ()), ())

    # --- the ends of a call

    async def fail(self, reason: str) -> None:
        """Emit the failure of a call that has no result, because its error ends the run."""
        self._observe_end(reason)
        await self.journal.emit(self._end_event("", reason))

    async def finish(
        self, value: object, output: object, failure: str | None, sends: Sequence[HeldSend] = ()
    ) -> object:
        """Record the result and send the held messages, all or nothing. Return the value for the SDK.

        If the result is too large or a message is refused, the reason becomes the result and nothing is sent.
        """
        record = self._result_record(value, output, sends)
        if len(record.body) > RESULT_MAX_BYTES:
            refusal: str | None = (
                f"the result takes {len(record.body)} bytes, the limit is {RESULT_MAX_BYTES}; ask for less of it"
            )
        else:
            end = stream_record(self._end_event(as_text(plain_text(value)), failure))
            refusal = await self._commit_all((record, end), sends)
        if refusal is None:
            self._observe_end(failure, output, sends)
            return value
        self._observe_end(refusal, refusal)
        self.skip_turn = False
        end = stream_record(self._end_event(refusal, refusal))
        await self._commit((self._result_record(refusal, refusal), end), ())
        return refusal

    async def finish_with_outcome(self, outcome: OutcomeBuilder, sends: Sequence[HeldSend]) -> object:
        """Record the result that `outcome` builds and send the messages that are not refused. Return the result.

        All of it is one append: the result says which messages were sent, so none of them may be sent without it. When
        the log refuses the append, because something that a plan depends on has changed, the messages are planned again
        and the result is built again.
        """
        log = Log(self.journal.context.bus)
        positions = {held.id: position for position, held in enumerate(sends)}

        def position_of(failure: FailedSend) -> int:
            return positions[failure.send.id]

        sends, failures = await plan_held_sends(log, sends)
        for _ in range(SEND_TRIES_MAX):
            built = outcome.build(sends, failures)
            if await self._commit(self._outcome_records(built, sends), sends):
                break
            sends, refused = await replan_held_sends(log, sends)
            failures = sorted([*failures, *refused], key=position_of)
        else:
            refused = [FailedSend(held, "the recipient keeps changing; send again") for held in sends]
            failures = sorted([*failures, *refused], key=position_of)
            sends = []
            built = outcome.build(sends, failures)
            await self._commit(self._outcome_records(built, sends), sends)
        self._observe_end(built.failure, built.result, sends)
        return built.result

    async def record_sdk_output(self, output: object, failure: str) -> None:
        """Record what the SDK answered in place of the tool. A later attempt would get the same, so nothing waits."""
        self._observe_end(failure, output)
        record = self._result_record(output, output)
        self._remember(record)
        await self.journal.put(record, stream_record(self._end_event(as_text(output), failure)))

    async def record_handoff(self, output: str, sends: Sequence[HeldSend], heads: tuple[SetHead, ...] = ()) -> None:
        """Record the result of a handoff.

        A later attempt can repeat a handoff without effects outside the run, so its record waits for no append.
        Messages that its callback sends must not be repeated, so with messages it is a commit.
        """
        record = self._result_record(output, output, sends)
        if not sends:
            self._remember(record)
            await self.journal.put(record, heads=heads)
        elif (refusal := await self._commit_all((record,), sends, heads)) is not None:
            self._observe_end(refusal)
            raise InvalidInput(f"{self.name}: {refusal}")
        self._observe_end(None, output, sends)

    # --- writing

    async def _commit_all(
        self, records: Sequence[NewRecord], sends: Sequence[HeldSend], heads: tuple[SetHead, ...] = ()
    ) -> str | None:
        """Write the records and all of the sends, or nothing. Return why a send is refused."""
        for _ in range(SEND_TRIES_MAX):
            if await self._commit(records, sends, heads):
                return None
            sends, failures = await replan_held_sends(Log(self.journal.context.bus), sends)
            if failures:
                return f"nothing was sent: {failures[0].reason}"
        return "nothing was sent: the recipients keep changing; send again"

    async def _commit(
        self, records: Sequence[NewRecord], sends: Sequence[HeldSend], heads: tuple[SetHead, ...] = ()
    ) -> bool:
        """Write the records, the result first, and the sends in one append. Return False if the log refuses it.

        A crash before this append leaves neither result nor messages, and the next attempt runs the tool again. A crash
        after it leaves both, and the next attempt runs nothing.
        """
        # The own heads come last: `merge` drops conditions on head fields that an earlier part sets.
        write = Write(records=tuple(records)).merge(*(held.append for held in sends), Write(heads=heads))
        try:
            await self.journal.commit(*write.records, heads=write.heads, conditions=write.conditions)
        except (Refused, TopicDeleted):
            return False
        self._remember(records[0])
        return True

    def _remember(self, record: NewRecord) -> None:
        self.journal.results[self.key] = cast(ToolRecord, record.payload)

    def _result_record(self, value: object, output: object, sends: Sequence[HeldSend] = ()) -> NewRecord:
        more: dict[str, object] = {} if isinstance(value, str) else {"value": value}
        if self.skip_turn:
            more["skip_turn"] = True
        ids = [held.id for held in sends]
        return self.journal.context.key.tool(self.turn, self.id, self.name, output, ids, **more)

    def _outcome_records(self, outcome: CallOutcome, sends: Sequence[HeldSend]) -> Sequence[NewRecord]:
        """The records of a call with an outcome, the result first."""
        result = self._result_record(outcome.result, outcome.result, sends)
        end = stream_record(self._end_event(as_text(outcome.result), outcome.failure))
        if outcome.event is None:
            return result, end
        event = self.journal.event(outcome.event, self.turn, self.speaker)
        return result, end, stream_record({**event, "tool_call_id": self.id})

    def _end_event(self, text: str, failure: str | None) -> dict[str, object]:
        event = ToolStepEvent(
            conversation_id=self.journal.context.conversation_id,
            name=self.name,
            tool_call_id=self.id,
            status="success" if failure is None else "error",
            result_summary=cut(text, RESULT_MAX_CHARS),
            error=None if failure is None else cut(encodable(failure), RESULT_MAX_CHARS),
            duration_ms=round((time.monotonic() - self.started) * 1000),
        )
        return self.journal.event(event, self.turn, self.speaker)

    def _observe_end(self, failure: str | None, result: object = None, sent: Sequence[HeldSend] = ()) -> None:
        if self.observed is not None:
            self.observed.end(failure, result, [held.id for held in sent])


class JournalCallWriter:
    """The `CallWriter` of one tool call: writes through the journal of its run."""

    def __init__(self, journal: Journal, turn: int, call_id: str) -> None:
        self._journal = journal
        self._turn = turn
        self._call_id = call_id
        self._started = 0  # number of tools of this call that must not run twice and were started

    def earlier_send(self, position: int) -> SendFacts | None:
        return self._journal.immediate_sends.get((self._turn, self._call_id, position))

    def earlier_positions(self) -> frozenset[int]:
        own = (self._turn, self._call_id)
        return frozenset(position for *call, position in self._journal.immediate_sends if tuple(call) == own)

    def exclusive(self) -> AbstractAsyncContextManager[None]:
        return self._journal.send_lock

    async def send_now(self, position: int, facts: SendFacts, append: Append) -> None:
        record = self._journal.context.key.sent(self._turn, self._call_id, position, facts)
        records = (record, *append.records)
        await self._journal.commit(*records, heads=append.heads, conditions=append.conditions)
        self._journal.immediate_sends[self._turn, self._call_id, position] = facts

    async def begin_once(self, tool: str, digest: str) -> None:
        key = self._turn, self._call_id, self._started
        self._started += 1
        if key in self._journal.started_tools:
            raise OutcomeUnknown(
                f"{tool} was started before a crash, and it is unknown whether it was completed;"
                " it is not run again: check what it did, then continue"
            )
        # On the log before the tool runs: after a crash in between, the tool counts as started although it never ran.
        # The other order could run it twice.
        await self._journal.commit(self._journal.context.key.begun(*key, tool, digest))
        self._journal.started_tools.add(key)

    async def set_head(self, head: SetHead) -> None:
        await self._journal.put(heads=(head,))
