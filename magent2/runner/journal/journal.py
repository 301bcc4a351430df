"""The journal of a run: records each turn on the log, so that another worker can continue the run.

The SDK drives the run. Its models and tools are wrapped (`model.py`, `tool_calls.py`) and report to the journal. The
journal writes events and commits into the lane's writer, in the order in which they happen.

Two orderings make a turn a transaction. A model response is on the log, with the steers that it has seen, before any of
its tools runs. A tool result is on the log, with the messages that the tool sent, before the model is called again. The
last response needs no append of its own: it is part of the append that settles the run.

After a takeover the SDK runs again from the start, and the journal replays what is recorded: responses by turn, counted
from 0, and tool results by turn and call id. For these it calls no model, runs no tool and writes no event. The replay
cannot diverge, because the SDK derives its tool calls from the recorded responses, even if instructions or tools have
changed since. Only code inside a tool can (`errors.BlockDiverged`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

from openai.types.responses import Response

from magent2.bus.log import Log
from magent2.bus.operations import Condition, SetHead
from magent2.bus.records import MailRef, NewRecord
from magent2.errors import PayloadError, Refused, TopicDeleted
from magent2.fair_share import FairThreads
from magent2.models.envelope import BaseStreamEvent
from magent2.models.events import MessageEvent
from magent2.models.json_types import JsonObject, storable
from magent2.runner.attachments import REQUEST_FILES_MAX_BYTES, RequestFiles
from magent2.runner.context import ModelRequest, RunContext, Steer, SteerLedger, items_of, receipt
from magent2.runner.journal.metering import Meter
from magent2.runner.journal.window import RequestWindow
from magent2.runner.run_stream import Event, EventSink, RunStream, end_task
from magent2.runner.stored_response import StoredAnswer, answer_json, repair_arguments, store_images, text_of
from magent2.sessions.folds import function_calls, mcp_approval_requests
from magent2.sessions.history import SendFacts
from magent2.sessions.stream import event_payload, stream_record

RUN_ENDED = "the run has ended; it can write no more"


@dataclass(slots=True, eq=False)
class _DeferredResponse:
    """A response without tool calls, whose records wait for the append that settles the run."""

    records: tuple[NewRecord, ...]
    mail: tuple[MailRef, ...]


class Journal:
    """Replays and records one attempt at one run.

    `turn` is the index of the next model call. The dictionaries start with what earlier attempts recorded and grow with
    this attempt. Their keys are a turn, a turn and a call id, or a turn, a call id and a position in the call.
    """

    def __init__(
        self, context: RunContext, threads: FairThreads | None = None, files_max_bytes: int = REQUEST_FILES_MAX_BYTES
    ) -> None:
        """`threads` run the synchronous code of the run's tools. `files_max_bytes` limits the files of a request."""
        self.context = context
        self.threads = threads
        self.turn = 0
        self.awaiting_response = False  # a model was called and has not responded
        self.responses: dict[int, StoredAnswer] = {n: record["response"] for n, record in context.run.answers.items()}
        self.speakers = {n: record["speaker"] for n, record in context.run.answers.items()}
        self.results = dict(context.run.tools)
        self.immediate_sends: dict[tuple[int, str, int], SendFacts] = dict(context.run.sent)
        self.started_tools = set(context.run.begun)  # only tools that must not run twice
        self.decisions = dict(context.run.decisions)
        self.failures: dict[str, str] = {}  # call id → why the call failed
        self.steers = SteerLedger(context.run)
        self.window = RequestWindow(context.run)
        self.files = RequestFiles(Log(context.bus), files_max_bytes)
        self.meter = Meter(self)
        context.open_call = self.meter.close
        self.send_lock = asyncio.Lock()  # held while an immediate send is planned and written
        self._deferred: _DeferredResponse | None = None
        self._sink: EventSink | None = None  # set while the run is in progress
        self._write_error: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self._ended = asyncio.Event()

    def stream(self, work: Callable[[], Coroutine[object, object, None]]) -> RunStream:
        """Return the events of a run in which `work` drives the SDK. The run starts when the stream is used."""
        return RunStream(lambda sink: self._run(work, sink))

    async def _run(self, work: Callable[[], Coroutine[object, object, None]], sink: EventSink) -> None:
        """Drive the SDK until it ends, or until a write fails. Raise what ended it.

        A failed write must not reach the code of a model or a tool: that code could swallow the error and go on with
        effects that no other worker will ever know of. So the write never returns, and the run is cancelled from here.
        """
        self._sink = sink
        sdk = asyncio.create_task(work(), name="sdk-run")
        try:
            await asyncio.wait((sdk, self._write_error), return_when=asyncio.FIRST_COMPLETED)
            if self._write_error.done():
                raise self._write_error.result()
            if sdk.cancelled():
                raise RuntimeError("the run was cancelled from inside")
            sdk.result()
        finally:
            # The order matters: no sink first, so that a tool which survives its cancellation cannot write. Writers
            # that wait for the end are released last, when the task of the SDK is over.
            self._sink = None
            await end_task(sdk)
            self._ended.set()

    # --- writes

    def offer_token(self, token: JsonObject) -> bool:
        """Write a complete token event if there is room. Return whether it was written; if not, `emit` it."""
        sink = self._open_sink()
        if self._write_error.done():
            return False
        try:
            return sink.offer_token(token)
        except Exception as error:  # noqa: BLE001  any error of a write ends the run
            self._write_error.set_result(error)
            return False

    async def emit(self, event: Event) -> None:
        """Write an event. Wait while the run is too far ahead of the bus."""
        await self._write(self._open_sink().write(event))

    async def put(self, *records: NewRecord, heads: tuple[SetHead, ...] = ()) -> None:
        """Queue records behind the events so far, without waiting for the append.

        For records that an attempt after a crash produces again by itself.
        """
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
        # Events go through the sink, records go to the writer. Without the drain, a record could overtake an event
        # that a reader of the stream has not passed on yet.
        await self._open_sink().drain()
        commit = self.context.writer.commit(*records, mail=mail, heads=heads, conditions=conditions)
        await self._write(commit, (Refused, TopicDeleted) if conditions else ())

    async def _write(self, write: Coroutine[object, object, None], refusals: tuple[type[Exception], ...] = ()) -> None:
        """Await a write. An error that is not one of `refusals` ends the run, and the caller does not go on."""
        if self._write_error.done():
            write.close()
        else:
            try:
                await write
            except Exception as error:
                if isinstance(error, refusals) and self.context.writer.failure is None:
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

    # --- turns

    @property
    def last_turn(self) -> int:
        """The turn of the last response: tools that run now belong to it."""
        return self.turn - 1

    @property
    def last_output(self) -> Sequence[JsonObject]:
        """The output items of the last response."""
        output: Sequence[JsonObject] = self.responses.get(self.last_turn, {}).get("output", ())
        return output

    @property
    def last_model(self) -> str | None:
        """The name of the model that gave the last response, if it is known."""
        return self.responses.get(self.last_turn, {}).get("model") or None

    @property
    def last_output_tokens(self) -> int:
        """How many tokens the last response had; 0 if it is not known."""
        usage = self.responses.get(self.last_turn, {}).get("usage") or {}
        tokens = usage.get("output_tokens")
        return tokens if isinstance(tokens, int) else 0

    @property
    def incomplete_reason(self) -> str | None:
        """Why the last response is not complete, as the provider says; `None` if it is."""
        details = self.responses.get(self.last_turn, {}).get("incomplete_details") or {}
        return details.get("reason")

    @property
    def output_turn(self) -> int:
        """The turn whose text is the output of the run: the last, or one after it if a tool result is the output."""
        return self.last_turn if self._deferred is not None else self.turn

    def replay_turn(self, request: ModelRequest) -> StoredAnswer | None:
        """Return the recorded response of the next turn and pass the turn; `None` if the model must be called."""
        self.window.pass_turn(self.turn, len(items_of(request)))
        response = self.responses.get(self.turn)
        if response is not None:
            self.steers.pass_turn(self.turn, request)
            self.turn += 1
        return response

    async def begin_turn(self) -> None:
        """Prepare a model call: collect the steers that the model will see."""
        if self._deferred is not None:
            # The SDK calls the model again although the last response called no tool here: its structured output has no
            # text, for example. So it was not the final one. It must be on the log before the next response is.
            await self._commit_deferred(*self._message_records(self.responses[self.last_turn], self.last_turn))
        self.steers.take(await self.context.steers())
        self.awaiting_response = True

    async def reject_output(self, event: Event) -> None:
        """Record the last response, although it has ended the SDK's run, because the run goes on after it.

        `event` says why, and that the tokens of the response are obsolete. A response of an earlier attempt is on the
        log with its event already. The output of a tool has no response: its event is written until a turn follows it.
        """
        if self._deferred is not None:
            await self._commit_deferred(stream_record(event))
        elif not function_calls(self.last_output) or self.turn in self.responses:
            return
        else:
            await self.emit(event)

    async def _commit_deferred(self, *events: NewRecord) -> None:
        """Write the response that was held for the end of the run, with its events."""
        if self._deferred is None:
            return
        deferred, self._deferred = self._deferred, None
        context = self.context
        context.closing[:] = [record for record in context.closing if record not in deferred.records]
        context.closing_mail[:] = [ref for ref in context.closing_mail if ref not in deferred.mail]
        await self.commit(*deferred.records, *events, mail=deferred.mail)

    async def end_turn(self, response: Response, speaker: str, model: str = "", estimate: int = 0) -> None:
        """Record the response of the model, with the steers that it was the first to see, and what it has used.

        `estimate` is the size of its request.
        """
        if self.context.observed is not None:
            self.context.observed.end_model_call(response)
        repair_arguments(response)
        stored, images = await store_images(self.context, answer_json(response), self.fields(self.turn, speaker))
        if images:
            await self.put(*images)
        await self.meter.prices_loaded()
        steers = self.steers.end_turn(self.turn)
        self.window.correct(speaker, stored.get("usage"), estimate)
        records = [self._response_record(stored, speaker, steers, estimate), *self.meter.spent(response, model)]
        self.meter.all_written()  # those before it, and its own: the next turn begins after they are written
        if steers:
            event = receipt(self.context.conversation_id, steers)
            records.append(stream_record(self.event(event, self.turn, speaker)))
        # The steers leave the lane in the append that records them. After a crash before it, they are still in the lane
        # and the next attempt shows them again. After it, replay puts them where this response saw them.
        mail = tuple(steer.ref for steer in steers)
        self.speakers[self.turn] = speaker
        if function_calls(stored["output"]) or mcp_approval_requests(stored["output"]):
            await self.commit(*records, *self._message_records(stored, self.turn), mail=mail)
        else:
            self._deferred = _DeferredResponse(tuple(records), mail)
            self.context.closing.extend(records)
            self.context.closing_mail.extend(mail)
        self.responses[self.turn] = stored
        self.turn += 1
        self.awaiting_response = False

    # --- events and records

    def fields(self, turn: int, agent: str) -> dict[str, object]:
        """The fields that say which run, attempt, agent and turn an event belongs to."""
        context = self.context
        return {"run_id": context.run_id, "attempt": context.attempt, "agent": agent, "turn": turn}

    def event(self, event: BaseStreamEvent, turn: int, agent: str) -> dict[str, object]:
        return {**event_payload(event), **self.fields(turn, agent)}

    def _response_record(
        self, response: StoredAnswer, speaker: str, steers: Sequence[Steer], estimate: int
    ) -> NewRecord:
        key, seen_steers = self.context.key, [steer.payload for steer in steers]
        try:
            return key.answer(self.turn, response, speaker, seen_steers, estimate)
        except PayloadError:  # it holds something that JSON cannot carry; this is rare, so it is not checked before
            return key.answer(self.turn, storable(response), speaker, seen_steers, estimate)

    def _message_records(self, response: StoredAnswer, turn: int) -> list[NewRecord]:
        """The event with the text of a turn after which the run goes on. It closes the tokens of the turn."""
        text = text_of(response)
        if not text:
            return []
        event = MessageEvent(conversation_id=self.context.conversation_id, text=text)
        named = {"message_id": self.context.message_id(turn)}
        return [stream_record({**self.event(event, turn, self.speakers[turn]), **named})]
