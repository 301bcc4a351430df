"""The overhead of runner, journal and worker over a run of the SDK alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agents import Agent, Model, ModelResponse, RunConfig, Runner, function_tool
from agents.items import TResponseStreamEvent

from bench.support.report import Connect, Measure, Pair, Stopwatch, compare, run
from bench.support.worker.backlog import WorkerScale, answer_s, check_answers, new_backlog
from magent2.bus.base import EngineBase
from magent2.runner.demo.model import build_response, stream_events
from magent2.runner.demo.script import Line, ScriptedCall, ScriptedText
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner

QUESTION = "Which offer is the cheapest?"
DONE = "The second one."
PAUSE_S = 0.005  # between tokens that are paced

Items = Sequence[Mapping[str, Any]]


class ScriptedReplies(Model):
    """A model that streams scripted answers word by word."""

    def __init__(self, say: Callable[[Items], Line], pause_s: float = 0.0) -> None:
        self._say = say
        self._pause_s = pause_s

    async def get_response(self, *args: Any, **options: Any) -> ModelResponse:
        raise NotImplementedError("runs are streamed here")

    async def stream_response(
        self,
        system_instructions: str | None,
        input: Any,  # noqa: A002  the SDK's name for it
        *rest: Any,
        **options: Any,
    ) -> AsyncIterator[TResponseStreamEvent]:
        items = [{"role": "user", "content": input}] if isinstance(input, str) else input
        for event in stream_events(build_response(self._say(items), items)):
            if self._pause_s and event.type == "response.output_text.delta":
                await asyncio.sleep(self._pause_s)
            yield event


@function_tool
async def look_up(offer: int) -> str:
    """The price of an offer."""
    return f"offer {offer} costs {offer * 10}"


def talker(tokens: int, pause_s: float = 0.0) -> Agent[Any]:
    """Answers with so many words."""
    line = ScriptedText(answer_of(tokens))
    return Agent(name="Talker", model=ScriptedReplies(lambda _: line, pause_s))


def answer_of(tokens: int) -> str:
    return "word " * tokens


def caller(turns: int) -> Agent[Any]:
    """Calls its tool in so many turns, one after another, then answers."""

    def say(items: Items) -> Line:
        done = sum(item.get("type") == "function_call_output" for item in items)
        return (ScriptedCall("look_up", {"offer": done}),) if done < turns else ScriptedText(DONE)

    return Agent(name="Caller", model=ScriptedReplies(say), tools=[look_up])


def sdk_overhead(connect: Connect, scale: WorkerScale, *, busy: bool = False) -> Pair:
    """Milliseconds per run with tokens as fast as they can be made: one run after another, or all at once."""
    job = Job(talker(scale.tokens), answer_of(scale.tokens), scale.runs, scale.runs if busy else 1)
    return run(_compare(connect(), job, scale.rounds))


def sdk_overhead_paced(connect: Connect, scale: WorkerScale) -> Pair:
    job = Job(talker(scale.tokens, PAUSE_S), answer_of(scale.tokens), scale.paced_runs)
    return run(_compare(connect(), job, scale.rounds))


def journal_ms_per_turn(connect: Connect, scale: WorkerScale) -> tuple[float, Pair]:
    """Additional milliseconds per turn with a tool, and the measured runs."""
    pair = run(_compare(connect(), Job(caller(scale.turns), DONE, scale.runs), scale.rounds))
    return (pair.ratio - 1) * pair.raw / scale.turns, pair


@dataclass(frozen=True, slots=True)
class Job:
    """Runs to be done both ways."""

    agent: Agent[Any]
    answer: str
    runs: int
    at_a_time: int = 1


async def _compare(bus: EngineBase, job: Job, rounds: int) -> Pair:
    try:
        return await compare(alone(job), _through_us(bus, job), rounds)
    finally:
        await bus.aclose()


def alone(job: Job) -> Measure:
    config = RunConfig(tracing_disabled=True)

    async def follow(left: Iterator[int]) -> None:
        for _ in left:
            result = Runner.run_streamed(job.agent, input=QUESTION, run_config=config)
            async for _ in result.stream_events():
                pass
            if result.final_output != job.answer:
                raise RuntimeError(f"the SDK answered {result.final_output!r}")

    async def measure() -> float:
        left = iter(range(job.runs))
        with Stopwatch() as watch:
            await asyncio.gather(*(follow(left) for _ in range(job.at_a_time)))
        return watch.seconds / job.runs * 1e3

    return measure


def _through_us(bus: EngineBase, job: Job) -> Measure:
    """The same runs by a worker, each in a conversation of its own."""
    runner = OpenAIAgentsRunner(job.agent)

    async def measure() -> float:
        backlog = new_backlog(QUESTION, job.runs)
        seconds = await answer_s(bus, backlog, runner, job.at_a_time)
        await check_answers(bus, backlog, job.answer)
        return seconds / job.runs * 1e3

    return measure
