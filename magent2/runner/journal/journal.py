"""The journal of a run: what makes a turn a transaction.

The SDK does the run; its models and tools are wrapped (`journal_model.py`, `journal_tools.py`) and tell the journal
what they do. Events and appends go through one queue, in the order they happened, and `events` takes them out one by
one: an event is yielded, and whoever reads has it on the log before the next is taken; an append is made.

A model's answer is on the log, with the steers that it has seen, before any of its tools runs; a tool's result, with
what the tool sent, before the model is asked again. The last answer needs no append of its own: it rides in the one
that ends the run.

An attempt that takes over runs the SDK again. What the journal knows already is given back and not told again: an
answer by its turn, counted from 0, a result by turn and call id.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from openai.types.responses import Response

from magent2.bus.operations import Condition, SetHead
from magent2.bus.records import MailRef, NewRecord
from magent2.errors import PayloadError, Refused, TopicDeleted
from magent2.models.envelope import BaseStreamEvent
from magent2.models.events import MessageEvent
from magent2.runner.context import RunContext
from magent2.runner.images import keep_pictures
from magent2.runner.steers import Steer, SteerLedger, receipt
from magent2.runner.stored_response import answer_json, storable, text_of
from magent2.sessions.folds import function_calls, mcp_approval_requests
from magent2.sessions.stream import event_payload, stream_record

QUEUE_MAX = 64  # events that the run may be ahead of its reader
CLOSE_TIMEOUT_S = 10.0  # how long the SDK may take to clean up after its reader has left

Event: TypeAlias = BaseStreamEvent | Mapping[str, Any]

log = logging.getLogger(__name__)


@dataclass(slots=True, eq=False)
class _Append:
    """Records for the log; somebody waits for them when there is a `done`."""

    records: tuple[NewRecord, ...]
    heads: tuple[SetHead, ...] = ()
    conditions: tuple[Condition, ...] = ()
    mail: tuple[MailRef, ...] = ()
    done: asyncio.Future[None] | None = None


@dataclass(slots=True, eq=False)
class _FinalAnswer:
    """An answer that called no tool: the last one, unless the model is asked again after all."""

    records: tuple[NewRecord, ...]
    mail: tuple[MailRef, ...] = ()


class Journal:
    """One attempt at one run."""

    def __init__(self, context: RunContext) -> None:
        self.context = context
        self.turn = 0  # answers known so far: the turn that the next model call is
        self.asking = False  # a model was asked and has not answered
        self.answers: dict[int, Mapping[str, Any]] = {
            turn: record["response"] for turn, record in context.run.answers.items()
        }
        self.speakers: dict[int, str] = {turn: record["speaker"] for turn, record in context.run.answers.items()}
        self.results: dict[tuple[int, str], Mapping[str, Any]] = dict(context.run.tools)
        self.sent: dict[tuple[int, str, int], Mapping[str, Any]] = dict(context.run.sent)
        self.begun: dict[tuple[int, str, int], Mapping[str, Any]] = dict(context.run.begun)
        self.decisions: dict[tuple[int, str], Mapping[str, Any]] = dict(context.run.decisions)
        self.failures: dict[str, str] = {}  # call id → why it failed
        self.steers = SteerLedger(context.run)
        self.leaving = asyncio.Lock()  # held by the send that leaves at once
        self._final: _FinalAnswer | None = None
        self._items: deque[Event | _Append] = deque()
        self._some = asyncio.Event()  # there is something to take, or nothing more will come
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False

    # --- the reader's side

    async def events(self, work: Callable[[], Coroutine[Any, Any, None]]) -> AsyncGenerator[Event, None]:
        """Everything that happens while `work` drives the SDK; what it raises is raised after all events before it."""
        driver = asyncio.create_task(work(), name="sdk-run")
        driver.add_done_callback(lambda _: self._some.set())
        items = self._items
        try:
            while items or not driver.done():
                if not items:
                    await self._wait_for_some(driver)
                    continue
                item = items.popleft()
                if not isinstance(item, _Append):
                    yield item
                else:
                    await self._append(item)
            if driver.cancelled():
                raise RuntimeError("the run was cancelled from inside")
            driver.result()
        finally:
            self._closed = True
            self._room.set()
            await _ended(driver)

    async def _wait_for_some(self, driver: asyncio.Task[None]) -> None:
        self._room.set()
        self._some.clear()
        if not driver.done():
            await self._some.wait()

    async def _append(self, item: _Append) -> None:
        if item.done is None:
            await self.context.writer.put(*item.records, heads=item.heads)
            return
        try:
            await self.context.writer.commit(
                *item.records, mail=item.mail, heads=item.heads, conditions=item.conditions
            )
        except (Refused, TopicDeleted) as refusal:
            if not item.conditions:
                raise
            if not item.done.done():
                item.done.set_exception(refusal)
        else:
            if not item.done.done():
                item.done.set_result(None)

    # --- the SDK's side

    async def emit(self, event: Event | _Append) -> None:
        """Hand over, waiting for room: when the queue is full, until the reader has emptied it."""
        while not self.offer(event):
            self._room.clear()
            await self._room.wait()

    def offer(self, event: Event | _Append) -> bool:
        """Hand over if there is room; whether there was."""
        if self._closed:
            raise RuntimeError("the run has ended; nobody reads what it still does")
        waiting = len(self._items)
        if waiting >= QUEUE_MAX:
            return False
        self._items.append(event)
        if not waiting:
            self._some.set()
        return True

    async def put(self, *records: NewRecord, heads: tuple[SetHead, ...] = ()) -> None:
        await self.emit(_Append(records, heads))

    async def commit(
        self,
        *records: NewRecord,
        heads: tuple[SetHead, ...] = (),
        conditions: tuple[Condition, ...] = (),
        mail: tuple[MailRef, ...] = (),
    ) -> None:
        """Returns when the records are on the log.

        With conditions, `Refused` and `TopicDeleted` are the caller's: nothing was written, and the run goes on.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        await self.emit(_Append(records, heads, conditions, mail, done))
        await done

    def fields(self, turn: int, agent: str) -> dict[str, Any]:
        """Where an event of the turn belongs."""
        context = self.context
        return {"run_id": context.run_id, "attempt": context.attempt, "agent": agent, "turn": turn}

    def event(self, event: BaseStreamEvent, turn: int, agent: str) -> dict[str, Any]:
        return {**event_payload(event), **self.fields(turn, agent)}

    def rewind(self) -> None:
        """The SDK is run once more from the start."""
        self.turn = 0
        self.asking = False
        self.steers.rewind()

    # --- turns

    @property
    def previous(self) -> Mapping[str, Any]:
        """The answer whose tools run, or have run."""
        return self.answers.get(self.turn - 1, {})

    def known_answer(self, asked: object) -> Mapping[str, Any] | None:
        """The recorded answer of the turn that begins, which is over with it."""
        answer = self.answers.get(self.turn)
        if answer is not None:
            self.steers.pass_turn(self.turn, asked)
            self.turn += 1
        return answer

    async def begin_turn(self) -> None:
        """Before a model is asked. An answer that looked like the last one was not: it must be on the log first."""
        if self._final is not None:
            final, self._final = self._final, None
            self._keep_back(final)
            message = self._message_records(self.previous, self.turn - 1, self.speakers[self.turn - 1])
            await self.commit(*final.records, *message, mail=final.mail)
        self.steers.take(await self.context.steers())
        self.asking = True

    async def end_turn(self, response: Response, speaker: str) -> None:
        """The model has answered."""
        if self.context.observed is not None:
            self.context.observed.end_model_call(response)
        answer, pictures = await keep_pictures(self.context, answer_json(response), self.fields(self.turn, speaker))
        if pictures:
            await self.put(*pictures)
        steers = self.steers.end_turn(self.turn)
        records = (self._answer_record(answer, speaker, steers), *self._receipts(steers, speaker))
        mail = tuple(steer.ref for steer in steers)
        if function_calls(answer["output"]) or mcp_approval_requests(answer["output"]):
            await self.commit(*records, *self._message_records(answer, self.turn, speaker), mail=mail)
        else:
            self._final = _FinalAnswer(records, mail)
            self.context.closing.extend(records)
            self.context.closing_mail.extend(mail)
        self.answers[self.turn] = answer
        self.speakers[self.turn] = speaker
        self.turn += 1
        self.asking = False

    def _keep_back(self, final: _FinalAnswer) -> None:
        """What was to ride in the run's last append goes in one of its own."""
        context = self.context
        context.closing[:] = [record for record in context.closing if record not in final.records]
        context.closing_mail[:] = [ref for ref in context.closing_mail if ref not in final.mail]

    @property
    def output_turn(self) -> int:
        """The turn whose text is the output: the last, or, when a tool's result is the output, one after it."""
        return self.turn - 1 if self._final is not None else self.turn

    def _answer_record(self, answer: Mapping[str, Any], speaker: str, steers: Sequence[Steer]) -> NewRecord:
        key, seen = self.context.key, [steer.payload for steer in steers]
        try:
            return key.answer(self.turn, answer, speaker, seen)
        except PayloadError:
            return key.answer(self.turn, storable(answer), speaker, seen)

    def _receipts(self, steers: Sequence[Steer], speaker: str) -> list[NewRecord]:
        if not steers:
            return []
        return [stream_record(self.event(receipt(self.context.conversation_id, steers), self.turn, speaker))]

    def _message_records(self, answer: Mapping[str, Any], turn: int, speaker: str) -> list[NewRecord]:
        """The text of a turn that goes on, which closes its tokens."""
        text = text_of(answer)
        if not text:
            return []
        event = MessageEvent(conversation_id=self.context.conversation_id, text=text)
        named = {"message_id": self.context.message_id(turn)}
        return [stream_record({**self.event(event, turn, speaker), **named})]


async def _ended(driver: asyncio.Task[None]) -> None:
    """Leave no task behind, and no error unseen."""
    if driver.done():
        return
    driver.cancel()
    await asyncio.wait({driver}, timeout=CLOSE_TIMEOUT_S)
    if not driver.done():
        log.error("a run did not end after its reader had left", extra={"waited_s": CLOSE_TIMEOUT_S})
    elif not driver.cancelled() and (error := driver.exception()) is not None:
        log.warning("a run failed while it was being ended", exc_info=error)


def outputs_of(asked: object) -> Sequence[Mapping[str, Any]]:
    """The results of calls in what a model is asked."""
    items = asked if isinstance(asked, list) else []
    return [item for item in items if isinstance(item, Mapping) and item.get("type") == "function_call_output"]
