from __future__ import annotations

import httpx2

from magent2.bus.log import Log
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Claim
from magent2.mail.dead_letters import bury
from magent2.mail.registration import register_agent
from magent2.models.address import SWEEPER
from tests.support.gateway import message


async def bury_one(bus: MemoryBus, client: httpx2.AsyncClient, text: str = "hard", agent: str = "Ada") -> None:
    await register_agent(Log(bus), agent)
    sent = await client.post("/send", json=message(text, f"c-{text}", recipient=f"agent:{agent}", id=f"m-{text}"))
    assert sent.status_code == 200
    (lane,) = bus.call(Claim(worker="w1", agents=(agent,), limit=1, lease_s=60)).lanes
    bus.call(bury(lane.owner, lane.mail[0], "it was too hard", 3))


async def test_agents_are_those_that_enlisted_and_those_that_are_served(
    bus: MemoryBus, client: httpx2.AsyncClient
) -> None:
    await register_agent(Log(bus), "Idle")
    await client.post("/send", json=message())
    bus.call(Claim(worker="w1", agents=("Ada",), limit=1, lease_s=60))
    await client.post("/send", json=message("more"))
    await client.post("/send", json=message("other", "two"))
    bus.call(Claim(worker="w1", agents=("Ada",), limit=0, lease_s=60))

    ada, idle = (await client.get("/api/workers")).json()["agents"]

    assert (ada["name"], ada["alive"], ada["workers"]) == ("Ada", True, ["w1"])
    assert (ada["lanes"], ada["pending"]) == ({"ready": 1, "held": 1, "later": 0, "parked": 0}, 3)
    assert (idle["name"], idle["alive"], idle["workers"], idle["pending"]) == ("Idle", False, [], 0)


async def test_the_sweeper_of_a_worker_is_neither_an_agent_nor_a_worker(
    bus: MemoryBus, client: httpx2.AsyncClient
) -> None:
    await register_agent(Log(bus), SWEEPER)
    for worker, agent in (("w1", "Ada"), ("sweeper-w1", SWEEPER)):
        bus.call(Claim(worker=worker, agents=(agent,), limit=0, lease_s=60))

    agents = (await client.get("/api/workers")).json()["agents"]
    metrics = (await client.get("/metrics")).text

    assert [agent["name"] for agent in agents] == ["Ada"]
    assert "magent2_workers 1.0" in metrics


async def test_a_dead_letter_is_shown_of_one_agent_and_of_all(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    await bury_one(bus, client)

    of_all = (await client.get("/api/dead")).json()
    of_ada = (await client.get("/api/dead", params={"agent": "Ada"})).json()

    (letter,) = of_all["letters"]
    assert letter.pop("buried_at").endswith("Z")
    assert letter == {
        "agent": "Ada",
        "seq": 1,
        "conversation_id": "c-hard",
        "reason": "it was too hard",
        "attempts": 3,
        "envelope_id": "m-hard",
        "text": "hard",
    }
    assert len(of_ada["letters"]) == 1
    assert of_ada["next"] is None
    assert (await client.get("/api/dead", params={"agent": "Bob"})).json()["letters"] == []


async def test_a_letter_is_retried_once(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    await bury_one(bus, client)

    first = await client.post("/api/dead/Ada/1/retry")
    again = await client.post("/api/dead/Ada/1/retry")

    assert (first.status_code, first.json()) == (200, {"status": "ok"})
    assert (again.status_code, again.json()["code"]) == (404, "unknown_letter")
    assert [record.payload["content"] for record in bus.read("chat:Ada")] == ["hard", "hard"]
    assert (await client.get("/api/dead")).json()["letters"] == []


async def test_a_letter_is_dropped(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    await bury_one(bus, client)

    assert (await client.delete("/api/dead/Ada/1")).status_code == 204
    assert (await client.delete("/api/dead/Ada/1")).status_code == 404
    assert (await client.get("/api/dead")).json()["letters"] == []


async def test_a_page_of_letters_goes_on_although_some_were_dropped(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    for number in range(101):
        await bury_one(bus, client, str(number))
    await client.delete("/api/dead/Ada/5")

    first = (await client.get("/api/dead", params={"agent": "Ada"})).json()
    rest = (await client.get("/api/dead", params={"agent": "Ada", "after": first["next"]})).json()

    assert (len(first["letters"]), first["next"]) == (99, 100)
    assert [letter["seq"] for letter in rest["letters"]] == [101]
    assert (await client.get("/api/dead", params={"after": 1})).status_code == 422


async def test_many_letters_are_retried_or_dropped_by_conditions(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    for text, agent in (("one", "Ada"), ("two", "Ada"), ("three", "Bob")):
        await bury_one(bus, client, text, agent)

    shown = await client.post("/api/dead", json={"action": "retry", "agent": "Ada", "dry_run": True})
    retried = await client.post("/api/dead", json={"action": "retry", "agent": "Ada", "reason": "too hard"})
    dropped = await client.post("/api/dead", json={"action": "drop", "since": "2020-01-01T00:00:00Z"})

    assert shown.json() == retried.json()
    assert [letter["text"] for letter in retried.json()["letters"]] == ["one", "two"]
    assert [letter["text"] for letter in dropped.json()["letters"]] == ["three"]
    assert (dropped.json()["refused"], dropped.json()["next"]) == ([], None)
    assert [record.payload["content"] for record in bus.read("chat:Ada")] == ["one", "two", "one", "two"]


async def test_every_letter_is_meant_only_if_that_is_said(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    await bury_one(bus, client)

    refused = await client.post("/api/dead", json={"action": "drop"})

    assert (refused.status_code, refused.json()["code"]) == (422, "bad_envelope")
    assert "set 'all' to true" in refused.json()["detail"]
    assert len((await client.get("/api/dead")).json()["letters"]) == 1
    assert len((await client.post("/api/dead", json={"action": "drop", "all": True})).json()["letters"]) == 1
