"""Relays that kill themselves at a chosen point.

One process imports everything once. For each line of JSON that it is told (`worker`, `point`) it forks a relay, which
sends until the outbox has nothing left to do, or kills itself with SIGKILL at the point: `send` or `write:{n}`, with
`:before` or `:after`. `{"code": -9}` is reported of one that died so, `{"code": 0}` of one that went home.

Settings: `url` of the log, `arrivals`: the file of the receiver, `takes_key`.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar, cast

from magent2.bus import postgres, redis_adapter, sqlite  # noqa: F401  loaded once, before the fork
from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Later, Operation, OwnedAppend, Settle
from magent2.connectors.interface import DeliveryReceipt, OutgoingMessage
from magent2.connectors.outbox import read_outbox
from magent2.connectors.relay import Relay
from magent2.directory.connectors import Capabilities
from tests.support.engine_wrappers import EngineWrapper
from tests.support.processes import await_line, report, settings
from tests.support.waiting import until

R = TypeVar("R")


def die_at(point: str, here: str) -> None:
    if point == here:
        os.kill(os.getpid(), signal.SIGKILL)


class KillingEngine(EngineWrapper):
    """A bus that kills its relay before or after its n-th write."""

    def __init__(self, engine: Engine, point: str) -> None:
        super().__init__(engine)
        self.point = point
        self.count = 0

    async def acall(self, operation: Operation[R]) -> R:
        if not isinstance(operation, OwnedAppend | Settle | Later):
            return await self.inner.acall(operation)
        self.count += 1
        die_at(self.point, f"write:{self.count}:before")
        answer = await self.inner.acall(cast(Operation[R], operation))
        die_at(self.point, f"write:{self.count}:after")
        return answer


class RecordingReceiver:
    """A receiver that writes down what arrives, and is there when the relay is not."""

    def __init__(self, arrivals: Path, takes_key: bool, point: str) -> None:
        self.capabilities = Capabilities(takes_key=takes_key)
        self._arrivals = arrivals
        self._point = point

    async def send(self, message: OutgoingMessage, files: Mapping[str, bytes]) -> DeliveryReceipt:
        die_at(self._point, "send:before")
        with self._arrivals.open("a") as file:
            file.write(f"{message.key}\n")
        die_at(self._point, "send:after")
        return DeliveryReceipt()

    async def aclose(self) -> None:
        return None


async def relay(given: dict[str, Any], job: dict[str, Any]) -> None:
    engine = connect(given["url"])
    receiver = RecordingReceiver(Path(given["arrivals"]), given["takes_key"], job["point"])
    relay = Relay(KillingEngine(engine, job["point"]), lambda _: receiver, worker=job["worker"], lease_s=10.0)
    relaying = asyncio.create_task(relay.run())
    await until(lambda: relaying.done() or _idle(engine), deadline_s=30)
    relay.drain()
    await relaying
    await engine.aclose()


def _idle(engine: Engine) -> bool:
    return all(item.state not in ("waiting", "begun") for item in run_sync(engine, read_outbox, "hook"))


def main() -> None:
    given = settings()
    report(ready=True)
    while True:
        job = json.loads(await_line())
        child = os.fork()
        if child == 0:
            settings()  # a fork has to say for itself that it ends with its parent
            asyncio.run(relay(given, job))
            os._exit(0)
        _, status = os.waitpid(child, 0)
        report(code=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main()
