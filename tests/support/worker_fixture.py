"""Mail for a worker under test, readers for its results, and a running worker."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import Claim
from magent2.bus.records import ClaimedLane, Record
from magent2.mail.delivery import SendOptions, deliver
from magent2.models.envelope import MessageEnvelope
from magent2.worker.runner_adapter import Runner
from magent2.worker.service import WorkerService
from tests.support.audit import whole_log
from tests.support.waiting import DEADLINE_S
from tests.support.waiting import until as until  # noqa: PLC0414  re-exported: many tests import it from here

AGENT = "Ada"
LEASE_S = 60.0  # longer than any test


def envelope(text: str, conversation: str = "one", **fields: Any) -> MessageEnvelope:
    given = {"conversation_id": conversation, "sender": "user:ann", "recipient": f"agent:{AGENT}", "content": text}
    return MessageEnvelope(**{**given, **fields})


def send(bus: Engine, text: str, conversation: str = "one", sending: SendOptions | None = None, **fields: Any) -> str:
    """Deliver a message to the agent; return the envelope's id."""
    return run_sync(bus, deliver, envelope(text, conversation, **fields), sending).envelope_id


def command(bus: Engine, text: str, conversation: str = "one", **fields: Any) -> str:
    return send(bus, text, conversation, type="control", **fields)


def claim_one(bus: Engine, worker: str = "w1", lease_s: float = LEASE_S) -> ClaimedLane:
    (lane,) = bus.call(Claim(worker=worker, agents=(AGENT,), limit=1, lease_s=lease_s)).lanes
    return lane


# --- results


def stream(bus: Engine, conversation: str = "one") -> list[Mapping[str, Any]]:
    return [record.payload for record in whole_log(bus, f"stream:{conversation}")]


def history(bus: Engine, conversation: str = "one") -> list[Mapping[str, Any]]:
    return [record.payload for record in whole_log(bus, f"history:{conversation}")]


def dead_letters(bus: Engine, agent: str = AGENT) -> list[Mapping[str, Any]]:
    return [record.payload for record in whole_log(bus, f"dead:{agent}")]


def kinds(events: list[Mapping[str, Any]]) -> list[str]:
    """The status, event or kind of each record."""
    return [str(event.get("status") or event.get("event") or event.get("kind")) for event in events]


def outputs(bus: Engine, conversation: str = "one") -> list[str]:
    return [event["text"] for event in stream(bus, conversation) if event["event"] == "output"]


def errors(bus: Engine, conversation: str = "one") -> list[Mapping[str, Any]]:
    return [event for event in stream(bus, conversation) if event["event"] == "error"]


def answered(record: Record) -> bool:
    return record.payload.get("event") == "output"


# --- a running worker


@asynccontextmanager
async def run_worker(bus: Engine, runner: Runner, agent: str = AGENT, **options: Any) -> AsyncIterator[WorkerService]:
    """Run a worker service and drain it at the end."""
    service = WorkerService(bus, {agent: runner}, **{"lease_s": LEASE_S, **options})
    task = asyncio.create_task(service.run())
    try:
        yield service
    finally:
        draining = asyncio.create_task(service.drain(0.0))
        await asyncio.wait([task], timeout=DEADLINE_S)
        draining.cancel()
        if task.done():
            task.result()
        else:
            task.cancel()
            pytest.fail("the worker did not drain in time")
