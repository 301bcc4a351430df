"""Faults of a Redis server, and the errors that the engine raises for them."""

from __future__ import annotations

import asyncio
import logging
import socket
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import redis

from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Claim, Describe, Erase, Info, Operation, Read
from magent2.bus.records import NewRecord
from magent2.bus.redis_adapter import RedisBus
from magent2.errors import (
    BusUnavailable,
    Magent2Error,
    MalformedRecord,
    StorageFull,
    StorageUnwritable,
    UnsupportedServer,
)
from tests.support.audit import append_findings, assert_clean, whole_log
from tests.support.fake_redis import fake_redis
from tests.support.numbered_appends import append_id, numbered_append
from tests.support.ports import quiet_port
from tests.support.redis_server import RedisServer, skip_if_left_out

pytestmark = pytest.mark.redis

SECRET = "open-sesame"  # pragma: allowlist secret
TOPIC = "stream:one"
TOPICS = ("stream:one", "history:one", "chat:one")
LARGE_CHARS = 50_000
MEMORY = "8mb"
STUCK_S = 60.0  # a bus that waits for a thread of the tools would wait for ever
APPENDS_MAX = 200  # far more than the memory holds

StartServer = Callable[..., RedisServer]
Run = Callable[[str, Operation[object]], object]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    """Servers with options of their own."""
    skip_if_left_out()
    servers: list[RedisServer] = []

    def start(*options: str) -> RedisServer:
        server = RedisServer(tmp_path, *options)
        servers.append(server)
        server.start()
        return server

    yield start
    for server in servers:
        server.stop()


def run_sync(url: str, operation: Operation[object]) -> object:
    bus = RedisBus(url)
    try:
        return bus.call(operation)
    finally:
        bus.close()


def run_async(url: str, operation: Operation[object]) -> object:
    async def run() -> object:
        bus = RedisBus(url)
        try:
            return await bus.acall(operation)
        finally:
            await bus.aclose()

    return asyncio.run(run())


@pytest.fixture(params=[run_sync, run_async], ids=["sync", "async"])
def run(request: pytest.FixtureRequest) -> Run:
    """One operation on a bus of its own, through either face."""
    chosen: Run = request.param
    return chosen


def put(n: int = 1) -> Append:
    return Append(records=(NewRecord(TOPIC, {"n": n}, f"id-{n}"),))


# --- reaching the server


def test_a_server_that_does_not_answer_is_named_without_the_password(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.socket() as taken, caplog.at_level(logging.DEBUG):
        taken.bind(("127.0.0.1", 0))  # but it does not listen, and no other program can
        port = taken.getsockname()[1]
        with pytest.raises(BusUnavailable) as caught:
            run(f"redis://:{SECRET}@127.0.0.1:{port}/0", put())

    assert "127.0.0.1" in str(caught.value)
    assert str(port) in str(caught.value)
    assert SECRET not in shown(caught.value) + caplog.text


def shown(error: BaseException | None) -> str:
    """An error with all that led to it."""
    text = ""
    while error is not None:
        text += repr(error)
        error = error.__cause__ or error.__context__
    return text


def test_a_bus_does_not_print_its_password() -> None:
    bus = RedisBus(f"redis://:{SECRET}@127.0.0.1:{quiet_port()}/0")

    assert SECRET not in repr(bus) + str(bus)
    bus.close()


def protected(start_server: StartServer) -> RedisServer:
    """A server with a password. It is set after the start, because the start is checked without one."""
    server = start_server("--save", "")
    with redis.Redis(port=server.port) as client:
        client.config_set("requirepass", SECRET)
    return server


def test_a_password_opens_the_server(start_server: StartServer, run: Run) -> None:
    server = protected(start_server)

    assert run(f"redis://:{SECRET}@127.0.0.1:{server.port}/0", put())


@pytest.mark.parametrize("credentials", ["", ":guess-one@", "ann:guess-one@"])
def test_a_wrong_password_is_named_without_being_shown(start_server: StartServer, run: Run, credentials: str) -> None:
    server = protected(start_server)

    with pytest.raises(StorageUnwritable, match="password") as caught:
        run(f"redis://{credentials}127.0.0.1:{server.port}/0", put())

    assert "guess-one" not in shown(caught.value)


def test_redis_can_be_reached_over_a_unix_socket(start_server: StartServer, run: Run) -> None:
    path = f"{tempfile.gettempdir()}/magent2-{uuid.uuid4().hex[:12]}.sock"  # tmp_path is too long for a socket
    start_server("--unixsocket", path, "--save", "")

    assert run(f"unix://{path}", put())


async def test_tools_that_occupy_the_default_executor_do_not_keep_the_bus_from_connecting(
    redis_server: RedisServer,
) -> None:
    loop, done = asyncio.get_running_loop(), threading.Event()
    loop.set_default_executor(ThreadPoolExecutor(1))
    tool = loop.run_in_executor(None, done.wait)
    bus = RedisBus(redis_server.url, prefix=uuid.uuid4().hex)

    try:
        async with asyncio.timeout(STUCK_S):
            await bus.acall(put(1))
            first = await anext(bus.follow(TOPIC, after=0))
            await bus.aclose()
    finally:
        done.set()
        await tool

    assert first.seq == 1


def test_a_database_number_is_honoured(start_server: StartServer, run: Run) -> None:
    server = start_server("--save", "")

    run(f"redis://127.0.0.1:{server.port}/3", put())

    with redis.Redis(port=server.port, db=3) as third, redis.Redis(port=server.port, db=0) as first:
        assert third.dbsize()
        assert not first.dbsize()


# --- servers that will not do


def test_a_server_that_is_too_old_is_refused(run: Run) -> None:
    with (
        fake_redis(redis_version="6.2.14", redis_mode="standalone") as url,
        pytest.raises(UnsupportedServer, match=r"6\.2\.14.*7"),
    ):
        run(url, put())


def test_a_cluster_is_refused(start_server: StartServer, run: Run) -> None:
    server = start_server("--cluster-enabled", "yes", "--cluster-port", str(quiet_port()), "--save", "")

    with pytest.raises(UnsupportedServer, match=r"[Cc]luster"):
        run(server.url, put())


def warnings_of(server: RedisServer) -> str:
    bus = RedisBus(server.url)
    try:
        return "\n".join(bus.call(Info()).warnings)
    finally:
        bus.close()


def test_a_server_that_forgets_at_restart_is_warned_about(start_server: StartServer) -> None:
    assert "appendonly" in warnings_of(start_server("--save", "", "--appendonly", "no"))


def test_a_server_that_evicts_is_warned_about(start_server: StartServer) -> None:
    server = start_server("--appendonly", "yes", "--maxmemory", "50mb", "--maxmemory-policy", "allkeys-lru")

    assert "noeviction" in warnings_of(server)


def test_a_server_with_safe_settings_is_not_warned_about(start_server: StartServer) -> None:
    assert warnings_of(start_server("--appendonly", "yes")) == ""


# --- a full server


def fill(bus: Engine) -> int:
    """Append to three topics until the server refuses; how many it took."""
    for n in range(1, APPENDS_MAX):
        try:
            bus.call(large_append(n))
        except StorageFull:
            return n - 1
    pytest.fail("the server never was full")


def large_append(n: int) -> Append:
    return numbered_append(TOPICS, "w", n, LARGE_CHARS)


def test_a_full_redis_makes_no_partial_append_and_continues_when_there_is_room(start_server: StartServer) -> None:
    server = start_server("--maxmemory", MEMORY, "--maxmemory-policy", "noeviction", "--save", "")
    bus = RedisBus(server.url)

    taken = fill(bus)

    logs = {topic: whole_log(bus, topic) for topic in TOPICS}
    assert_clean(append_findings(logs, [append_id("w", n) for n in range(1, taken + 1)]))
    assert [len(records) for records in logs.values()] == [taken] * 3
    with redis.Redis(port=server.port) as client:
        client.config_set("maxmemory", "0")
    assert bus.call(large_append(taken + 1)).seqs == (taken + 1,) * 3
    bus.close()


# --- what others do to the server


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex[:12]


@pytest.fixture
def bus(redis_server: RedisServer, prefix: str) -> Iterator[Engine]:
    engine = RedisBus(redis_server.url, prefix=prefix)
    yield engine
    engine.close()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_server.port) as client:
        yield client


FOREIGN: dict[str, dict[Any, Any]] = {
    "other fields": {"colour": "blue"},
    "not JSON": {"i": "x", "a": "1", "l": "", "p": "not JSON"},
    "no object": {"i": "x", "a": "1", "l": "", "p": "[1]"},
    "not UTF-8": {"i": b"\xff", "a": "1", "l": "", "p": b'{"n":"\xff"}'},
    "no number": {"i": "x", "a": "soon", "l": "", "p": "{}"},
}


@pytest.mark.parametrize("fields", FOREIGN.values(), ids=FOREIGN.keys())
def test_a_record_written_around_the_engine_is_named_and_can_be_erased(
    bus: Engine, client: redis.Redis, prefix: str, fields: dict[Any, Any]
) -> None:
    bus.call(put(1))
    client.xadd(f"{prefix}:t:{TOPIC}", fields, id="0-*")
    bus.call(put(3))

    with pytest.raises(MalformedRecord, match="erase") as caught:
        bus.call(Read(TOPIC, 1))
    assert caught.value.seq == 2
    assert [record.seq for record in bus.call(Read(TOPIC, 2)).records] == [3]
    assert bus.call(Erase(TOPIC, (2,))) == 1
    assert [(record.seq, record.erased) for record in whole_log(bus, TOPIC)] == [(1, False), (2, True), (3, False)]


def test_foreign_mail_can_be_claimed_and_buried(bus: Engine, client: redis.Redis, prefix: str) -> None:
    bus.call(Append(records=(NewRecord("chat:Ada", {"conversation_id": "one"}),)))
    client.xadd(f"{prefix}:t:chat:Ada", {"colour": "blue"}, id="0-*")

    lanes = bus.call(Claim(worker="w1", agents=("Ada",), limit=10, lease_s=60.0)).lanes

    mail = [record for lane in lanes for record in lane.mail]
    assert [(record.seq, bool(record.malformed)) for record in mail] == [(1, False), (2, True)]


def number_by_the_clock(client: redis.Redis, key: str) -> None:
    """What `XADD key * …` does, as another program would."""
    client.xadd(key, {"colour": "blue"})


def set_to_text(client: redis.Redis, key: str) -> None:
    client.set(key, "mine")


@pytest.mark.parametrize("spoil", [number_by_the_clock, set_to_text])
def test_a_topic_that_another_program_took_is_refused_and_nothing_is_half_written(
    bus: Engine, client: redis.Redis, prefix: str, spoil: Callable[[redis.Redis, str], None]
) -> None:
    spoil(client, f"{prefix}:t:{TOPICS[1]}")

    for topics in (TOPICS, TOPICS[1:2]):
        with pytest.raises(Magent2Error):
            bus.call(numbered_append(topics, "w", 1))

    assert [info.last for info in bus.call(Describe((TOPICS[0], TOPICS[2])))] == [0, 0]


# --- after the end


def test_a_closed_bus_raises_a_named_error(redis_server: RedisServer) -> None:
    bus = RedisBus(redis_server.url)
    bus.call(put())
    bus.close()
    bus.close()

    with pytest.raises(Magent2Error, match="closed"):
        bus.call(put())
    with pytest.raises(Magent2Error, match="closed"):
        asyncio.run(bus.acall(put()))
