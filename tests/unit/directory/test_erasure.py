from __future__ import annotations

import asyncio

import pytest

from magent2.bus.log import Log, run_sync
from magent2.bus.memory import MemoryBus
from magent2.directory.erasure import SESSIONS_PAGE, erase_user
from magent2.directory.keys import list_keys
from magent2.sessions.store import create_session
from tests.support.api.sessions import everything
from tests.support.gateway import asgi_client, message
from tests.support.keys import ACCESS, ADMIN, create_key_holder
from tests.support.waiting import DEADLINE_S

ANN, BOB = "user:ann", "user:bob"


@pytest.fixture
def bus() -> MemoryBus:
    return MemoryBus()


async def test_keys_end_and_conversations_go_and_nothing_is_left_but_ids(bus: MemoryBus) -> None:
    ann, bob = await create_key_holder(bus, ANN), await create_key_holder(bus, BOB)
    async with asgi_client(bus, ACCESS) as client:
        for n in range(3):
            await client.post("/send", json=message(f"a secret {n}", f"a{n}"), headers=ann.headers)
        await client.post("/send", json=message("kept", "b0", sender=BOB), headers=bob.headers)

        erased = await erase_user(Log(bus), ANN)

        async with asyncio.timeout(DEADLINE_S):  # the gateway hears of it from the log
            while (await client.get("/api/sdk/sessions", headers=ann.headers)).status_code != 401:
                await asyncio.sleep(0)
        answers = [await client.get("/api/sdk/sessions", headers=who) for who in (bob.headers, ADMIN)]
        gone = await client.get("/api/sdk/session/a1", headers=ADMIN)

    assert (erased.keys, sorted(erased.conversations)) == ((ann.id,), ["a0", "a1", "a2"])
    assert [answer.status_code for answer in answers] == [200, 200]
    assert [one["session_id"] for one in answers[1].json()["sessions"]] == ["b0"]
    assert gone.status_code == 410
    left = await everything(bus)
    assert "a secret" not in left
    assert ANN not in left
    assert "kept" in left


def test_more_conversations_than_a_page_go_too(bus: MemoryBus) -> None:
    for n in range(SESSIONS_PAGE + 1):
        run_sync(bus, create_session, f"a{n}", ANN)
    run_sync(bus, create_session, "b0", BOB)

    assert len(run_sync(bus, erase_user, ANN).conversations) == SESSIONS_PAGE + 1
    assert run_sync(bus, erase_user, BOB).conversations == ("b0",)


def test_erasing_a_user_without_data_reports_nothing_erased(bus: MemoryBus) -> None:
    assert not run_sync(bus, erase_user, "user:nobody")
    assert run_sync(bus, list_keys) == []
