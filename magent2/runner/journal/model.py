"""The model of a journalled run: replays recorded responses, and records new ones."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from agents import Model, ModelResponse, ModelSettings
from agents.items import TResponseOutputItem, TResponseStreamEvent
from openai import OpenAIError

from magent2.errors import ModelError
from magent2.models.envelope import utc_timestamp
from magent2.models.json_types import JsonObject, encodable
from magent2.runner.circuit import Circuit, CircuitCall
from magent2.runner.context import TALK, ModelRequest
from magent2.runner.event_mapping import TEXT_DELTA
from magent2.runner.journal.journal import Journal
from magent2.runner.journal.tool_calls import record_sdk_outputs
from magent2.runner.sdk_run import WrappedModel, closing_events, is_provider_failure, retry_after_s
from magent2.runner.stored_response import completed_event, model_response, response_of

if TYPE_CHECKING:
    from magent2.telemetry.observation import ObservedModelCall

COMPLETED: Final = "response.completed"
SERVER_STATE = ("previous_response_id", "conversation_id", "conversation", "auto_previous_response_id")


class JournalModel(WrappedModel):
    """Wraps the model that the SDK would use for an agent."""

    def __init__(self, inner: Model, journal: Journal, speaker: str, circuit: Circuit) -> None:
        self._inner = inner
        self._journal = journal
        self._speaker = speaker
        self._circuit = circuit

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
        with _through(self._circuit) as call:
            response = await self._inner.get_response(system_instructions, request, model_settings, *rest, **options)
            call.succeed()
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
        with _through(self._circuit) as call:
            responses = self._inner.stream_response(system_instructions, request, model_settings, *rest, **options)
            async with closing_events(responses) as events:
                async for event in events:
                    if observed is not None:
                        observed.chunk_received()
                    if event.type == TEXT_DELTA:
                        # The SDK needs only the first token: it does not retry a response that has begun. Passing the
                        # others through its queues would cost time for each.
                        if await streamed.handle_text(event.delta):
                            yield event
                        continue
                    # The last event records the response. It is passed on afterwards, because the SDK runs the tools
                    # of the response as soon as it has seen this event.
                    if event.type == COMPLETED:
                        call.succeed()
                    await streamed.handle(event)
                    yield event

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
        self._fields: JsonObject = {
            "event": "token",
            "conversation_id": context.conversation_id,
            **journal.fields(turn, encodable(speaker)),
            "message_id": message_id,
        }
        if context.kind != TALK:
            self._fields["run_kind"] = context.kind

    async def handle(self, event: TResponseStreamEvent) -> None:
        """Collect the items of the response. Record the response when it is complete."""
        if event.type == "response.output_item.done":
            self._items.append(event.item)
        elif event.type == COMPLETED:
            # Some servers leave the output out of their last event. The SDK then fills it in, so the record must too.
            event.response.output = event.response.output or self._items
            await self._journal.end_turn(event.response, self._speaker)

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


@contextmanager
def _through(circuit: Circuit) -> Iterator[CircuitCall]:
    """Make a model call through a circuit. The block says when the provider has answered; an error counts by its kind.

    Raises `CircuitOpen` if no call is made now.
    """
    call = circuit.begin()
    try:
        yield call
    except Exception as error:
        if is_provider_failure(error):
            call.fail(retry_after_s(error))
        elif isinstance(error, OpenAIError):  # the provider has answered, and refused the request
            call.succeed()
        raise
    finally:
        call.abandon()


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
