"""Workers with a relay that kill themselves at a chosen point.

One process imports everything once. For each line of JSON that it is told (`worker`, `point`, `expected`) it forks a
worker, which runs until so many notifications were sent, or kills itself with SIGKILL at the point: `run:{n}` or
`relay:{n}` (a write of a run, or of the relay) or `send`, with `:before` or `:after`. `{"code": -9}` is reported of one
that died so, `{"code": 0}` of one that went home.

Settings: `url` of the log, `webhook`: the name of the outbox.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import anyio._backends._asyncio  # noqa: F401  loaded once, before the fork, as the next ones
import genai_prices.data  # noqa: F401
import httpcore2  # noqa: F401
import truststore  # noqa: F401

from magent2.bus import postgres, redis_adapter, sqlite  # noqa: F401
from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Later, Operation, OwnedAppend, Settle
from magent2.connectors.builtin import make_connector
from magent2.connectors.interface import Connector, DeliveryReceipt, OutgoingMessage
from magent2.connectors.outbox import read_outbox
from magent2.connectors.relay import Relay, running_relay
from magent2.directory.connectors import ConnectorRegistration
from magent2.models.address import WEBHOOK_RELAY
from magent2.runner.echo import EchoRunner
from magent2.worker.runner_adapter import Runner
from magent2.worker.service import WorkerService
from tests.support.engine_wrappers import EngineWrapper
from tests.support.processes import await_line, report, settings
from tests.support.waiting import until
from tests.unit.worker.test_approvals import PayingAgent

R = TypeVar("R")

LEASE_S = 10.0


def die_at(point: str, here: str) -> None:
    if point == here:
        os.kill(os.getpid(), signal.SIGKILL)


class KillingEngine(EngineWrapper):
    """A bus that kills its worker before or after the n-th write of a run or of the relay."""

    def __init__(self, engine: Engine, point: str) -> None:
        super().__init__(engine)
        self.point = point
        self.counts: Counter[str] = Counter()

    async def acall(self, operation: Operation[R]) -> R:
        if not isinstance(operation, OwnedAppend | Settle | Later):
            return await self.inner.acall(operation)
        agent = operation.owner.agent
        if agent not in ("Ada", "Echo", WEBHOOK_RELAY):
            return await self.inner.acall(cast(Operation[R], operation))
        who = "relay" if agent == WEBHOOK_RELAY else "run"
        self.counts[who] += 1
        here = f"{who}:{self.counts[who]}"  # two runs write side by side
        die_at(self.point, f"{here}:before")
        answer = await self.inner.acall(cast(Operation[R], operation))
        die_at(self.point, f"{here}:after")
        return answer


class DeadlyConnector:
    """The real connector, in a process that dies before or after it has sent."""

    def __init__(self, registration: ConnectorRegistration, point: str) -> None:
        self._inner: Connector = make_connector(registration)
        self._point = point
        self.capabilities = self._inner.capabilities

    async def send(self, message: OutgoingMessage, files: Mapping[str, bytes]) -> DeliveryReceipt:
        die_at(self._point, "send:before")
        receipt = await self._inner.send(message, files)
        die_at(self._point, "send:after")
        return receipt

    async def aclose(self) -> None:
        await self._inner.aclose()


async def work(given: dict[str, Any], job: dict[str, Any]) -> None:
    engine = connect(given["url"])
    bus, point = KillingEngine(engine, job["point"]), job["point"]
    runners: dict[str, Runner] = {"Ada": PayingAgent().runner, "Echo": EchoRunner()}
    service = WorkerService(bus, runners, worker=job["worker"], lease_s=LEASE_S)

    def make(registration: ConnectorRegistration) -> Connector:
        return DeadlyConnector(registration, point)

    relay_id = f"relay-{job['worker']}"
    async with running_relay(bus, lambda bus: Relay(bus, make, worker=relay_id, lease_s=LEASE_S)):
        serving = asyncio.create_task(service.run())
        await until(lambda: serving.done() or _is_done(engine, given["webhook"], job["expected"]))
        await service.drain(0.0)
        await serving
    await engine.aclose()


def _is_done(engine: Engine, webhook: str, expected: int) -> bool:
    states = [item.state for item in run_sync(engine, read_outbox, webhook)]
    return states == ["sent"] * expected


def main() -> None:
    given = settings()
    report(ready=True)
    while True:
        job = json.loads(await_line())
        child = os.fork()
        if child == 0:
            settings()  # a fork has to say for itself that it ends with its parent
            asyncio.run(work(given, job))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        report(code=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
