"""Why a chat completion ended: at its limit of tokens, or by the filter of its provider.

The SDK makes events of the Responses API of the chunks of a completion, and drops their `finish_reason`. So an answer
that was cut off looks complete, and one that was cut off before its first word is an error that is tried again in vain.
The models of chat completions pass their chunks through `watched`, and their events through `with_ends`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final, Literal, TypeAlias

from agents.items import TResponseStreamEvent
from openai.types.responses import Response, ResponseFunctionToolCall
from openai.types.responses.response import IncompleteDetails

from magent2.runner.wrapped_model import closing_events

IncompleteReason: TypeAlias = Literal["max_output_tokens", "content_filter"]
CUT_OFF: Final = "max_output_tokens"
FILTERED: Final = "content_filter"
INCOMPLETE_REASONS: Final = (CUT_OFF, FILTERED)
_OF_FINISH: dict[str, IncompleteReason] = {"length": CUT_OFF, "content_filter": FILTERED}


def watched(fetched: Any) -> Any:
    """What a model of the SDK has fetched: a completion, or a response with the chunks that will fill it in."""
    if not isinstance(fetched, tuple):
        return fetched
    response, chunks = fetched
    return response, _WatchedChunks(response, chunks)


class _WatchedChunks:
    """The chunks of a completion. Notes in the response why it is incomplete."""

    def __init__(self, response: Response, chunks: Any) -> None:
        self._response = response
        self._chunks = chunks

    def __aiter__(self) -> _WatchedChunks:
        return self

    async def __anext__(self) -> Any:
        chunk = await anext(self._chunks)
        for choice in chunk.choices or ():
            reason = _OF_FINISH.get(choice.finish_reason or "")
            if reason is not None:
                self._response.incomplete_details = IncompleteDetails(reason=reason)
            if reason == CUT_OFF:
                choice.finish_reason = "stop"  # the SDK would raise an error if there is no text
        return chunk

    def __getattr__(self, name: str) -> Any:
        """What the SDK reads of a stream of OpenAI's client, and how it closes it."""
        return getattr(self._chunks, name)


async def with_ends(events: AsyncIterator[TResponseStreamEvent]) -> AsyncIterator[TResponseStreamEvent]:
    """The events of a completion, in which a call whose arguments were cut off is marked as incomplete.

    The response of the first event is the one that `watched` notes the reason in.
    """
    response: Response | None = None
    async with closing_events(events) as stream:
        async for event in stream:
            if event.type == "response.created":
                response = event.response
            elif response is not None and response.incomplete_details is not None:
                if event.type == "response.output_item.done":
                    _mark_cut_off(event.item)
                elif event.type == "response.completed":
                    for item in event.response.output:
                        _mark_cut_off(item)
            yield event


def _mark_cut_off(item: object) -> None:
    if isinstance(item, ResponseFunctionToolCall) and not _is_json(item.arguments):
        item.status = "incomplete"


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True
