"""Models by name, over HTTP."""

from __future__ import annotations

import asyncio
import weakref

from agents import Model, ModelProvider, MultiProvider
from openai import AsyncOpenAI


class LoopProvider(ModelProvider):
    """One HTTP client per event loop.

    The SDK shares one client in the whole process. Its pooled connections belong to the loop that opened them, so the
    next run on another loop would fail with "Event loop is closed".
    """

    def __init__(self, api_key: str | None = None, base_url: str | None = None) -> None:
        """What is not given comes from the environment, as the SDK reads it."""
        self._api_key = api_key
        self._base_url = base_url
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[AsyncOpenAI, MultiProvider]] = (
            weakref.WeakKeyDictionary()
        )

    def get_model(self, model_name: str | None) -> Model:
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            client = AsyncOpenAI(api_key=self._api_key, base_url=self._base_url)
            self._by_loop[loop] = client, MultiProvider(openai_client=client)
        _, provider = self._by_loop[loop]
        return provider.get_model(model_name)

    async def aclose(self) -> None:
        """Close the connections of this loop."""
        client, _ = self._by_loop.pop(asyncio.get_running_loop(), (None, None))
        if client is not None:
            await client.close()
