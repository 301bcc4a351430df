"""The presence of workers is a hint: no accepted message fails because of it, and no request takes it from another."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Claim, Operation, Read, Workers
from magent2.errors import BusUnavailable, MalformedRecord, StorageFull
from magent2.gateway import services
from magent2.gateway.services import WorkerPresence
from tests.support.engine_wrappers import EngineWrapper
from tests.support.flaky_engine import UnexpectedErrors
from tests.support.gateway import asgi_client, message

ERRORS = [KeyError("agents"), MemoryError(), StorageFull("full"), BusUnavailable("away")]
each_error = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


class SlowWorkers(EngineWrapper):
    """Waits for `gate` before it lists the workers."""

    def __init__(self, bus: MemoryBus) -> None:
        super().__init__(bus)
        self.gate = asyncio.Event()
        self.asked = 0

    async def acall(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, Workers):
            self.asked += 1
            await self.gate.wait()
        return self.call(operation)


@each_error
async def test_an_accepted_message_is_answered_without_a_notice_if_workers_cannot_be_listed(
    bus: MemoryBus, error: Exception
) -> None:
    async with asgi_client(UnexpectedErrors(bus, Workers, [error])) as client:
        answer = await client.post("/send", json=message("hello", id="m1"))

    assert answer.status_code == 200
    assert "notice" not in answer.json()
    assert [record.payload["id"] for record in bus.read("chat:Ada")] == ["m1"]


@each_error
async def test_an_accepted_message_of_a_session_is_answered_if_workers_cannot_be_listed(
    bus: MemoryBus, error: Exception
) -> None:
    async with asgi_client(UnexpectedErrors(bus, Workers, [error])) as client:
        await client.post("/send", json=message("first", id="m1"))
        body = {"session_id": "one", "user_input": "hello", "wait": False}
        answer = await client.post("/api/sdk/session/message", json=body)

    assert answer.status_code == 202
    assert len(bus.read("chat:Ada")) == 2


async def test_an_accepted_message_is_answered_although_the_list_of_workers_does_not_come(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "PRESENCE_WAIT_MAX_S", 0.01)
    slow = SlowWorkers(bus)
    async with asgi_client(slow) as client, asyncio.timeout(10):
        answer = await client.post("/send", json=message("hello"))
    slow.gate.set()

    assert (answer.status_code, slow.asked) == (200, 1)


async def test_a_request_that_is_cancelled_does_not_cancel_the_read_that_others_wait_for(bus: MemoryBus) -> None:
    await bus.acall(Claim(worker="w1", agents=("Ada",), limit=0, lease_s=60))
    slow = SlowWorkers(bus)
    presence = WorkerPresence(slow)
    first, second = (asyncio.create_task(presence.ensure_fresh()) for _ in range(2))
    while not slow.asked:
        await asyncio.sleep(0)

    first.cancel()
    await asyncio.wait([first])
    slow.gate.set()
    await second

    assert (slow.asked, presence.known, "Ada" in presence) == (1, True, True)


@pytest.mark.parametrize(
    "error", [*ERRORS, MalformedRecord("stream:one", 1, "odd")], ids=lambda error: type(error).__name__
)
async def test_an_accepted_message_whose_outcome_cannot_be_read_is_in_progress(
    bus: MemoryBus, error: Exception
) -> None:
    class FailingReads(UnexpectedErrors):
        def answer(self, operation: Operation[Any]) -> Any:
            is_stream = isinstance(operation, Read) and operation.topic == "stream:one"
            return super().answer(operation) if is_stream else self.inner.call(operation)

    broken = FailingReads(bus, Read, ())
    async with asgi_client(broken) as client:
        await client.post("/send", json=message("first", id="m1"))
        body = {"session_id": "one", "user_input": "hello", "client_message_id": "k1", "wait": False}
        await client.post("/api/sdk/session/message", json=body)
        broken.errors.append(error)
        again = await client.post("/api/sdk/session/message", json=body)

    assert (again.status_code, again.json()["status"], broken.raised) == (202, "in_progress", 1)
    assert len(bus.read("chat:Ada")) == 2
