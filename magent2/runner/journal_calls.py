"""Calls of tools in a journalled run: run once, recorded in one append with what they sent."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from magent2.bus.flow import arun
from magent2.bus.operations import SetHead
from magent2.bus.records import NewRecord
from magent2.errors import InvalidInput, Refused, TopicDeleted
from magent2.models.envelope import BaseStreamEvent, ToolStepEvent
from magent2.runner.event_mapping import RESULT_MAX_CHARS, as_text, cut, encodable, plain_text, short_args
from magent2.runner.journal import Journal
from magent2.runner.journal_pen import CallPen
from magent2.sessions.stream import stream_record
from magent2.tools.interface import CallScope, Closing, Failure, HeldSend, Told, call_scope
from magent2.tools.sending import joined, planning_again, planning_rest

if TYPE_CHECKING:
    from magent2.telemetry.turns import ObservedCall

RESULT_MAX_BYTES = 512 << 10  # of a result on the log; a model is better off with less
SEND_TRIES_MAX = 8  # how often the log may move on under the sends of one call

SKIP_TURN = "skip_turn"  # of a recorded result: the model need not be asked again because of it


@dataclass(slots=True)
class Call:
    """One call of a tool, from its start to its result."""

    journal: Journal
    turn: int
    id: str
    name: str
    arguments: str
    speaker: str
    known: bool = True  # the name is that of a tool which exists
    observed: ObservedCall | None = None
    skip_turn: bool = False
    started: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> tuple[int, str]:
        return self.turn, self.id

    @property
    def recorded(self) -> Mapping[str, Any] | None:
        return self.journal.results.get(self.key)

    def scope(self) -> CallScope:
        context = self.journal.context
        key = f"{context.run_id}/{self.turn}/{self.id}"
        pen = CallPen(self.journal, self.turn, self.id)
        return CallScope(run=context, key=key, observed=self.observed, pen=pen, waits=context.waits)

    def observe(self) -> None:
        """The call begins, for whoever looks on."""
        run = self.journal.context.observed
        if run is not None:
            self.observed = run.call(self.turn, self.id, self.name, self.arguments, self.known)

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

    async def close(self, closing: Closing, sends: Sequence[HeldSend]) -> Any:
        """Record the result that `closing` words, and let those sends go that may: one append, all or nothing."""
        asked = list(sends)
        sends, failures = await arun(self.journal.context.bus, planning_rest(sends))
        for _ in range(SEND_TRIES_MAX):
            told = closing.told(sends, failures)
            if await self._closed(told, sends):
                break
            sends, more = await arun(self.journal.context.bus, planning_again(sends))
            failures = _in_order(asked, [*failures, *more])
        else:
            changing = [Failure(held, "the recipient keeps changing; send again") for held in sends]
            told = closing.told((), _in_order(asked, [*failures, *changing]))
            await self._closed(told, ())
        self.observe_end(told.failure, told.result, len(sends))
        return told.result

    async def _closed(self, told: Told, sends: Sequence[HeldSend]) -> bool:
        records, heads, conditions = joined(sends)
        own = self._closing_records(told, sends)
        try:
            await self.journal.commit(*own, *records, heads=heads, conditions=conditions)
        except (Refused, TopicDeleted):
            return False
        self._known(own[0])
        return True

    def _closing_records(self, told: Told, sends: Sequence[HeldSend] = ()) -> tuple[NewRecord, ...]:
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
        return () if scope.closing is None else self._closing_records(scope.closing.told((), ()))

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
            records, heads, conditions = joined(sends)
            try:
                await self.journal.commit(*told, *records, heads=merged(heads, own_heads), conditions=conditions)
            except (Refused, TopicDeleted):
                sends, failures = await arun(self.journal.context.bus, planning_again(sends))
                if failures:
                    return f"nothing was sent: {failures[0].reason}"
            else:
                self._known(told[0])
                return None
        return "nothing was sent: the recipients keep changing; send again"

    def _record(self, value: Any, output: Any, sends: Sequence[HeldSend] = ()) -> NewRecord:
        more = {} if isinstance(value, str) else {"value": value}
        if self.skip_turn:
            more[SKIP_TURN] = True
        ids = [held.id for held in sends]
        return self.journal.context.key.tool(self.turn, self.id, self.name, output, ids, **more)

    def _known(self, record: NewRecord) -> NewRecord:
        self.journal.results[self.key] = record.payload
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


def _in_order(asked: Sequence[HeldSend], failures: Sequence[Failure]) -> list[Failure]:
    places = {held.id: place for place, held in enumerate(asked)}
    return sorted(failures, key=lambda failure: places[failure.send.id])


def merged(heads: Sequence[SetHead], more: Sequence[SetHead]) -> tuple[SetHead, ...]:
    """One head per topic; what `more` says counts."""
    fields: dict[str, dict[str, Any]] = {}
    for head in (*heads, *more):
        fields[head.topic] = {**fields.get(head.topic, {}), **head.fields}
    return tuple(SetHead(topic, found) for topic, found in fields.items())


def seen(observed: ObservedCall | None) -> AbstractContextManager[None]:
    """Around the code of a tool: spans that it makes itself are parts of its call."""
    return nullcontext() if observed is None else observed.current()
