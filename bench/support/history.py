"""Long histories and large answers, and what they cost a worker."""

from __future__ import annotations

import asyncio
import gc
import json
import resource
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from bench.support.report import SENTENCE
from magent2.bus.base import EngineBase
from magent2.bus.log import Log
from magent2.bus.operations import RECORDS_PER_APPEND_MAX, Append
from magent2.bus.records import NewRecord
from magent2.bus.sqlite import SqliteBus
from magent2.mail.delivery import deliver
from magent2.models.envelope import MessageEnvelope
from magent2.runner.echo import EchoRunner
from magent2.sessions.history import HistoryCache, RunKey
from magent2.worker.service import WorkerService

AGENT = "Bench"
RUN_RECORDS = 4
LARGE_CONVERSATIONS = 100  # that large answers are spread over
LOOK_AGAIN_S = 0.002
MB = 1e6


def write_history(bus: EngineBase, conversation: str, records: int) -> None:
    """Write a history of this length with large appends: runs of one turn with one tool call."""
    batch: list[NewRecord] = []
    for number in range(records // RUN_RECORDS):
        key = RunKey(conversation, f"run-{number}", AGENT)
        item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": SENTENCE}]}
        batch += [
            key.start({"id": f"message-{number}", "sender": "user:ada", "content": SENTENCE}, {}, len(batch)),
            key.answer(0, {"output": [item]}, AGENT),
            key.tool(0, "call", "weather", SENTENCE),
            key.end("finished", SENTENCE, {"input_tokens": 100, "output_tokens": 20}),
        ]
        if len(batch) + RUN_RECORDS > RECORDS_PER_APPEND_MAX:
            bus.call(Append(records=tuple(batch)))
            batch = []
    if batch:
        bus.call(Append(records=tuple(batch)))


async def send(bus: EngineBase, conversation: str, text: str = SENTENCE) -> None:
    envelope = MessageEnvelope(
        conversation_id=conversation, sender="user:ada", recipient=f"agent:{AGENT}", content=text
    )
    await deliver(Log(bus), envelope)


async def wait_for(service: WorkerService, count: int) -> None:
    while service.outcomes.total() < count:
        await asyncio.sleep(LOOK_AGAIN_S)


async def answer_one(bus: EngineBase, conversation: str) -> None:
    """Let a worker answer one message. From here on the history has what workers write."""
    await send(bus, conversation)
    service = WorkerService(bus, {AGENT: EchoRunner()})
    serving = asyncio.create_task(service.run())
    await wait_for(service, 1)
    await service.drain()
    await serving


async def read_ms(bus: EngineBase, conversation: str) -> float:
    """Milliseconds of a read that finds nothing in its cache."""
    gc.collect()
    begun = time.perf_counter()
    await HistoryCache(bus).read(conversation)
    return (time.perf_counter() - begun) * 1e3


async def longest_wait_ms(bus: EngineBase, conversation: str) -> float:
    """The longest time that another task of the event loop waits during such a read."""
    longest, over = 0.0, False

    async def ticker() -> None:
        nonlocal longest
        while not over:
            begun = time.perf_counter()
            await asyncio.sleep(0)
            longest = max(longest, time.perf_counter() - begun)

    ticking = asyncio.create_task(ticker())
    await asyncio.sleep(0.01)
    longest = 0.0
    await HistoryCache(bus).read(conversation)
    over = True
    await ticking
    return longest * 1e3


async def answers_in_turn_per_s(bus: EngineBase, conversations: int, records: int, rounds: int) -> float:
    """Messages per second of one worker that is sent one message to each conversation, in turn, some times over."""
    names = [f"turn-{number}" for number in range(conversations)]
    for name in names:
        write_history(bus, name, records)
    service = WorkerService(bus, {AGENT: EchoRunner()})
    serving = asyncio.create_task(service.run())
    for name in names:  # the first round fills the cache
        await send(bus, name)
    await wait_for(service, conversations)
    begun = time.perf_counter()
    for done in range(1, rounds + 1):
        for name in names:
            await send(bus, name)
        await wait_for(service, conversations * (done + 1))
    seconds = time.perf_counter() - begun
    await service.drain()
    await serving
    return conversations * rounds / seconds


# --- memory of a worker process


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident memory of a worker."""

    before_mb: float
    after_mb: float
    idle_mb: float


async def measure_memory(answers: int, chars: int, idle_s: float) -> Memory:
    """Send large messages to an echo worker in a process of its own, which reports its memory."""
    with tempfile.TemporaryDirectory(prefix="magent2-bench-") as folder:
        path = Path(folder) / "memory.db"
        bus = SqliteBus(path)
        arguments = [sys.executable, "-m", "bench.support.history", str(path), str(answers), str(idle_s)]
        process = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
        for number in range(answers):
            await send(bus, f"large-{number % LARGE_CONVERSATIONS}", "x" * chars)
        out, _ = await process.communicate()
        bus.close()
    if process.returncode:
        raise RuntimeError(f"the worker ended with {process.returncode}")
    return Memory(**json.loads(out))


def resident_mb() -> float:
    """The resident memory of this process; its maximum where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return pages * resource.getpagesize() / MB
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MB


async def report_memory(path: Path, answers: int, idle_s: float) -> None:
    bus = SqliteBus(path)
    service = WorkerService(bus, {AGENT: EchoRunner()})
    before = resident_mb()
    serving = asyncio.create_task(service.run())
    await wait_for(service, answers)
    after = resident_mb()
    await asyncio.sleep(idle_s)
    idle = resident_mb()
    await service.drain()
    await serving
    bus.close()
    print(json.dumps({"before_mb": before, "after_mb": after, "idle_mb": idle}))


if __name__ == "__main__":
    asyncio.run(report_memory(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
