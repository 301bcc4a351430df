"""`bench`: load on a running server, through the client, as its users see it."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from magent2.cli.options import Door, default_agent, gateway_options, json_option
from magent2.cli.printing import note, say, say_json, say_table

if TYPE_CHECKING:
    from magent2.client import AsyncClient

PROGRESS_S = 1.0
QUANTILES = (50, 95, 99)


@click.command(epilog="Example: magent2 bench --messages 1000 --conversations 50")
@click.option("--agent", help="Who is asked; else 'general'.")
@click.option("-n", "--messages", type=click.IntRange(1, 1_000_000), default=200, show_default=True, help="How many.")
@click.option(
    "-c", "--conversations", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Over how many."
)
@click.option("--concurrency", type=click.IntRange(1, 10_000), help="Messages under way at a time; else all.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(0.1), default=30.0, show_default=True, help="Per answer.")
@click.option("--keep", is_flag=True, help="Leave the conversations there.")
@json_option
@gateway_options
def bench(
    agent: str | None,
    messages: int,
    conversations: int,
    concurrency: int | None,
    timeout_s: float,
    keep: bool,
    as_json: bool,
    door: Door,
) -> int:
    """Measure a running server.

    In each conversation the next message is sent when the one before is answered.
    """
    load = Load(agent or default_agent(), messages, min(conversations, messages), concurrency, timeout_s, keep)
    tally = asyncio.run(_measure(door, load))
    if as_json:
        say_json(tally.figures())
    else:
        _print(tally)
    return 1 if tally.lost or tally.refused else 0


@dataclass(frozen=True, slots=True)
class Load:
    agent: str
    messages: int
    conversations: int
    concurrency: int | None
    timeout_s: float
    keep: bool

    def share(self, number: int) -> int:
        """How many messages conversation `number` sends."""
        each, more = divmod(self.messages, self.conversations)
        return each + (number < more)


@dataclass(slots=True)
class Tally:
    """What came of the messages."""

    messages: int
    send_s: list[float] = field(default_factory=list)
    answer_s: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # accepted, and not answered in time
    refused: list[str] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def done(self) -> int:
        return len(self.answer_s) + len(self.lost) + len(self.refused)

    def figures(self) -> dict[str, object]:
        return {
            "messages": self.messages,
            "answered": len(self.answer_s),
            "lost": len(self.lost),
            "lost_ids": self.lost,
            "refused": len(self.refused),
            "reasons": sorted(set(self.refused)),
            "seconds": round(self.took_s, 3),
            "answers_per_s": round(len(self.answer_s) / self.took_s, 1) if self.took_s else 0.0,
            "send_ms": quantiles_ms(self.send_s),
            "answer_ms": quantiles_ms(self.answer_s),
        }


def quantiles_ms(seconds: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(seconds)
    return {
        f"p{percent}": round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] * 1000, 2)
        if ordered
        else None
        for percent in QUANTILES
    }


async def _measure(door: Door, load: Load) -> Tally:
    from magent2.client import AsyncClient

    async with AsyncClient(door.url, door.token, patience_s=0.5) as quick:
        await quick.agents()
    tally = Tally(load.messages)
    gate = asyncio.Semaphore(load.concurrency or load.conversations)
    name = f"bench-{uuid.uuid4().hex[:8]}"
    async with AsyncClient(door.url, door.token) as client, _progress(tally):
        start = time.perf_counter()
        talks = [Talk(client, load, f"{name}-{number}", tally, gate) for number in range(load.conversations)]
        await asyncio.gather(*(talk.hold(load.share(number)) for number, talk in enumerate(talks)))
        tally.took_s = time.perf_counter() - start
        if not load.keep:
            await asyncio.gather(*(talk.clean_up() for talk in talks))
    return tally


@asynccontextmanager
async def _progress(tally: Tally) -> AsyncIterator[None]:
    async def tell() -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            note(f"{tally.done} of {tally.messages}, {len(tally.lost)} lost")

    task = asyncio.create_task(tell())
    try:
        yield
    finally:
        task.cancel()


class Talk:
    """One conversation: one stream, one message at a time."""

    def __init__(
        self, client: AsyncClient, load: Load, conversation_id: str, tally: Tally, gate: asyncio.Semaphore
    ) -> None:
        self.conversation_id = conversation_id
        self._client = client
        self._load = load
        self._tally = tally
        self._gate = gate
        self._asked: dict[str, asyncio.Future[None]] = {}

    async def hold(self, count: int) -> None:
        listening = asyncio.create_task(self._listen())
        try:
            for number in range(count):
                async with self._gate:
                    await self._ask(f"message {number} of {self.conversation_id}")
        finally:
            listening.cancel()
            await asyncio.wait([listening])

    async def clean_up(self) -> None:
        """Delete the conversation, if any message came so far as to begin it."""
        from magent2.errors import NotFound

        with suppress(NotFound):
            await self._client.delete(self.conversation_id)

    async def _ask(self, text: str) -> None:
        from magent2.errors import Magent2Error

        envelope_id = str(uuid.uuid4())
        answered = self._asked[envelope_id] = asyncio.get_running_loop().create_future()
        start = time.perf_counter()
        try:
            await self._client.send(
                self._load.agent, text, conversation_id=self.conversation_id, envelope_id=envelope_id
            )
            self._tally.send_s.append(time.perf_counter() - start)
            await asyncio.wait_for(answered, self._load.timeout_s)
            self._tally.answer_s.append(time.perf_counter() - start)
        except TimeoutError:
            self._tally.lost.append(envelope_id)
        except Magent2Error as error:
            self._tally.refused.append(str(error))

    async def _listen(self) -> None:
        runs: dict[object, str] = {}
        async with aclosing(self._client.follow(self.conversation_id, 0, ("run", "output"))) as events:
            async for event in events:
                run = event.data.get("run_id")
                if event.kind == "run":
                    runs[run] = str(event.data.get("envelope_id"))
                waiting = self._asked.get(runs.get(run, "")) if event.kind == "output" else None
                if waiting is not None and not waiting.done():
                    waiting.set_result(None)


def _print(tally: Tally) -> None:
    figures = tally.figures()
    rate = figures["answers_per_s"]
    say(f"{figures['answered']} of {tally.messages} answered in {tally.took_s:.2f} s, {rate} per second")
    rows = [
        (what, *(value if value is not None else "-" for value in quantiles_ms(seconds).values()))
        for what, seconds in (("send", tally.send_s), ("answer", tally.answer_s))
    ]
    say_table(("MS", *(f"p{percent}" for percent in QUANTILES)), rows)
    for envelope_id in tally.lost:
        note(f"lost: {envelope_id} was accepted and not answered in time")
    for reason in sorted(set(tally.refused)):
        note(f"refused: {reason}")
