"""Keys at a gateway: what they open, and how soon they stop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

import httpx2
import pytest
from fastapi import FastAPI

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Operation
from magent2.errors import BusUnavailable
from magent2.gateway.access import keys as keys_module
from magent2.gateway.access.auth import Access
from magent2.gateway.access.keys import KeyCache
from magent2.gateway.app import create_app
from magent2.gateway.limits import GatewayLimits
from magent2.gateway.limits import rate_limits as ratelimit
from magent2.gateway.problems import Problem
from magent2.gateway.streaming.sse import StreamRequest
from magent2.token import TokenFile
from tests.support.gateway import app_client, asgi_client, message, parse_frames, streams_open
from tests.support.keys import ACCESS, ADMIN, KeyHolder, create_key_holder
from tests.support.worker_fixture import until

R = TypeVar("R")


@pytest.fixture
def app(bus: MemoryBus) -> FastAPI:
    return create_app(bus, access=ACCESS)


@pytest.fixture
async def client(app: FastAPI) -> AsyncIterator[httpx2.AsyncClient]:
    async with app_client(app) as client:
        yield client


async def status(client: httpx2.AsyncClient, who: KeyHolder, path: str = "/api/sdk/sessions") -> int:
    return (await client.get(path, headers=who.headers)).status_code


async def test_a_key_opens_what_is_for_people_and_an_admins_key_all(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    ann, boss = await create_key_holder(bus, "user:ann"), await create_key_holder(bus, "admin")

    for path in ("/api/workers", "/api/dead", "/metrics"):
        refused = await client.get(path, headers=ann.headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "admin_only"), path
        assert await status(client, boss, path) == 200
    assert await status(client, ann) == await status(client, boss) == 200


async def test_a_wrong_secret_a_wrong_id_and_a_wrong_scheme_open_nothing(
    bus: MemoryBus, client: httpx2.AsyncClient
) -> None:
    ann, bob = await create_key_holder(bus, "user:ann"), await create_key_holder(bus, "user:bob")
    assert await status(client, ann) == 200  # it is known now

    swapped = f"mk_{ann.id}_{bob.text.split('_', 2)[2]}"
    for given in (
        f"Bearer {swapped}",
        f"Bearer mk_000000000000_{ann.text.split('_', 2)[2]}",
        f"Bearer {ann.text}x",
        f"Bearer {ann.text[:-1]}",
        f"Basic {ann.text}",
        ann.text,
        "Bearer mk_",
    ):
        answer = await client.get("/api/sdk/sessions", headers={"authorization": given})
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized"), given


async def test_a_revoked_key_opens_nothing_from_then_on(bus: MemoryBus, client: httpx2.AsyncClient) -> None:
    known, unseen = await create_key_holder(bus, "user:ann"), await create_key_holder(bus, "user:ann")
    assert await status(client, known) == 200

    await known.revoke()
    await unseen.revoke()

    assert await status(client, unseen) == 401
    await _until_refused(client, known)


async def _until_refused(client: httpx2.AsyncClient, who: KeyHolder) -> None:
    while await status(client, who) != 401:  # the watch tells it at the next turn of the loop
        await asyncio.sleep(0)


async def test_a_revocation_ends_that_keys_streams_and_no_others(
    bus: MemoryBus, app: FastAPI, client: httpx2.AsyncClient
) -> None:
    ann, other = await create_key_holder(bus, "user:ann"), await create_key_holder(bus, "user:ann")
    following = asyncio.create_task(client.get("/stream/one", headers=ann.headers))
    staying = asyncio.create_task(client.get("/stream/one", params={"max_events": 1}, headers=other.headers))
    watching = asyncio.create_task(client.get("/stream/one", params={"max_events": 1}, headers=ADMIN))
    await streams_open(app, 3)

    await ann.revoke()

    ended = parse_frames((await following).text)
    assert [(event.kind, event.data["reason"]) for event in ended] == [("end", "revoked")]
    await client.post("/send", json=message(sender="user:ann"), headers=other.headers)
    assert [parse_frames((await one).text)[-1].data["reason"] for one in (staying, watching)] == ["max_events"] * 2


async def test_a_new_token_ends_the_streams_of_the_old_one_and_no_keys(bus: MemoryBus, tmp_path: Path) -> None:
    file = TokenFile.within(tmp_path)
    app = create_app(bus, access=Access.by_file(file, loopback=False), limits=GatewayLimits(heartbeat_s=0.15))
    ann = await create_key_holder(bus, "user:ann")
    async with app_client(app) as client:
        bearer = {"authorization": f"Bearer {file.read()}"}
        old = asyncio.create_task(client.get("/stream/one", headers=bearer))
        hers = asyncio.create_task(client.get("/stream/one", headers=ann.headers))
        await streams_open(app, 2)

        file.rotate()

        assert parse_frames((await old).text)[-1].data["reason"] == "revoked"
        assert not hers.done()
        await ann.revoke()
        assert parse_frames((await hers).text)[-1].data["reason"] == "revoked"


async def test_a_stream_that_begins_as_its_key_ends_is_refused(bus: MemoryBus, app: FastAPI) -> None:
    ann = await create_key_holder(bus, "user:ann")
    streams = app.state.services.streams
    identity = await streams.keys.find(ann.text)
    await ann.revoke()
    await until(lambda: streams.keys.has_ended(ann.id))

    with pytest.raises(Problem, match="token"):
        streams.enter(StreamRequest("one"), identity)
    assert streams.open == 0


async def test_one_principal_has_so_many_streams_and_no_more(bus: MemoryBus) -> None:
    app = create_app(bus, access=ACCESS, limits=GatewayLimits(streams_per_principal_max=2))
    ann, again, bob = (
        await create_key_holder(bus, "user:ann"),
        await create_key_holder(bus, "user:ann"),
        await create_key_holder(bus, "user:bob"),
    )
    async with app_client(app) as client:
        held = [asyncio.create_task(client.get("/stream/one", headers=who.headers)) for who in (ann, again)]
        await streams_open(app, 2)

        refused = await client.get("/stream/one", headers=ann.headers)
        others = asyncio.create_task(client.get("/stream/two", headers=bob.headers))
        await streams_open(app, 3)

        assert (refused.status_code, refused.json()["code"]) == (429, "too_many_streams")
        assert refused.headers["retry-after"]
        app.state.services.streams.drain()
        await asyncio.gather(*held, others)
    assert app.state.services.streams.open == 0
    assert not app.state.services.streams._counts._by_key
    assert not app.state.services.streams._by_key


class Counting(MemoryBus):
    """A bus that counts what it is asked, and may be away."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0
        self.away = False

    async def acall(self, operation: Operation[R]) -> R:
        self.asked += 1
        if self.away:
            raise BusUnavailable("away")
        return await super().acall(operation)


async def test_a_known_key_costs_no_look_at_the_log() -> None:
    bus = Counting()
    ring = KeyCache(bus, lambda _: 0, lambda _: False)
    ann = await create_key_holder(bus, "user:ann")
    assert await ring.find(ann.text) is not None
    before = bus.asked

    assert all(ring.known(ann.text) is not None for _ in range(100))

    assert bus.asked == before
    ring.close()
    await bus.aclose()


async def test_a_change_that_cannot_be_read_leaves_the_key_shut_until_it_can() -> None:
    bus = Counting()
    ended: list[str] = []

    def end_streams(key: str) -> int:
        ended.append(key)
        return 0

    ring = KeyCache(bus, end_streams, lambda _: False)
    ann = await create_key_holder(bus, "user:ann")
    await ring.find(ann.text)
    await until(lambda: ring.known(ann.text) is not None)

    await ann.revoke()
    bus.away = True
    await until(lambda: ring.known(ann.text) is None)
    with pytest.raises(BusUnavailable):
        await ring.find(ann.text)
    bus.away = False

    await until(lambda: ended == [ann.id])
    assert await ring.find(ann.text) is None
    ring.close()
    await bus.aclose()


async def test_a_revocation_whose_news_was_lost_is_found_by_the_sweep(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "FOLLOW_SWEEP_S", 0.01)
    ring = KeyCache(bus, lambda _: 0, lambda _: False)
    ann = await create_key_holder(bus, "user:ann")
    await ring.find(ann.text)
    await until(lambda: ring.known(ann.text) is not None)
    assert ring._watch is not None
    ring._watch.discard(f"entity:key:{ann.id}")

    await ann.revoke()

    await until(lambda: ring.has_ended(ann.id))
    ring.close()


async def test_keys_that_are_not_used_are_forgotten_but_not_while_they_stream(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys_module, "KNOWN_MAX", 3)
    people = [await create_key_holder(bus, "user:ann") for _ in range(6)]
    ring = KeyCache(bus, lambda _: 0, lambda key: key == people[0].id)

    for one in people:
        assert await ring.find(one.text) is not None

    assert [one.id in ring._known for one in people] == [True, False, False, False, True, True]
    assert await ring.find(people[1].text) is not None
    ring.close()


async def test_guesses_do_not_keep_the_log_busy_and_known_keys_are_not_held_up(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ratelimit, "MISSES_BURST", 3)
    monkeypatch.setattr(ratelimit, "MISSES_PER_S", 0.01)
    ann = await create_key_holder(bus, "user:ann")
    secret = ann.text.split("_", 2)[2]
    async with asgi_client(bus, ACCESS) as client:
        assert await status(client, ann) == 200
        codes = [
            (
                await client.get("/api/sdk/sessions", headers={"authorization": f"Bearer mk_{n:012x}_{secret}"})
            ).status_code
            for n in range(6)
        ]

        assert codes == [401] * 3 + [429] * 3
        assert await status(client, ann) == 200


async def test_a_ring_that_hears_no_more_trusts_nothing_that_it_knew(bus: MemoryBus) -> None:
    ring = KeyCache(bus, lambda _: 0, lambda _: False)
    ann = await create_key_holder(bus, "user:ann")
    await ring.find(ann.text)
    assert ring._task is not None
    ring._task.cancel()
    await asyncio.wait([ring._task])
    await ann.revoke()

    assert ring.known(ann.text) is None
    assert await ring.find(ann.text) is None
    ring.close()


class Slow(MemoryBus):
    """A bus whose answer to one look is held back."""

    def __init__(self) -> None:
        super().__init__()
        self.hold: asyncio.Event | None = None

    async def acall(self, operation: Operation[R]) -> R:
        hold, self.hold = self.hold, None
        answer = await super().acall(operation)
        if hold is not None:
            await hold.wait()
        return answer


async def test_a_look_from_before_the_revocation_does_not_undo_it() -> None:
    bus = Slow()
    ring = KeyCache(bus, lambda _: 0, lambda _: False)
    ann = await create_key_holder(bus, "user:ann")
    bus.hold = arrived = asyncio.Event()
    looking = asyncio.create_task(ring.find(ann.text))
    await until(lambda: bus.hold is None)

    await ann.revoke()
    await until(lambda: ring.has_ended(ann.id))
    arrived.set()

    assert await looking is None
    assert ring.known(ann.text) is None
    ring.close()
    await bus.aclose()
