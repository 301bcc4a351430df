"""The model of a streamed run: it says when an answer is whole, and fails only after all before it was read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from agents import Agent, Model, ModelProvider, ModelResponse
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
        """All other attributes that the SDK reads from a model."""
        return getattr(self.__dict__["_inner"], name)


class WatchedAgents:
    """Copies of the agents of one run whose models report each answer."""

    def __init__(
        self, provider: ModelProvider, answered: Callable[[], None], caught_up: Callable[[], Awaitable[None]]
    ) -> None:
        self._provider = provider
        self._answered = answered
        self._caught_up = caught_up
        self._copies: dict[int, Agent[Any]] = {}  # by id, because handoffs may form a circle

    def copy_of(self, agent: Agent[Any]) -> Agent[Any]:
        """A copy of the agent and of the agents it hands over to, with watched models and unchanged settings."""
        known = self._copies.get(id(agent))
        if known is not None:
            return known
        inner = agent.model if isinstance(agent.model, Model) else self._provider.get_model(agent.model)
        model = WatchedModel(inner, self._answered, self._caught_up)
        copy = self._copies[id(agent)] = agent.clone(model=model, model_settings=agent.model_settings)
        copy.handoffs = [self.copy_of(each) if isinstance(each, Agent) else each for each in agent.handoffs]
        return copy
