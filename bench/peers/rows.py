"""The three rows of the comparison: streamed answers, turns with a tool, and the same with a kill."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from bench.peers.contestant import Contestant
from bench.peers.http_client import Disconnected, HttpClient, Refused
from bench.peers.processes import cpu_s_of, resident_mb_of
from bench.peers.script import Task

ROW_LIMIT_S = 180.0  # for the runs of a row; a contestant that takes longer is reported
RECOVERY_LIMIT_S = 120.0  # after a restart, for all runs that go on by themselves; the longest lease is 60 s (agno)
KILL_AT_TURN = 5

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done per turn of a contestant."""

    rounds: int
    streams: int
    streams_at_a_time: int
    tokens: int
    runs: int
    runs_at_a_time: int
    turns: int
    single_runs: int
    killed_runs: int


FULL = Scale(
    rounds=3,
    streams=60,
    streams_at_a_time=20,
    tokens=200,
    runs=64,
    runs_at_a_time=64,
    turns=10,
    single_runs=5,
    killed_runs=64,
)
QUICK = Scale(
    rounds=1,
    streams=4,
    streams_at_a_time=2,
    tokens=20,
    runs=8,
    runs_at_a_time=4,
    turns=10,
    single_runs=1,
    killed_runs=8,
)


class RowFailed(RuntimeError):
    """A contestant did not do a row. The message says why."""


@dataclass(slots=True)
class Outcome:
    """What became of the tasks of a row."""

    seconds: float = 0.0
    tokens: int = 0
    finished: int = 0
    errors: list[str] = field(default_factory=list)

    def check(self, tasks: Sequence[Task]) -> None:
        if self.finished < len(tasks):
            raise RowFailed(f"{len(tasks) - self.finished} of {len(tasks)} runs failed: {self.errors[0]}")


@dataclass(frozen=True, slots=True)
class Match:
    """A contestant that serves, with the counter of the model."""

    contestant: Contestant
    counter: HttpClient
    prefix: str  # of the names of its conversations
    scale: Scale

    def tasks(self, row: str, count: int, turns: int, tokens: int) -> list[Task]:
        return [Task(f"{self.prefix}-{row}-{number}", turns, tokens) for number in range(count)]

    async def sums(self, row: str) -> Figures:
        found: Figures = await self.counter.json("GET", f"/sums?{self.prefix}-{row}-")
        return found

    # --- rows ----------------------------------------------------------------------------------------------------

    async def warm_up(self) -> None:
        """One conversation alone, because some frameworks create tables with the first one; then some at a time."""
        for row, count in (("w1", 1), ("w", self.scale.streams_at_a_time)):
            tasks = self.tasks(row, count, 2, 5)
            (await self._all(tasks, count)).check(tasks)

    async def streamed(self) -> Figures:
        """Row a: answers of 200 tokens, 20 conversations at a time."""
        tasks = self.tasks("a", self.scale.streams, 0, self.scale.tokens)
        before = cpu_s_of(self.contestant.pids())
        outcome = await self._all(tasks, self.scale.streams_at_a_time)
        outcome.check(tasks)
        used = cpu_s_of(self.contestant.pids()) - before
        return {
            "tokens_per_s": outcome.tokens / outcome.seconds,
            "stream_cpu_ms": used / len(tasks) * 1e3,
        }

    async def turns(self) -> Figures:
        """Row b: ten turns with one tool each, 64 runs at a time; then a few runs one after another."""
        tasks = self.tasks("b", self.scale.runs, self.scale.turns, 5)
        before = cpu_s_of(self.contestant.pids())
        outcome = await self._all(tasks, self.scale.runs_at_a_time)
        outcome.check(tasks)
        used = cpu_s_of(self.contestant.pids()) - before
        resident = resident_mb_of(self.contestant.pids())
        counted = await self.sums("b")
        single = self.tasks("s", self.scale.single_runs, self.scale.turns, 5)
        (await self._all(single, 1)).check(single)
        alone = await self.sums("s")
        return {
            "runs_per_s": len(tasks) / outcome.seconds,
            "turn_p50_ms": counted["turn_p50_ms"],
            "turn_p95_ms": counted["turn_p95_ms"],
            "single_turn_p50_ms": alone["turn_p50_ms"],
            "cpu_ms": used / len(tasks) * 1e3,
            "resident_mb": resident,
        }

    async def killed(self) -> Figures:
        """Row c: SIGKILL when the tool has run five times per run on average, then a restart."""
        tasks = self.tasks("c", self.scale.killed_runs, self.scale.turns, 5)
        restarted = asyncio.Event()
        running = {asyncio.create_task(self._through_the_kill(task, restarted)): task for task in tasks}
        try:
            reached = await self.counter.json("GET", f"/wait?{self.prefix}-c-&{len(tasks) * KILL_AT_TURN}")
            if not reached["reached"]:
                raise RowFailed(f"the runs did not reach turn {KILL_AT_TURN}")
            before_kill = sum(one.done() for one in running)
            self.contestant.kill()
            await self.contestant.serve()
            restarted.set()
            begun = time.perf_counter()
            done, _ = await asyncio.wait(running, timeout=RECOVERY_LIMIT_S)
            recovery_s = time.perf_counter() - begun
        finally:
            for one in running:
                one.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        finished = [running[one] for one in done if not one.cancelled() and one.exception() is None and one.result()]
        unfinished = [task for task in tasks if task not in finished]
        seen = await self.counter.json("GET", f"/seen?{self.prefix}-c-")
        lost = [task for task in unfinished if task.conversation in seen and not await self._stored(task)]
        again = Outcome()
        await self._limited(unfinished, len(unfinished) or 1, self.contestant.ask_again, again, RECOVERY_LIMIT_S)
        counted = await self.sums("c")
        return {
            "killed_runs": len(tasks),
            "finished_before": before_kill,
            "finished_alone": len(finished),
            "finished": len(finished) + again.finished,
            "tool_calls_twice": counted["tool_calls_twice"],
            "model_calls_twice": counted["model_calls_twice"],
            "messages_lost": len(lost),
            "recovery_s": recovery_s if len(finished) == len(tasks) else float("nan"),
        }

    async def _through_the_kill(self, task: Task, restarted: asyncio.Event) -> bool:
        """Whether the answer came without asking again."""
        try:
            return await _whole(self.contestant.ask(task)) == task.answer()
        except (RuntimeError, LookupError, ValueError):  # Disconnected, and what a dying server sends
            await restarted.wait()
        if not self.contestant.continues:
            return False
        try:
            return (await _whole(self.contestant.follow(task))).endswith(task.answer())
        except (RuntimeError, LookupError, ValueError):  # also Refused
            return False

    async def _stored(self, task: Task) -> bool:
        try:
            return await self.contestant.has_message(task)
        except (Disconnected, Refused):
            return False

    # --- clients -------------------------------------------------------------------------------------------------

    async def _all(self, tasks: Sequence[Task], at_a_time: int) -> Outcome:
        outcome = Outcome()
        await self._limited(tasks, at_a_time, self.contestant.ask, outcome, ROW_LIMIT_S)
        return outcome

    async def _limited(
        self,
        tasks: Sequence[Task],
        at_a_time: int,
        ask: Callable[[Task], AsyncIterator[str]],
        outcome: Outcome,
        limit_s: float,
    ) -> None:
        """Give the tasks to so many clients, each with one conversation after another."""
        left = iter(tasks)

        async def client() -> None:
            for task in left:
                await _one(task, ask, outcome)

        begun = time.perf_counter()
        try:
            async with asyncio.timeout(limit_s):
                await asyncio.gather(*(client() for _ in range(at_a_time)))
        except TimeoutError:
            outcome.errors.insert(0, f"not done within {limit_s:.0f} s")
        outcome.seconds = time.perf_counter() - begun


async def _one(task: Task, ask: Callable[[Task], AsyncIterator[str]], outcome: Outcome) -> None:
    try:
        text = await _whole(ask(task))
    except (
        RuntimeError,
        LookupError,
        ValueError,
    ) as error:  # also Disconnected, Refused, and an answer of another shape
        outcome.errors.append(f"{type(error).__name__}: {error}"[:300])
        return
    if not text.endswith(task.answer()):
        outcome.errors.append(f"another answer: {text[:200]!r}")
        return
    outcome.finished += 1
    outcome.tokens += len(text.split())


async def _whole(pieces: AsyncIterator[str]) -> str:
    return "".join([piece async for piece in pieces])


Row = Callable[[Match], Awaitable[Figures]]
ROWS: dict[str, Row] = {"a": Match.streamed, "b": Match.turns, "c": Match.killed}
