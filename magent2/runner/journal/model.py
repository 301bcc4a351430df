"""The model of a journalled run: it answers from the journal what was answered already, and records what was not."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from agents import FunctionToolResult, Model, ModelResponse, ModelSettings, ToolsToFinalOutputResult, TResponseInputItem
from agents.items import TResponseStreamEvent
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest

from magent2.errors import ModelError
from magent2.models.envelope import utc_timestamp
from magent2.runner.event_mapping import TEXT_DELTA, as_text, encodable
from magent2.runner.journal.journal import Journal, outputs_of
from magent2.runner.journal.tool_calls import RecordedCall
from magent2.runner.stored_response import completed_event, model_response, response_of, storable
from magent2.sessions.folds import function_calls

if TYPE_CHECKING:
    from magent2.telemetry.observation import ObservedModelCall

Asked: TypeAlias = str | list[TResponseInputItem]

SERVER_STATE = ("previous_response_id", "conversation_id", "conversation", "auto_previous_response_id")


class JournalModel(Model):
    """Around the model that the SDK would have used for this agent."""

    def __init__(self, inner: Model, journal: Journal, speaker: str) -> None:
        self._inner = inner
        self._journal = journal
        self._speaker = speaker

    async def get_response(
        self,
        system_instructions: str | None,
        input: Asked,  # noqa: A002  the SDK's name for it
        model_settings: ModelSettings,
        *rest: Any,
        **options: Any,
    ) -> ModelResponse:
        refuse_server_state(model_settings, options)
        known = self._journal.known_answer(input)
        if known is not None:
            return model_response(known)
        asked, _ = await self._begin(input)
        response = await self._inner.get_response(system_instructions, asked, model_settings, *rest, **options)
        await self._journal.end_turn(response_of(response), self._speaker)
        return response

    async def stream_response(
        self,
        system_instructions: str | None,
        input: Asked,  # noqa: A002  the SDK's name for it
        model_settings: ModelSettings,
        *rest: Any,
        **options: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        refuse_server_state(model_settings, options)
        known = self._journal.known_answer(input)
        if known is not None:
            yield completed_event(known)
            return
        asked, chat = await self._begin(input)
        answer = _LiveAnswer(self._journal, self._speaker)
        events = self._inner.stream_response(system_instructions, asked, model_settings, *rest, **options)
        try:
            async for event in events:
                if chat is not None:
                    chat.chunk_received()
                if event.type != TEXT_DELTA:
                    await answer.hear(event)
                    yield event
                elif event.delta:
                    token = answer.token(event.delta)
                    if not self._journal.offer(token):
                        await self._journal.emit(token)
                    if not token["index"]:  # more the SDK need not see: with this it knows that the answer has begun
                        yield event
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    async def _begin(self, asked: Asked) -> tuple[Asked, ObservedModelCall | None]:
        """What the model is to be asked: what the SDK would, and what was said to the run meanwhile."""
        journal = self._journal
        await journal.context.between_turns()
        await close_calls(journal, asked, self._speaker)
        await journal.begin_turn()
        shown = journal.steers.insert_into(asked)
        observed = journal.context.observed
        if observed is None:
            return shown, None
        return shown, observed.start_model_call(journal.turn, self._speaker, *described(self._inner), shown)

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self._inner.get_retry_advice(request)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._inner._cleanup_on_run_end(owner)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the SDK wants to know of a model."""
        return getattr(self.__dict__["_inner"], name)


class _LiveAnswer:
    """An answer as it comes. Its tokens are many, so they are built as JSON at once."""

    def __init__(self, journal: Journal, speaker: str) -> None:
        context, turn = journal.context, journal.turn
        message_id = context.message_id(turn)
        self._journal = journal
        self._speaker = speaker
        self._items: list[Any] = []
        self._tokens = 0
        self._prefix = f"{message_id}:{context.attempt}:"
        self._fields: dict[str, Any] = {
            "event": "token",
            "conversation_id": context.conversation_id,
            **journal.fields(turn, speaker),
            "message_id": message_id,
        }

    async def hear(self, event: TResponseStreamEvent) -> None:
        if event.type == "response.output_item.done":
            self._items.append(event.item)
        elif event.type == "response.completed":
            # Some servers leave the output out of the end, where the SDK puts it in again; so do we, for the record.
            event.response.output = event.response.output or self._items
            await self._journal.end_turn(event.response, self._speaker)

    def token(self, text: str) -> dict[str, Any]:
        index = self._tokens
        self._tokens = index + 1
        token = self._fields.copy()
        token["id"] = f"{self._prefix}{index}"
        token["created_at"] = utc_timestamp()
        token["text"] = encodable(text)
        token["index"] = index
        return token


def described(model: Model) -> tuple[str, str]:
    """Its name and its provider, as far as a model says."""
    name = getattr(model, "model", None)
    provider = "openai" if type(model).__module__.startswith("agents.models.openai") else "other"
    return str(name) if name else type(model).__name__, provider


def refuse_server_state(settings: ModelSettings, options: Mapping[str, Any]) -> None:
    """Refuse conversation state at the provider: a run could not be taken over, because the state is unknown here."""
    places: list[object] = [options, getattr(settings, "extra_args", None), getattr(settings, "extra_body", None)]
    for place in places:
        for name in SERVER_STATE:
            if isinstance(place, Mapping) and place.get(name):
                raise ModelError(
                    f"{name} keeps the conversation at the provider; leave it out, the history is kept here"
                )


# --- Between the calls of a turn and the next one: what the model will be shown, and whether it is asked at all.


async def final_of(journal: Journal, results: Sequence[FunctionToolResult]) -> ToolsToFinalOutputResult:
    """Whether what the tools gave is the output: it is where all of them say that the model need not see it."""
    calls = function_calls(journal.previous.get("output", ()))
    known = [journal.results.get((journal.turn - 1, call["call_id"])) for call in calls]
    if not known or not all(record is not None and record.get("skip_turn") for record in known):
        return ToolsToFinalOutputResult(is_final_output=False)
    return ToolsToFinalOutputResult(is_final_output=True, final_output=as_text(results[-1].output))


async def close_calls(journal: Journal, asked: object, speaker: str) -> None:
    """Record what the model is shown for calls that never reached their tool, or whose result was changed after it.

    The SDK answers some calls itself (an unknown tool, a guardrail, a second handoff), and a guardrail may replace a
    result. Later runs must see the same.
    """
    calls = {call["call_id"]: call for call in function_calls(journal.previous.get("output", ()))}
    for item in outputs_of(asked):
        asked_for = calls.get(item.get("call_id"))
        if asked_for is None:
            continue
        facts = asked_for["call_id"], asked_for["name"], asked_for["arguments"], speaker
        call = RecordedCall(journal, journal.turn - 1, *facts, known=False)
        output = storable(item.get("output"))
        if call.recorded is None:
            await call.start()
            await call.note(output, journal.failures.pop(call.id, as_text(output)))
        elif isinstance(output, str) and call.recorded["output"] != output:
            await call.note(output, as_text(output))
