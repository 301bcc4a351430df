"""The command `bench`: sends load to a running server through the client and measures the answers."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from magent2.cli.options import RETRY_FOR_S, GatewayOptions, default_agent, gateway_options, json_option
from magent2.cli.output import print_data, print_json, print_note, print_table

if TYPE_CHECKING:
    from magent2.client import AsyncClient

PROGRESS_S = 1.0
PERCENTILES = (50, 95, 99)


@click.command(epilog="Example: magent2 bench --messages 1000 --conversations 50")
@click.option("--agent", metavar="NAME", help="Agent to send to. Default: AGENT_NAME, else 'general'.")
@click.option(
    "-n",
    "--messages",
    metavar="N",
    type=click.IntRange(1, 1_000_000),
    default=200,
    show_default=True,
    help="Number of messages.",
)
@click.option(
    "-c",
    "--conversations",
    metavar="N",
    type=click.IntRange(1, 10_000),
    default=20,
    show_default=True,
    help="Number of conversations to spread them over.",
)
@click.option(
    "--concurrency",
    metavar="N",
    type=click.IntRange(1, 10_000),
    help="Messages to have unanswered at a time. Default: one per conversation.",
)
@click.option(
    "--timeout",
    "timeout_s",
    metavar="SECONDS",
    type=click.FloatRange(0.1),
    default=30.0,
    show_default=True,
    help="How long to wait for each answer.",
)
@click.option("--keep", is_flag=True, help="Do not delete the conversations afterwards.")
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
    gateway: GatewayOptions,
) -> int:
    """Measure a running server under load.

    Each conversation sends its next message when the previous one is answered. The exit code is 1 when a message was
    not answered.
    """
    plan = BenchPlan(agent or default_agent(), messages, min(conversations, messages), concurrency, timeout_s, keep)
    result = asyncio.run(_measure(gateway, plan))
    if as_json:
        print_json(result.figures())
    else:
        _print_result(result)
    if not result.lost and not result.refused:
        return 0
    failed = len(result.lost) + len(result.refused)
    print_note(
        f"magent2: {failed} messages were not answered; 'magent2 agents ls' shows whether a worker serves the agent"
    )
    return 1


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """The load to send."""

    agent: str
    messages: int
    conversations: int
    concurrency: int | None
    timeout_s: float
    keep: bool

    def share(self, number: int) -> int:
        """The number of messages that conversation `number` sends."""
        each, more = divmod(self.messages, self.conversations)
        return each + (number < more)


@dataclass(slots=True)
class BenchResult:
    """The outcome of every message, collected while the load runs."""

    messages: int
    send_s: list[float] = field(default_factory=list)
    answer_s: list[float] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)  # accepted, but not answered in time
    refused: list[str] = field(default_factory=list)
    took_s: float = 0.0

    @property
    def done(self) -> int:
        return len(self.answer_s) + len(self.lost) + len(self.refused)

    @property
    def answers_per_s(self) -> float:
        return round(len(self.answer_s) / self.took_s, 1) if self.took_s else 0.0

    def figures(self) -> dict[str, object]:
        return {
            "messages": self.messages,
            "answered": len(self.answer_s),
            "lost": len(self.lost),
            "lost_ids": self.lost,
            "refused": len(self.refused),
            "reasons": sorted(set(self.refused)),
            "seconds": round(self.took_s, 3),
            "answers_per_s": self.answers_per_s,
            "send_ms": quantiles_ms(self.send_s),
            "answer_ms": quantiles_ms(self.answer_s),
        }


def quantiles_ms(seconds: Sequence[float]) -> dict[str, float | None]:
    """Percentiles in milliseconds by name, `None` where there is nothing to measure."""
    ordered = sorted(seconds)
    return {
        f"p{percent}": round(ordered[min(len(ordered) - 1, len(ordered) * percent // 100)] * 1000, 2)
        if ordered
        else None
        for percent in PERCENTILES
    }


async def _measure(gateway: GatewayOptions, plan: BenchPlan) -> BenchResult:
    from magent2.client import AsyncClient

    # This client gives up soon, so that a wrong URL or token is reported before the load begins.
    async with AsyncClient(gateway.url, gateway.token, patience_s=RETRY_FOR_S) as client:
        await client.agents()
    result = BenchResult(plan.messages)
    slots = asyncio.Semaphore(plan.concurrency or plan.conversations)
    name = f"bench-{uuid.uuid4().hex[:8]}"
    async with AsyncClient(gateway.url, gateway.token) as client, _progress(result):
        start = time.perf_counter()
        conversations = [
            BenchConversation(client, plan, f"{name}-{number}", result, slots) for number in range(plan.conversations)
        ]
        await asyncio.gather(*(one.send(plan.share(number)) for number, one in enumerate(conversations)))
        result.took_s = time.perf_counter() - start
        if not plan.keep:
            await asyncio.gather(*(one.delete() for one in conversations))
    return result


@asynccontextmanager
async def _progress(result: BenchResult) -> AsyncIterator[None]:
    """Print the progress once a second."""

    async def print_progress() -> None:
        while True:
            await asyncio.sleep(PROGRESS_S)
            print_note(f"{result.done} of {result.messages}, {len(result.lost)} lost")

    task = asyncio.create_task(print_progress())
    try:
        yield
    finally:
        task.cancel()


class BenchConversation:
    """One conversation: one stream, and one message at a time."""

    def __init__(
        self,
        client: AsyncClient,
        plan: BenchPlan,
        conversation_id: str,
        result: BenchResult,
        slots: asyncio.Semaphore,
    ) -> None:
        self.conversation_id = conversation_id
        self._client = client
        self._plan = plan
        self._result = result
        self._slots = slots
        self._waiting: dict[str, asyncio.Future[None]] = {}  # by envelope id

    async def send(self, count: int) -> None:
        """Send this many messages, each after the answer to the one before."""
        following = asyncio.create_task(self._follow())
        following.add_done_callback(self._fail_waiting)
        try:
            for number in range(count):
                async with self._slots:
                    await self._send_one(f"message {number} of {self.conversation_id}")
        finally:
            following.cancel()
            await asyncio.wait([following])

    async def delete(self) -> None:
        """Delete the conversation, which does not exist when every message of it was refused."""
        from magent2.errors import NotFound

        with suppress(NotFound):
            await self._client.delete(self.conversation_id)

    async def _send_one(self, text: str) -> None:
        from magent2.errors import Magent2Error

        envelope_id = str(uuid.uuid4())
        # Before the send: the answer may be on the stream before the send returns.
        answered = self._waiting[envelope_id] = asyncio.get_running_loop().create_future()
        start = time.perf_counter()
        try:
            await self._client.send(
                self._plan.agent, text, conversation_id=self.conversation_id, envelope_id=envelope_id
            )
            self._result.send_s.append(time.perf_counter() - start)
            await asyncio.wait_for(answered, self._plan.timeout_s)
            self._result.answer_s.append(time.perf_counter() - start)
        except TimeoutError:
            self._result.lost.append(envelope_id)
        except Magent2Error as error:
            self._result.refused.append(str(error))

    def _fail_waiting(self, following: asyncio.Task[None]) -> None:
        """Pass an error of the stream on to the messages whose answers it would have shown."""
        if following.cancelled() or (error := following.exception()) is None:
            return
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(error)

    async def _follow(self) -> None:
        """Resolve the future of each message when the output of its run is on the stream."""
        envelopes: dict[object, str] = {}  # by run
        async with aclosing(self._client.follow(self.conversation_id, 0, ("run", "output"))) as events:
            async for event in events:
                run = event.data.get("run_id")
                if event.kind == "run":
                    envelopes[run] = str(event.data.get("envelope_id"))
                waiting = self._waiting.get(envelopes.get(run, "")) if event.kind == "output" else None
                if waiting is not None and not waiting.done():
                    waiting.set_result(None)


def _print_result(result: BenchResult) -> None:
    answered = f"{len(result.answer_s)} of {result.messages} answered"
    print_data(f"{answered} in {result.took_s:.2f} s, {result.answers_per_s} per second")
    rows = [
        (what, *(value if value is not None else "-" for value in quantiles_ms(seconds).values()))
        for what, seconds in (("send", result.send_s), ("answer", result.answer_s))
    ]
    print_table(("MS", *(f"p{percent}" for percent in PERCENTILES)), rows)
    for envelope_id in result.lost:
        print_note(f"lost: message {envelope_id} was accepted but not answered in time")
    for reason in sorted(set(result.refused)):
        print_note(f"refused: {reason}")
