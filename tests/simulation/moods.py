"""What mail does to whoever runs it: nothing, failures, a refusal, or death; and a runner that has no model."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from magent2.errors import ModelRefused, ModelUnavailable
from magent2.models.envelope import MessageEnvelope
from magent2.runner.context import RunContext
from magent2.runner.echo import pieces
from tests.simulation.line import Line
from tests.support.runners import Event, output, token

THINK_MAX_S = 0.8  # per token

# Metadata of mail: how many attempts fail, whether the model says no, whether the process dies of it.
FAILS, REFUSES, KILLS = "fails", "refuses", "kills"


See = Callable[[RunContext, int, str], None]


class Temper:
    """Does to one process what the mail says. `see` is told of every call that is made in it."""

    def __init__(self, line: Line, dice: random.Random, see: See) -> None:
        self.line = line
        self.dice = dice
        self.see = see
        line.temper = self

    @classmethod
    def of(cls, run: Any) -> Temper:
        """That of the process in which a run is at work: its bus is the line of that process."""
        temper: Temper = run.bus.temper
        return temper

    async def think(self) -> None:
        await asyncio.sleep(self.dice.uniform(0, THINK_MAX_S))
        await self.line.breathe()

    async def suffer(self, envelope: MessageEnvelope, context: RunContext) -> None:
        mood = envelope.metadata
        if mood.get(KILLS):
            await self.line.die()
        if mood.get(REFUSES):
            raise ModelRefused("the model says no")
        if context.run.retries < mood.get(FAILS, 0):
            raise ModelUnavailable("the model went away")


class Moods:
    """A runner that streams, thinks, and suffers what the mail says somewhere on the way."""

    def __init__(self, temper: Temper) -> None:
        self._temper = temper

    def stream_run(self, envelope: MessageEnvelope) -> Iterable[Event]:
        raise AssertionError("the worker prefers astream_run")

    async def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        text = envelope.content or ""
        words = pieces(text)
        breaks_at = self._temper.dice.randrange(len(words) + 1)
        for index, word in enumerate([*words, ""]):
            if index == breaks_at:
                await self._temper.suffer(envelope, context)
            await self._temper.think()
            if word:
                yield token(envelope, word, index)
        yield output(envelope, text)
