"""The model of a journalled run: replays recorded responses, and records new ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from agents import Model, ModelResponse, ModelSettings
from agents.items import TResponseOutputItem, TResponseStreamEvent
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest

from magent2.errors import ModelError
from magent2.models.envelope import utc_timestamp
from magent2.runner.context import ModelRequest
from magent2.runner.event_mapping import TEXT_DELTA, encodable
from magent2.runner.journal.journal import Journal
from magent2.runner.journal.tool_calls import record_sdk_outputs
from magent2.runner.stored_response import completed_event, model_response, response_of

if TYPE_CHECKING:
    from magent2.telemetry.observation import ObservedModelCall

SERVER_STATE = ("previous_response_id", "conversation_id", "conversation", "auto_previous_response_id")


class JournalModel(Model):
    """Wraps the model that the SDK would use for an agent."""

    def __init__(self, inner: Model, journal: Journal, speaker: str) -> None:
        self._inner = inner
        self._journal = journal
        self._speaker = speaker

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
        request, _ = await self._begin(input)
        response = await self._inner.get_response(system_instructions, request, model_settings, *rest, **options)
        await self._journal.end_turn(response_of(response), self._speaker)
        return response

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
        request, observed = await self._begin(input)
        streamed = _StreamedResponse(self._journal, self._speaker)
        events = self._inner.stream_response(system_instructions, request, model_settings, *rest, **options)
        try:
            async for event in events:
                if observed is not None:
                    observed.chunk_received()
                if event.type != TEXT_DELTA:
                    # The last event records the response. It is passed on afterwards, because the SDK runs the tools
                    # of the response as soon as it has seen this event.
                    await streamed.handle(event)
                    yield event
                elif event.delta:
                    token = streamed.token_event(event.delta)
                    if not self._journal.offer(token):
                        await self._journal.emit(token)
                    if not token["index"]:
                        # The SDK needs only the first token: it does not retry a response that has begun. Passing the
                        # others through its queues would cost time for each.
                        yield event
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    async def _begin(self, sdk_request: ModelRequest) -> tuple[ModelRequest, ObservedModelCall | None]:
        """Begin a turn that is not recorded. Return the request of the SDK with the steers of the run in it."""
        journal = self._journal
        await journal.context.between_turns()
        await record_sdk_outputs(journal, sdk_request, self._speaker)
        await journal.begin_turn()
        request = journal.steers.insert_into(sdk_request)
        observed = journal.context.observed
        if observed is None:
            return request, None
        name = str(getattr(self._inner, "model", None) or type(self._inner).__name__)
        provider = "openai" if type(self._inner).__module__.startswith("agents.models.openai") else "other"
        return request, observed.start_model_call(journal.turn, self._speaker, name, provider, request)

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self._inner.get_retry_advice(request)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._inner._cleanup_on_run_end(owner)

    def __getattr__(self, name: str) -> Any:
        """Any other attribute that the SDK reads from a model."""
        return getattr(self.__dict__["_inner"], name)


class _StreamedResponse:
    """A response while it is streamed. There are many tokens, so their events are built as JSON directly."""

    def __init__(self, journal: Journal, speaker: str) -> None:
        context, turn = journal.context, journal.turn
        message_id = context.message_id(turn)
        self._journal = journal
        self._speaker = speaker
        self._items: list[TResponseOutputItem] = []
        self._tokens = 0
        self._id_prefix = f"{message_id}:{context.attempt}:"
        self._fields: dict[str, object] = {
            "event": "token",
            "conversation_id": context.conversation_id,
            **journal.fields(turn, speaker),
            "message_id": message_id,
        }

    async def handle(self, event: TResponseStreamEvent) -> None:
        """Collect the items of the response. Record the response when it is complete."""
        if event.type == "response.output_item.done":
            self._items.append(event.item)
        elif event.type == "response.completed":
            # Some servers leave the output out of their last event. The SDK then fills it in, so the record must too.
            event.response.output = event.response.output or self._items
            await self._journal.end_turn(event.response, self._speaker)

    def token_event(self, text: str) -> dict[str, object]:
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
        for name in SERVER_STATE:
            if isinstance(values, Mapping) and values.get(name):
                raise ModelError(
                    f"{name} keeps the conversation at the provider; leave it out, the history is kept here"
                )
