"""A runner without a model, and the faults that mail asks for: failed attempts, a refusal, or a crash."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from magent2.errors import ModelRefused, ModelUnavailable
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.echo import pieces
from tests.simulation.calls import has_bug, stable_choice
from tests.simulation.faulty_bus import BUG_TEXT, FaultyBus
from tests.support.runners import Event, output, token

THINK_MAX_S = 0.8  # per token

# Metadata of mail: how many attempts fail, whether the model refuses or has a bug, whether the process crashes.
FAILS, REFUSES, KILLS = "fails", "refuses", "kills"


OnCall = Callable[[RunContext, int, str], None]


class MailFaults:
    """Applies the faults in the metadata of mail to one process. `on_call` is called for every tool call in it."""

    def __init__(self, bus: FaultyBus, rng: random.Random, on_call: OnCall) -> None:
        self.bus = bus
        self.rng = rng
        self.on_call = on_call
        bus.faults = self

    @classmethod
    def of(cls, run: Any) -> MailFaults:
        """The faults of the process in which a run works; its bus belongs to that process."""
        faults: MailFaults = run.bus.faults
        return faults

    async def think_time(self) -> None:
        await asyncio.sleep(self.rng.uniform(0, THINK_MAX_S))
        await self.bus.checkpoint()

    def raise_tool_bug(self, call: str) -> None:
        if has_bug(call):
            self.bus.count("a tool raised a bug")
            raise KeyError(BUG_TEXT)

    async def raise_failure(self, envelope: MessageEnvelope, context: RunContext) -> None:
        mood = envelope.metadata
        if mood.get(KILLS):
            await self.bus.crash()
        if mood.get(REFUSES):
            raise KeyError(BUG_TEXT) if stable_choice(envelope.id, 2) else ModelRefused("the model refuses")
        if context.run.retries < mood.get(FAILS, 0):
            raise ModelUnavailable("the model is unavailable")


class PlainRunner:
    """A runner that streams with pauses, and applies the faults of the mail at a random token."""

    def __init__(self, faults: MailFaults) -> None:
        self._faults = faults

    def stream_run(self, envelope: MessageEnvelope) -> Iterable[Event]:
        raise AssertionError("the worker prefers astream_run")

    async def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        text = envelope.content or ""
        words = pieces(text)
        breaks_at = self._faults.rng.randrange(len(words) + 1)
        for index, word in enumerate([*words, ""]):
            if index == breaks_at:
                await self._faults.raise_failure(envelope, context)
            await self._faults.think_time()
            if word:
                yield token(envelope, word, index)
        yield output(envelope, text)
