"""A disk that is full, as a client of the gateway sees it."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import httpx2
import pytest

from magent2.bus.sqlite import SqliteBus
from tests.support.audit import whole_log
from tests.support.gateway import message, serve_gateway

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
        page = (await house.client.get("/api/sdk/session/one/events", params={"format": "record"})).json()
        assert len(page["events"]) == taken
    bus.close()

    disk["max"] = PAGES_MAX * 10
    bus = SqliteBus(tmp_path / "log.db")
    async with serve_gateway(bus) as house:
        again = await house.client.post("/send", json=message(TEXT, id=f"m{taken + 1}"))
        assert again.status_code == 200
    for topic in ("chat:one", "chat:Ada"):
        assert [record.id for record in whole_log(bus, topic)] == [f"m{n}" for n in range(1, taken + 2)]
    assert len(whole_log(bus, "stream:one")) == taken + 1
    bus.close()


async def fill(client: httpx2.AsyncClient) -> tuple[int, httpx2.Response]:
    """Send until there is no room; how many were taken, and the first refusal."""
    for number in range(1, SENDS_MAX):
        answer = await client.post("/send", json=message(TEXT, id=f"m{number}"))
        if answer.status_code != 200:
            return number - 1, answer
    pytest.fail("the disk never was full")
