"""Workers that kill themselves at a chosen append of a run.

One process imports everything once. For each line of JSON that it is told (`worker`, `at`, `after`) it forks a worker,
which serves the agent until one message is settled or its run is paused, or kills itself with SIGKILL before or after
its `at`-th append. With `kind`, only appends with a history record of that kind count.
With `context_max` its requests are compacted, and with `tell` its process id is reported first.
`{"code": -9}` is reported of a worker that died so, `{"code": 0}` of one that went home.

Its agents have two models, the first of which is down.
Settings: `url` of the log, `down_url`, `model_url`, `effects`: the file that tools leave their marks in.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar, cast

from agents import Agent, Model, RunContextWrapper, function_tool
from openai import AsyncOpenAI

from magent2.bus import postgres, redis_adapter, sqlite  # noqa: F401  loaded once, before the fork
from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.operations import Later, Operation, OwnedAppend, Settle
from magent2.bus.records import NewRecord
from magent2.roster.spec import Provider
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.runner.providers.catalogue import OwnServer
from magent2.runner.providers.provider import AgentModels, LoopProvider
from magent2.runner.stored_response import answer_json, completed_event
from magent2.tools.chat import chat_send
from magent2.worker.service import WorkerService
from tests.support.engine_wrappers import EngineWrapper
from tests.support.processes import await_line, report, settings
from tests.support.worker_fixture import AGENT, LEASE_S, until

R = TypeVar("R")

MODELS = ("down/scripted", "scripted")

RUN_DEADLINE_S = 30.0  # for several model requests and many appends


class KillingEngine(EngineWrapper):
    """A bus that kills its worker."""

    def __init__(self, engine: Engine, at: int, after: bool, kind: str | None = None) -> None:
        super().__init__(engine)
        self.at = at
        self.after = after
        self.kind = kind
        self.count = 0

    async def acall(self, operation: Operation[R]) -> R:
        if not isinstance(operation, OwnedAppend | Settle | Later) or not self._counts(operation.records):
            return await self.inner.acall(operation)
        self.count += 1
        if self.count == self.at and not self.after:
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await self.inner.acall(cast(Operation[R], operation))
        if self.count == self.at:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    def _counts(self, records: Iterable[NewRecord]) -> bool:
        return self.kind is None or any(record.payload.get("kind") == self.kind for record in records)


def team(effects: Path, model: Model) -> Agent[Any]:
    """Ada has a tool and hands over to Bea, who has two."""

    @function_tool
    async def work(context: RunContextWrapper[Any], n: int) -> str:
        """Do a piece of work."""
        with effects.open("a") as file:
            file.write(f"{context.context.conversation_id} {n}\n")
        return f"did {n}"

    bea = Agent[Any](name="Bea", model=model, tools=[work, chat_send])
    return Agent(name=AGENT, model=model, tools=[work], handoffs=[bea])


async def serve(given: dict[str, Any], job: dict[str, Any]) -> None:
    provider = LoopProvider("any", given["model_url"])
    provider.follow({"down": Provider("down", given["down_url"])})
    model = AgentModels(provider, MODELS, OwnServer())
    engine = connect(given["url"])
    bus = KillingEngine(engine, job["at"], job["after"], job.get("kind"))
    runner = OpenAIAgentsRunner(team(Path(given["effects"]), model), provider=provider)
    runner.context_max = job.get("context_max")
    service = WorkerService(bus, {AGENT: runner}, worker=job["worker"], lease_s=LEASE_S)
    serving = asyncio.create_task(service.run())
    await until(lambda: service.outcomes or serving.done(), deadline_s=30)
    await service.drain()
    await serving
    await engine.aclose()


async def warm_up(model_url: str) -> None:
    """Ask the model once: the client builds its types when it first sees them, and each worker would do so anew."""
    async with AsyncOpenAI(api_key="any", base_url=model_url, max_retries=0) as client:  # pragma: allowlist secret
        stream = await client.responses.create(model="scripted", input=[{"role": "user", "content": "hi"}], stream=True)
        async for event in stream:
            if event.type == "response.completed":
                completed_event(answer_json(event.response))


def main() -> None:
    given = settings()
    asyncio.run(warm_up(given["model_url"]))
    assert threading.active_count() == 1, threading.enumerate()  # or the fork would not be a sound process
    report(ready=True)
    while True:
        job = json.loads(await_line())
        pid = os.fork()
        if pid == 0:
            settings()  # a fork has to say for itself that it ends with its parent
            asyncio.run(serve(given, job))
            os._exit(0)
        if job.get("tell"):
            report(pid=pid)
        _, status = os.waitpid(pid, 0)
        report(code=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
