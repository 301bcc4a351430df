"""The model of a journalled run: replays recorded responses, and records new ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from agents import ModelResponse, ModelSettings
from agents.items import TResponseOutputItem, TResponseStreamEvent
from openai.types.responses import Response

from magent2.errors import ContextTooLong, ModelError
from magent2.models.envelope import utc_timestamp
from magent2.models.json_types import JsonObject, encodable
from magent2.runner.context import TALK, ModelRequest, items_of
from magent2.runner.event_mapping import TEXT_DELTA
from magent2.runner.journal.call_ids import CallIds
from magent2.runner.journal.compaction import RequestFitter
from magent2.runner.journal.journal import Journal
from magent2.runner.journal.tool_calls import record_sdk_outputs
from magent2.runner.providers.calls import COMPLETED, Candidate, guarded_model
from magent2.runner.sdk_run import translated
from magent2.runner.stored_response import completed_event, model_response, response_of
from magent2.runner.wrapped_model import WrappedModel, closing_events
from magent2.sessions.folds import InputItem

if TYPE_CHECKING:
    from magent2.telemetry.observation import ObservedModelCall

SERVER_STATE = ("previous_response_id", "conversation_id", "conversation", "auto_previous_response_id")


class JournalModel(WrappedModel):
    """Calls the models of an agent in place of the SDK. `fitter` fits its requests into their context."""

    def __init__(self, candidates: Sequence[Candidate], journal: Journal, speaker: str, fitter: RequestFitter) -> None:
        self._inner = guarded_model(candidates, journal.context.circuits, self._observe)
        self._journal = journal
        self._speaker = speaker
        self._fitter = fitter
        self._observed: ObservedModelCall | None = None
        self._model = candidates[0].requested  # the one that was asked last

    async def get_response(
        self,
        system_instructions: str | None,
        input: ModelRequest,  # noqa: A002  the SDK's name for it
        model_settings: ModelSettings,
        *rest: Any,
        **options: Any,
    ) -> ModelResponse:
        refuse_server_state(model_settings, options)
        recorded = self._journal.replay_turn(input)
        if recorded is not None:
            return model_response(recorded)
        request, call_ids = await self._begin(system_instructions, input, model_settings, rest)
        while True:
            try:
                with self._journal.meter.failures():
                    call = self._inner.get_response(system_instructions, request, model_settings, *rest, **options)
                    response = await call
                    response.output = call_ids.all_items(response.output)
                    await self._end(response_of(response))
                    return response
            except Exception as error:
                shorter = await self._refit(error, system_instructions)
                if shorter is None:
                    raise
                request = shorter

    async def stream_response(
        self,
        system_instructions: str | None,
        input: ModelRequest,  # noqa: A002  the SDK's name for it
        model_settings: ModelSettings,
        *rest: Any,
        **options: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        refuse_server_state(model_settings, options)
        recorded = self._journal.replay_turn(input)
        if recorded is not None:
            yield completed_event(recorded)
            return
        request: ModelRequest | None
        request, call_ids = await self._begin(system_instructions, input, model_settings, rest)
        streamed = _StreamedResponse(self._journal, self._speaker, call_ids, self._end)
        while request is not None:
            responses = self._inner.stream_response(system_instructions, request, model_settings, *rest, **options)
            try:
                with self._journal.meter.failures(lambda: streamed.has_begun):
                    async with closing_events(self._passed_on(responses, streamed)) as events:
                        async for event in events:
                            yield event
                return
            except Exception as error:
                request = None if streamed.has_begun else await self._refit(error, system_instructions)
                if request is None:
                    raise

    async def _passed_on(
        self, responses: AsyncIterator[TResponseStreamEvent], streamed: _StreamedResponse
    ) -> AsyncIterator[TResponseStreamEvent]:
        """Write the events of a response, and yield those that the SDK needs."""
        async with closing_events(responses) as events:
            async for event in events:
                if self._observed is not None:
                    self._observed.chunk_received()
                if event.type == TEXT_DELTA:
                    # The SDK needs only the first token: it does not retry a response that has begun. Passing the
                    # others through its queues would cost time for each.
                    if await streamed.handle_text(event.delta):
                        yield event
                    continue
                # The last event records the response. It is passed on afterwards, because the SDK runs the tools of
                # the response as soon as it has seen this event.
                await streamed.handle(event)
                yield event

    async def _begin(
        self, instructions: str | None, sdk_request: ModelRequest, settings: ModelSettings, rest: Sequence[object]
    ) -> tuple[ModelRequest, CallIds]:
        """Begin a turn that is not recorded. Return the request of the SDK with the steers of the run and its files.

        It is compacted if it is too long. The calls of its answer get ids that are not in the request yet.
        """
        journal = self._journal
        await journal.context.between_turns()
        await record_sdk_outputs(journal, sdk_request, self._speaker)
        await journal.begin_turn()
        items = cast("list[InputItem]", items_of(journal.steers.insert_into(sdk_request)))
        layout = journal.window.layout(journal.turn, items, journal.steers.count_before)
        request = await self._fitter.fit(layout, instructions, settings, rest)
        await self._reserve(instructions, request)
        return request, CallIds(items)

    async def _refit(self, error: Exception, instructions: str | None) -> ModelRequest | None:
        """Return a shorter request if the model has refused one as too long; `None` if there is none."""
        request = await self._fitter.refit() if isinstance(translated(error), ContextTooLong) else None
        if request is not None:
            await self._reserve(instructions, request)
        return request

    async def _reserve(self, instructions: str | None, request: ModelRequest) -> None:
        """The last step before the call: where the budget is used up, the run pauses here with everything recorded."""
        await self._journal.meter.reserve(self._speaker, self._model, [instructions or "", request])

    async def _end(self, response: Response) -> None:
        await self._journal.end_turn(response, self._speaker, self._model, self._fitter.size)

    def _observe(self, asked: Candidate) -> None:
        """Begin the span of a model call. A turn has one per model that is asked."""
        run, turn = self._journal.context.observed, self._journal.turn
        self._model = asked.requested
        if run is not None:
            name, provider = asked.requested, asked.system
            self._observed = run.start_model_call(turn, self._speaker, name, provider, self._fitter.shown)


class _StreamedResponse:
    """A response while it is streamed. There are many tokens, so their events are built as JSON directly."""

    def __init__(
        self, journal: Journal, speaker: str, call_ids: CallIds, end: Callable[[Response], Awaitable[None]]
    ) -> None:
        """`end` records the complete response."""
        context, turn = journal.context, journal.turn
        message_id = context.message_id(turn)
        self._journal = journal
        self._speaker = speaker
        self._call_ids = call_ids
        self._end = end
        self._items: list[TResponseOutputItem] = []
        self._tokens = 0
        self._id_prefix = f"{message_id}:{context.attempt}:"
        self._fields: JsonObject = {
            "event": "token",
            "conversation_id": context.conversation_id,
            **journal.fields(turn, encodable(speaker)),
            "message_id": message_id,
        }
        if context.kind != TALK:
            self._fields["run_kind"] = context.kind

    @property
    def has_begun(self) -> bool:
        """Whether something of it was passed on that cannot be taken back."""
        return bool(self._tokens or self._items)

    async def handle(self, event: TResponseStreamEvent) -> None:
        """Collect the items of the response. Record the response when it is complete."""
        if event.type == "response.output_item.done":
            event.item = self._call_ids.next_item(event.item)
            self._items.append(event.item)
        elif event.type == COMPLETED:
            # Some servers leave the output out of their last event. The SDK then fills it in, so the record must too.
            event.response.output = self._call_ids.all_items(event.response.output) or self._items
            await self._end(event.response)

    async def handle_text(self, text: str) -> bool:
        """Write the event of a piece of text. Return whether it was the first."""
        if not text:
            return False
        token = self._token_event(text)
        if not self._journal.offer_token(token):
            await self._journal.emit(token)
        return self._tokens == 1

    def _token_event(self, text: str) -> JsonObject:
        index = self._tokens
        self._tokens = index + 1
        token = self._fields.copy()
        token["id"] = f"{self._id_prefix}{index}"
        token["created_at"] = utc_timestamp()
        token["text"] = encodable(text)
        token["index"] = index
        return token


def refuse_server_state(settings: ModelSettings, options: Mapping[str, object]) -> None:
    """Refuse conversation state that is kept by the provider: a worker that takes the run over could not replay it."""
    for values in (options, getattr(settings, "extra_args", None), getattr(settings, "extra_body", None)):
        if not isinstance(values, Mapping):
            continue
        for name in SERVER_STATE:
            if values.get(name):
                raise ModelError(
                    f"{name} keeps the conversation at the provider; leave it out, the history is kept here"
                )
