"""A model of the SDK that adds something to another one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from agents import Model
from agents.retry import ModelRetryAdvice, ModelRetryAdviceRequest

EventT = TypeVar("EventT")


class WrappedModel(Model):
    """A model that adds something to another one, `_inner`, and passes everything else on to it."""

    _inner: Model

    def get_retry_advice(self, request: ModelRetryAdviceRequest) -> ModelRetryAdvice | None:
        return self._inner.get_retry_advice(request)

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._inner._cleanup_on_run_end(owner)

    def __getattr__(self, name: str) -> Any:
        """Any other attribute that the SDK reads from a model."""
        if name == "_inner":  # not set yet, or its property has failed
            raise AttributeError(name)
        return getattr(self._inner, name)


@asynccontextmanager
async def closing_events(events: AsyncIterator[EventT]) -> AsyncIterator[AsyncIterator[EventT]]:
    """Close a stream of events at the end of the block. The stream of a model need not have `aclose`."""
    try:
        yield events
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()
