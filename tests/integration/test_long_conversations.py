"""Conversations that get too long for their model, against a real HTTP model server that refuses what is too long."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from agents import Agent, function_tool

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Leave, Operation, Read
from magent2.bus.records import Page
from magent2.runner.config import RunnerConfig
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.runner.providers.provider import provider_of
from magent2.sessions.folds import SUMMARY_HEADING
from magent2.worker.lane_run import LaneRun, Outcome
from tests.support.engine_wrappers import EngineWrapper
from tests.support.journaled_runs import results_in
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.processes import Child, ProcessGroup
from tests.support.small_context import SmallContext
from tests.support.worker_fixture import AGENT, claim_one, dead_letters, history, outputs, send

WINDOW = 4_000  # tokens of the model
LIMIT = 3_000  # tokens of a request
TURNS, TURNS_SOAK = 90, 3_000
SIGKILL = 9


class CountingEngine(EngineWrapper):
    """Counts the records that are read."""

    records = 0

    async def acall(self, operation: Operation[Any]) -> Any:
        found = await self.inner.acall(operation)
        if isinstance(operation, Read):
            self.records += len(found.records) if isinstance(found, Page) else 0
        return found


@function_tool
def look_up(number: int) -> str:
    """Look something up."""
    return f"entry {number}: " + "words " * (20 + number % 40)


def answer(items: Sequence[Mapping[str, Any]]) -> Reply:
    """Call the tool for each question, and then tell its result."""
    question = next(str(item["content"]) for item in reversed(items) if item.get("role") == "user")
    number = int(question.split()[-1])
    found = results_in(items)
    if f"call-{number}" not in found:
        return Reply("Let me see. ", calls=[Call("look_up", {"number": number}, f"call-{number}")])
    return Reply(f"answer {number}")


async def converse(bus: CountingEngine, model: SmallContext, turns: int) -> list[tuple[int, int, float]]:
    """Answer so many questions, each by a worker that reads the history anew.

    Return for each turn the records that were read, the requests and the seconds.
    """
    costs: list[tuple[int, int, float]] = []
    with ModelServer(model) as server:
        config = RunnerConfig(api_key="any", base_url=server.url, api="responses")
        agent = Agent[Any](name=AGENT, model="small", tools=[look_up])
        runner = OpenAIAgentsRunner(agent, provider=provider_of(config))
        runner.context_max = LIMIT
        for number in range(turns):
            send(bus.inner, f"question {number}")
            records, requests, begun = bus.records, len(server.requests), time.monotonic()
            assert await LaneRun(bus, claim_one(bus), runner).work() is Outcome.ANSWERED
            costs.append((bus.records - records, len(server.requests) - requests, time.monotonic() - begun))
            server.requests[:] = [{}] * len(server.requests)  # they are checked by the model; keep the memory flat
        await runner.leave_loop()
    return costs


def check(bus: Engine, model: SmallContext, turns: int) -> list[Mapping[str, Any]]:
    """Check what holds for every long conversation. Return its compactions."""
    assert outputs(bus) == [f"answer {number}" for number in range(turns)]
    assert (model.orphans, model.unasked, model.refused, dead_letters(bus)) == ([], 0, 0, [])
    assert model.answered == 2 * turns
    made = [record for record in history(bus) if record["kind"] == "compaction"]
    assert len(model.summaries) == len(made) > 0, "a summary was paid twice, or there was none"
    return made


async def test_a_long_conversation_with_tools_is_answered_to_the_end_at_the_same_cost() -> None:
    bus, model = CountingEngine(MemoryBus()), SmallContext(answer, WINDOW)

    costs = await converse(bus, model, TURNS)

    made = check(bus.inner, model, TURNS)
    assert len(made) >= 3
    first, last = costs[30:60], costs[60:90]
    assert sum(read for read, _, _ in last) <= 1.5 * sum(read for read, _, _ in first)
    assert max(model.sizes) <= WINDOW
    bus.close()


@pytest.mark.soak
async def test_three_thousand_turns_cost_the_same_at_the_end_as_at_the_beginning(tmp_path: Path) -> None:
    bus, model = CountingEngine(connect(f"sqlite:///{tmp_path / 'log.db'}")), SmallContext(answer, WINDOW)

    costs = await converse(bus, model, TURNS_SOAK)

    made = check(bus.inner, model, TURNS_SOAK)
    for begin in range(0, TURNS_SOAK, TURNS_SOAK // 6):
        part = costs[begin : begin + TURNS_SOAK // 6]
        read, asked, took = (sum(values) / len(part) for values in zip(*part, strict=True))
        print(f"turns {begin:5} …: {read:6.1f} records read, {asked:5.2f} requests, {took * 1000:6.1f} ms per turn")
    print(f"{len(made)} compactions, largest request {max(model.sizes)} tokens")
    size = TURNS_SOAK // 6
    first, last = costs[size : 2 * size], costs[-size:]
    assert sum(read for read, _, _ in last) <= 1.1 * sum(read for read, _, _ in first)
    assert sum(asked for _, asked, _ in last) <= 1.1 * sum(asked for _, asked, _ in first)
    bus.close()


# --- killed workers

LONG = "word " * 700  # about 900 tokens; two of them fit


class Workers:
    """A log, a model with a small context, and workers that are killed."""

    def __init__(self, engine: Engine, model: SmallContext, server: ModelServer, child: Child) -> None:
        self.engine = engine
        self.model = model
        self.server = server
        self._child = child
        self._count = 0

    def work(self, *, held: HeldSummary | None = None, **job: Any) -> bool:
        """Let a worker process one message; return whether it lived. With `held` it is killed during that summary."""
        self._count += 1
        worker = f"worker-{self._count}"
        order = {"worker": worker, "at": 0, "after": False, "context_max": 2_500, "tell": held is not None, **job}
        self._child.write_line(json.dumps(order))
        if held is not None:
            pid = self._child.next_report()["pid"]
            assert held.asked.wait(30)
            os.kill(pid, signal.SIGKILL)
        end = self._child.next_report()
        if held is not None:
            held.release.set()  # otherwise the server would keep the connection of the dead worker
        assert end["code"] in (0, -SIGKILL), self._child.errors()
        self.server.hear_clients_out()
        self.engine.call(Leave(worker))
        return bool(end["code"] == 0)

    def say(self, conversation: str, *texts: str) -> None:
        for text in texts:
            send(self.engine, text, conversation)
            assert self.work()

    def compactions(self, conversation: str) -> list[Mapping[str, Any]]:
        return [record for record in history(self.engine, conversation) if record["kind"] == "compaction"]


class HeldSummary:
    """The first summary stops in the middle until its client is dead."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.release = threading.Event()

    def __call__(self, text: str) -> Reply:
        gate = None if self.asked.is_set() else self.release
        self.asked.set()
        return Reply("the summary of it all", gate=gate)


@pytest.fixture
def workers(log_url: str, engine: Engine, process_group: ProcessGroup, tmp_path: Path) -> Iterator[Workers]:
    model = SmallContext(lambda items: Reply("ok"), WINDOW, summary=lambda text: Reply("the summary of it all"))
    with ModelServer(model) as server, ModelServer(lambda request: Reply(status=503)) as down:
        urls = {"url": log_url, "model_url": server.url, "down_url": down.url}
        child = process_group.spawn("tests.integration.children.journal", **urls, effects=str(tmp_path / "effects"))
        child.next_report()
        yield Workers(engine, model, server, child)


def test_a_killed_worker_leaves_a_whole_compaction_or_none(workers: Workers) -> None:
    _kill_during_the_summary(workers, "during")
    for name, after in (("before", False), ("after", True)):
        _kill_at_the_record(workers, name, after=after)

    assert workers.model.orphans == []


def _kill_during_the_summary(workers: Workers, name: str) -> None:
    usual, held = workers.model.summary, HeldSummary()
    workers.model.summary = held
    workers.say(name, LONG, LONG)
    send(workers.engine, LONG, name)

    assert not workers.work(held=held)
    assert workers.compactions(name) == []
    assert workers.work()

    assert outputs(workers.engine, name) == ["ok"] * 3
    assert len(workers.compactions(name)) == 1
    assert len(workers.model.summaries) == 2  # the first is lost with its worker
    workers.model.summary = usual


def _kill_at_the_record(workers: Workers, name: str, *, after: bool) -> None:
    workers.model.summaries.clear()
    workers.say(name, LONG, LONG)
    send(workers.engine, LONG, name)

    assert not workers.work(kind="compaction", at=1, after=after)
    assert len(workers.compactions(name)) == after
    assert workers.work()
    workers.say(name, "and now?")

    assert outputs(workers.engine, name) == ["ok"] * 4
    (made,) = workers.compactions(name)
    assert len(workers.model.summaries) == (1 if after else 2)
    last = workers.server.requests[-1]["input"]
    assert last[0]["content"] == f"{SUMMARY_HEADING}\n\n{made['summary']}"
    assert last[-1]["content"] == "and now?"
