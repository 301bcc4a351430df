"""The model of a streamed run: it says when an answer is whole, and fails only after all before it was read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from agents import Model, ModelResponse
from agents.items import TResponseStreamEvent
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest


class WatchedModel(Model):
    """Around the agent's model."""

    def __init__(self, inner: Model, answered: Callable[[], None], caught_up: Callable[[], Awaitable[None]]) -> None:
        self._inner = inner
        self._answered = answered
        self._caught_up = caught_up

    async def get_response(self, *asked: Any, **options: Any) -> ModelResponse:
        response = await self._inner.get_response(*asked, **options)
        self._answered()
        return response

    async def stream_response(self, *asked: Any, **options: Any) -> AsyncIterator[TResponseStreamEvent]:
        events = self._inner.stream_response(*asked, **options)
        try:
            async for event in events:
                if event.type == "response.completed":
                    self._answered()
                yield event
        except Exception:
            await self._caught_up()  # the SDK drops what is not yet read when a run fails
            raise
        finally:
            close = getattr(events, "aclose", None)
            if close is not None:
                await close()

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self._inner.get_retry_advice(request)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._inner._cleanup_on_run_end(owner)

    def __getattr__(self, name: str) -> Any:
        """Whatever else the SDK wants to know of a model."""
        return getattr(self.__dict__["_inner"], name)
