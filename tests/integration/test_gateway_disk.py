"""A store that is full, as a client of the gateway and a load balancer see it."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import redis

from magent2.bus.redis_adapter import RedisBus
from magent2.bus.sqlite import SqliteBus
from tests.support.audit import whole_log
from tests.support.gateway import message, serve_gateway
from tests.support.redis_server import RedisServer, skip_if_left_out
from tests.support.small_disk import fill_disk, small_disk
from tests.support.waiting import DEADLINE_S, LOOK_AGAIN_S

DISK_SIZE = "4m"
PAGES_MAX = 120
SENDS_MAX = 1000
TEXT = "x" * 20_000


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """SQLite's own limit on pages takes the place of a disk; raising the number makes room again."""
    pages = {"max": PAGES_MAX}
    really_connect = sqlite3.connect

    def connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = really_connect(*arguments, **options)
        connection.execute(f"PRAGMA max_page_count={pages['max']}")
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect)
    return pages


async def test_a_full_disk_refuses_a_send_whole_and_takes_it_once_there_is_room(
    disk: dict[str, int], tmp_path: Path
) -> None:
    bus = SqliteBus(tmp_path / "log.db")
    async with serve_gateway(bus) as house:
        taken, refusal = await fill(house.client)

        assert (refusal.status_code, refusal.json()["code"]) == (507, "storage_full")
        assert refusal.headers["retry-after"] == "1"
        assert (await house.client.get("/health")).status_code == 200
        assert (await house.client.get("/ready")).status_code == 503
        page = (await house.client.get("/api/sdk/session/one/events", params={"format": "record"})).json()
        assert len(page["events"]) == taken
    bus.close()

    disk["max"] = PAGES_MAX * 10
    bus = SqliteBus(tmp_path / "log.db")
    async with serve_gateway(bus) as house:
        again = await house.client.post("/send", json=message(TEXT, id=f"m{taken + 1}"))
        assert again.status_code == 200
    for topic in ("chat:one", "chat:Ada"):
        assert [record.payload["id"] for record in whole_log(bus, topic)] == [f"m{n}" for n in range(1, taken + 2)]
    assert len(whole_log(bus, "stream:one")) == taken + 1
    bus.close()


async def fill(client: httpx2.AsyncClient) -> tuple[int, httpx2.Response]:
    """Send until there is no room; how many were taken, and the first refusal."""
    for number in range(1, SENDS_MAX):
        answer = await client.post("/send", json=message(TEXT, id=f"m{number}"))
        if answer.status_code != 200:
            return number - 1, answer
    pytest.fail("the disk never was full")


# --- readiness


@pytest.fixture
def disk_folder(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    with small_disk(folder, DISK_SIZE):
        yield folder


async def becomes_ready(client: httpx2.AsyncClient) -> None:
    end = time.monotonic() + DEADLINE_S
    while (found := await client.get("/ready")).status_code != 200:
        assert time.monotonic() < end, found.text
        await asyncio.sleep(LOOK_AGAIN_S)


async def test_a_gateway_on_a_full_disk_is_not_ready_before_it_has_refused_a_message(disk_folder: Path) -> None:
    bus = SqliteBus(disk_folder / "log.db")
    async with serve_gateway(bus) as house:
        assert (await house.client.post("/send", json=message("before", id="m1"))).status_code == 200
        fill_disk(disk_folder / "ballast")

        full = await house.client.get("/ready")
        assert (full.status_code, full.json()["code"]) == (503, "not_ready")
        assert "the bus takes no writes: no space left" in full.json()["detail"]
        assert (await house.client.post("/send", json=message("full", id="m2"))).status_code == 507

        (disk_folder / "ballast").unlink()
        await becomes_ready(house.client)
        assert (await house.client.post("/send", json=message("full", id="m2"))).status_code == 200
    bus.close()


@pytest.mark.redis
async def test_a_gateway_on_a_full_redis_is_not_ready(tmp_path: Path) -> None:
    skip_if_left_out()
    server = RedisServer(tmp_path, "--save", "", "--maxmemory-policy", "noeviction")
    server.start()
    bus = RedisBus(server.url)
    try:
        async with serve_gateway(bus) as house:
            with redis.Redis(port=server.port) as client:
                client.config_set("maxmemory", "1")
                full = await house.client.get("/ready")
                client.config_set("maxmemory", "0")

            assert (full.status_code, full.json()["code"]) == (503, "not_ready")
            assert "maxmemory" in full.json()["detail"]
            await becomes_ready(house.client)
    finally:
        await bus.aclose()
        server.stop()
