"""Which names `model` can have, with and without a live worker."""

from __future__ import annotations

import httpx2
import pytest

from magent2.bus.log import Log
from magent2.bus.memory import MemoryBus
from magent2.mail.registration import register_agent
from magent2.models.address import SCHEDULER


def background(model: str) -> dict[str, object]:
    return {"model": model, "input": "hello", "background": True}


async def test_an_agent_whose_worker_has_just_stopped_takes_messages(client: httpx2.AsyncClient) -> None:
    answer = await client.post("/v1/responses", json=background("Ada"))  # registered, but no worker is there

    assert (answer.status_code, answer.json()["status"]) == (200, "queued")
    assert (await client.get("/v1/models/Ada")).json()["id"] == "Ada"


@pytest.mark.parametrize("name", ["nobody", "a talk", SCHEDULER, "a" * 200, "no/such\nagent"])
async def test_other_names_are_unknown(client: httpx2.AsyncClient, bus: MemoryBus, name: str) -> None:
    await register_agent(Log(bus), SCHEDULER, {"hidden": True})
    await client.post("/api/sdk/session", json={"session_id": "a talk"})

    answer = await client.post("/v1/responses", json=background(name))

    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
