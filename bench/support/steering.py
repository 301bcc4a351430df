"""The time until a steer is accepted by a gateway, and until the next model request of the run would contain it.

The gateway listens on a local port; gateway and worker each have their own bus object.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from statistics import median

import httpx2

from bench.support.redis_server import redis_server
from bench.support.report import Connect
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.server import Gateway, listen
from magent2.models.envelope import MessageEnvelope, OutputEvent
from magent2.runner.context import RunContext
from magent2.runner.run_stream import Event
from magent2.worker.service import WorkerService

STEERS = 200
WARM_UP = 20
LOOK_AGAIN_S = 0.0002  # how often the run could ask its model
SESSION, AGENT = "bench", "Ada"
DEADLINE_S = 10.0


class SteerableRunner:
    """A run that records when a model request would first contain each steer."""

    takes_steers = True

    def __init__(self) -> None:
        self.shown: dict[str, float] = {}
        self.begun = asyncio.Event()
        self.over = asyncio.Event()

    def stream_run(self, envelope: MessageEnvelope) -> Iterable[Event]:
        raise AssertionError("the worker prefers astream_run")

    async def astream_run(self, envelope: MessageEnvelope, context: RunContext) -> AsyncIterator[Event]:
        self.begun.set()
        turn = 0
        while not self.over.is_set():
            new = [steer for steer in await context.steers() if steer.id not in self.shown]
            self.shown.update(dict.fromkeys((steer.id for steer in new), time.perf_counter()))
            if new:
                answer = context.key.answer(turn, {"output": []}, AGENT, [steer.payload for steer in new])
                await context.writer.commit(answer, mail=tuple(steer.ref for steer in new))
                turn += 1
            await asyncio.sleep(LOOK_AGAIN_S)
        yield OutputEvent(conversation_id=envelope.conversation_id, text="done")


async def measure() -> dict[str, float]:
    """Medians in milliseconds, on Redis and, with the prefix `sqlite_`, on a file."""
    from magent2.bus.redis_adapter import RedisBus
    from magent2.bus.sqlite import SqliteBus

    with redis_server() as url:
        figures = await measure_on(partial(RedisBus, url, prefix="bench"))
    with tempfile.TemporaryDirectory(prefix="magent2-bench-") as folder:
        on_file = await measure_on(partial(SqliteBus, Path(folder, "steers.db")))
    return {**figures, **{f"sqlite_{name}": value for name, value in on_file.items()}}


async def measure_on(connect: Connect, steers: int = STEERS) -> dict[str, float]:
    run = SteerableRunner()
    async with at_work(connect, run) as client:
        await client.post("/send", json={"conversation_id": SESSION, "recipient": f"agent:{AGENT}", "content": "go"})
        await asyncio.wait_for(run.begun.wait(), DEADLINE_S)
        samples = [await steer(client, run, number) for number in range(WARM_UP + steers)][WARM_UP:]
        run.over.set()
    accepted, visible = zip(*samples, strict=True)
    return {"steer_accept_ms": median(accepted), "steer_visible_ms": median(visible)}


async def steer(client: httpx2.AsyncClient, run: SteerableRunner, number: int) -> tuple[float, float]:
    """Milliseconds from the request to its answer, and from the request to a model that would see it."""
    begun = time.perf_counter()
    answer = await client.post(f"/api/sdk/session/{SESSION}/steer", json={"text": f"steer {number}"})
    accepted = time.perf_counter()
    name = answer.raise_for_status().json()["receipt_id"]
    async with asyncio.timeout(DEADLINE_S):
        while name not in run.shown:
            await asyncio.sleep(LOOK_AGAIN_S)
    return (accepted - begun) * 1000, (run.shown[name] - begun) * 1000


@asynccontextmanager
async def at_work(connect: Connect, run: SteerableRunner) -> AsyncIterator[httpx2.AsyncClient]:
    """A gateway, a worker, and a client of the gateway."""
    front, back = connect(), connect()
    listener = listen("127.0.0.1", 0)
    gateway = Gateway(front, limits=GatewayLimits())
    service = WorkerService(back, {AGENT: run})
    tasks = [asyncio.create_task(gateway.serve([listener])), asyncio.create_task(service.run())]
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    try:
        async with httpx2.AsyncClient(base_url=address, timeout=DEADLINE_S) as client:
            yield client
    finally:
        run.over.set()
        gateway.drain()
        await service.drain(1.0)
        await asyncio.gather(*tasks)
        await asyncio.gather(front.aclose(), back.aclose())


if __name__ == "__main__":
    import json

    from bench.support.report import run as run_on_loop

    print(json.dumps({name: round(value, 3) for name, value in run_on_loop(measure()).items()}))
