"""The journal of a run: what makes a turn a transaction.

The SDK does the run. Its models and tools are wrapped (`model.py`, `tool_calls.py`) and tell the journal what happens.
The journal writes events and commits straight into the lane's writer, in the order in which they happened.

A model's answer is on the log, with the steers that it has seen, before any of its tools runs. A tool's result is on
the log, with what the tool sent, before the model is asked again. The last answer needs no append of its own: it is
part of the append that settles the run.

An attempt that takes over runs the SDK again from the start. The journal returns the recorded answers (by turn, counted
from 0) and results (by turn and call id) without asking the model, running the tool or writing events again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openai.types.responses import Response

from magent2.bus.operations import Condition, SetHead
from magent2.bus.records import MailRef, NewRecord
from magent2.errors import PayloadError, Refused, TopicDeleted
from magent2.models.envelope import BaseStreamEvent
from magent2.models.events import MessageEvent
from magent2.runner.context import ModelRequest, RunContext, Steer, SteerLedger, receipt
from magent2.runner.run_stream import Event, EventSink, RunStream, end_task
from magent2.runner.stored_response import answer_json, storable, store_images, text_of
from magent2.sessions.folds import function_calls, mcp_approval_requests
from magent2.sessions.history import BegunRecord, DecisionRecord, SentRecord, ToolRecord
from magent2.sessions.stream import event_payload, stream_record

RUN_ENDED = "the run has ended; it can write no more"


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
        self.results: dict[tuple[int, str], ToolRecord] = dict(context.run.tools)
        self.sent: dict[tuple[int, str, int], SentRecord] = dict(context.run.sent)
        self.begun: dict[tuple[int, str, int], BegunRecord] = dict(context.run.begun)
        self.decisions: dict[tuple[int, str], DecisionRecord] = dict(context.run.decisions)
        self.failures: dict[str, str] = {}  # call id → why it failed
        self.steers = SteerLedger(context.run)
        self.leaving = asyncio.Lock()  # held by the send that leaves at once
        self._final: _FinalAnswer | None = None
        self._sink: EventSink | None = None  # there is one while the run is under way
        self._write_error: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()

    # --- running and writing

    def stream(self, work: Callable[[], Coroutine[Any, Any, None]]) -> RunStream:
        """Return the events of a run in which `work` drives the SDK. The run starts when the stream is used."""
        return RunStream(lambda sink: self._run(work, sink))

    async def _run(self, work: Callable[[], Coroutine[Any, Any, None]], sink: EventSink) -> None:
        """Drive the SDK until it ends, or until a write fails. Raise what ended it.

        A failed write must not reach the code of a model or a tool: that code could swallow the error and go on with
        effects that no other worker will ever know of. So the write never returns, and the run is cancelled from here.
        """
        self._sink = sink
        sdk = asyncio.create_task(work(), name="sdk-run")
        try:
            either: set[asyncio.Future[Any]] = {sdk, self._write_error}
            await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            if self._write_error.done():
                raise self._write_error.result()
            if sdk.cancelled():
                raise RuntimeError("the run was cancelled from inside")
            sdk.result()
        finally:
            self._sink = None
            await end_task(sdk)
            self._ended.set()

    def offer(self, event: Event) -> bool:
        """Write the event if there is room. Return whether it was written; if not, `emit` it."""
        sink = self._open_sink()
        if self._write_error.done():
            return False
        try:
            return sink.offer(event)
        except Exception as error:  # noqa: BLE001  whatever a write raises ends the run
            self._write_error.set_result(error)
            return False

    async def emit(self, event: Event) -> None:
        """Write an event. Wait while the run is too far ahead of the bus."""
        await self._write(self._open_sink().write(event))

    async def put(self, *records: NewRecord, heads: tuple[SetHead, ...] = ()) -> None:
        """Queue records behind the events so far."""
        await self._open_sink().drain()
        await self._write(self.context.writer.put(*records, heads=heads))

    async def commit(
        self,
        *records: NewRecord,
        heads: tuple[SetHead, ...] = (),
        conditions: tuple[Condition, ...] = (),
        mail: tuple[MailRef, ...] = (),
    ) -> None:
        """Write records behind the events so far, and return when they are on the log.

        With conditions, raises `Refused` or `TopicDeleted` when nothing was written; the run goes on.
        """
        await self._open_sink().drain()
        commit = self.context.writer.commit(*records, mail=mail, heads=heads, conditions=conditions)
        await self._write(commit, (Refused, TopicDeleted) if conditions else ())

    async def _write(self, write: Coroutine[Any, Any, None], raised: tuple[type[Exception], ...] = ()) -> None:
        """Await a write. An error that is not one of `raised` ends the run, and the caller does not go on."""
        if self._write_error.done():
            write.close()
        else:
            try:
                await write
            except Exception as error:
                if isinstance(error, raised) and self.context.writer.failure is None:
                    raise
                if not self._write_error.done():
                    self._write_error.set_result(error)
            else:
                return
        await self._ended.wait()
        raise RuntimeError(RUN_ENDED)

    def _open_sink(self) -> EventSink:
        if self._sink is None:
            raise RuntimeError(RUN_ENDED)
        return self._sink

    # --- what events and requests look like

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

    def known_answer(self, asked: ModelRequest) -> Mapping[str, Any] | None:
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
        answer, pictures = await store_images(self.context, answer_json(response), self.fields(self.turn, speaker))
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


def outputs_of(asked: object) -> Sequence[Mapping[str, Any]]:
    """The results of calls in what a model is asked."""
    items = asked if isinstance(asked, list) else []
    return [item for item in items if isinstance(item, Mapping) and item.get("type") == "function_call_output"]
