"""The library of Redis Functions: loading, several releases and prefixes on one server, ACL rights, full servers."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from magent2.bus.operations import (
    Append,
    Claim,
    Delete,
    Describe,
    Erase,
    Expire,
    Info,
    Lanes,
    Operation,
    OwnedAppend,
    PutBlob,
    Read,
    Scrub,
    SetHead,
    Settle,
    Trim,
)
from magent2.bus.records import NewRecord
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.redis_engine import exchanges
from magent2.bus.redis_engine.errors import NEEDED_RIGHTS
from magent2.bus.redis_engine.exchanges import SCRUB_PAGE
from magent2.bus.redis_engine.functions import (
    LIBRARIES_MAX,
    LIBRARY_PREFIX,
    READ_ONLY,
    FunctionLibrary,
    current_library,
)
from magent2.errors import NoPermission, StorageFull, UnsupportedServer
from tests.support.audit import assert_clean, sequence_findings, whole_log
from tests.support.audited_lane import mail_to, settle_append, start_append
from tests.support.command_line import CommandLine
from tests.support.redis_server import RedisServer, skip_if_left_out

pytestmark = pytest.mark.redis

TOPIC = "stream:one"
AGENT, TRAIL = "Ada", "audit:lanes"
USER, PASSWORD = "limited", "open-sesame"  # pragma: allowlist secret
LIBRARY = current_library()


class OtherRelease(RedisBus):
    """A bus of a release with other Lua source."""

    library = FunctionLibrary.build(
        LIBRARY.source.partition("\n")[2].replace(f"local LIBRARY = '{LIBRARY.name}'\n", "") + "-- changed\n"
    )

    def _begin(self) -> None:
        self._keyspace = dataclasses.replace(self._keyspace, library=self.library)
        self._server = dataclasses.replace(self._server, keyspace=self._keyspace)
        super()._begin()


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis(port=redis_server.port) as client:
        client.function_flush("SYNC")
        yield client


@pytest.fixture
def prefix() -> str:
    return uuid.uuid4().hex[:12]


@pytest.fixture
def bus(redis_server: RedisServer, prefix: str) -> Iterator[RedisBus]:
    bus = RedisBus(redis_server.url, prefix=prefix)
    yield bus
    bus.close()


def put(n: int = 1) -> Append:
    return Append(records=(NewRecord(TOPIC, {"n": n}, f"id-{n}"),))


def libraries(client: redis.Redis) -> set[str]:
    found: Any = client.function_list()
    return {library[1].decode() for library in found}


# --- loading


async def test_functions_that_the_server_lost_are_loaded_again_unseen(client: redis.Redis, bus: RedisBus) -> None:
    await bus.acall(put(1))
    bus.call(put(2))

    client.function_flush("SYNC")
    bus.call(put(3))
    client.function_flush("SYNC")
    await asyncio.gather(*(bus.acall(put(n)) for n in range(4, 20)))

    assert [record.payload["n"] for record in whole_log(bus, TOPIC)[:3]] == [1, 2, 3]
    assert len(whole_log(bus, TOPIC)) == 19
    await bus.aclose()


async def test_losing_the_functions_repeatedly_loses_and_duplicates_nothing(client: redis.Redis, bus: RedisBus) -> None:
    lanes = [f"lane-{n % 10}" for n in range(100)]
    await bus.acall(mail_to(AGENT, lanes))
    flushing, done = asyncio.Event(), [0]  # operations that have ended

    async def flush() -> None:
        # Once per operation that has ended: on a busy machine, loading the library may take longer than a fixed pause.
        flushed = -1
        while not flushing.is_set():
            if done[0] != flushed:
                flushed = done[0]
                await asyncio.to_thread(client.function_flush, "SYNC")
            await asyncio.sleep(0.001)

    async def run(operation: OwnedAppend | Settle) -> None:
        await bus.acall(operation)
        done[0] += 1

    def put_all() -> None:
        for n in range(100):
            bus.call(put(n))
            done[0] += 1

    async def work() -> None:
        settled = 0
        while settled < len(lanes):
            claims = await bus.acall(Claim(worker="w1", agents=(AGENT,), limit=4, lease_s=60.0))
            done[0] += 1
            await asyncio.gather(*(run(start_append(TRAIL, lane)) for lane in claims.lanes))
            await asyncio.gather(*(run(settle_append(TRAIL, lane, 2)) for lane in claims.lanes))
            settled += len(claims.lanes)

    flusher = asyncio.create_task(flush())
    await work()
    await asyncio.to_thread(put_all)
    flushing.set()
    await flusher

    trail, records = whole_log(bus, TRAIL), whole_log(bus, TOPIC)
    assert_clean(sequence_findings(trail) + sequence_findings(records))
    assert (len(trail), len(records)) == (2 * len(lanes), 100)
    await bus.aclose()


def test_a_new_server_in_place_of_the_old_one_gets_the_library(tmp_path: Path, prefix: str) -> None:
    skip_if_left_out()
    server = RedisServer(tmp_path, "--save", "", "--appendonly", "no")
    server.start()
    bus = RedisBus(server.url, prefix=prefix)
    bus.call(put(1))

    server.stop()
    server.start()

    (seq,) = bus.call(put(2)).seqs
    assert seq > 2  # the server has lost its records, and no number is used again
    bus.close()
    server.stop()


def test_the_flags_on_the_server_are_those_that_the_engine_relies_on(client: redis.Redis, bus: RedisBus) -> None:
    bus.call(put())

    found: Any = client.function_list(library=LIBRARY.name)
    functions = [dict(zip(function[::2], function[1::2], strict=True)) for function in found[0][5]]
    flags = {function[b"name"].decode().removeprefix(f"{LIBRARY.name}_"): function[b"flags"] for function in functions}

    assert {name for name, found in flags.items() if b"no-writes" in found} == READ_ONLY
    assert {name for name, found in flags.items() if b"allow-oom" in found} == {
        *("trim", "compact", "erase", "delete", "erase_copies", "expire", "scrub_begin", "scrub_end", "sweep_blobs"),
        "epoch",
    }


# --- lost replies, and processes that are late


@pytest.fixture
def lossy_bus(bus: RedisBus, monkeypatch: pytest.MonkeyPatch) -> RedisBus:
    """A bus that sends every command twice, as after the loss of the first reply."""
    send_once = bus._pool._send_once
    monkeypatch.setattr(bus._pool, "_send_once", lambda packed: (send_once(packed), send_once(packed))[1])
    return bus


def test_a_scrub_completes_when_replies_are_lost(client: redis.Redis, lossy_bus: RedisBus, prefix: str) -> None:
    bus = lossy_bus
    bus.call(Append(records=tuple(NewRecord(TOPIC, {"n": n}) for n in range(3 * SCRUB_PAGE))))
    bus.call(Erase(TOPIC, (1,)))

    assert bus.call(Scrub())

    assert len(whole_log(bus, TOPIC)) == 3 * SCRUB_PAGE
    assert not client.exists(f"{prefix}:scrubber", f"{prefix}:stale")


def test_an_expired_conversation_leaves_no_copies_when_replies_are_lost(lossy_bus: RedisBus) -> None:
    copy = NewRecord("dead:Ada", {"conversation_id": "one"})
    lossy_bus.call(Append(records=(NewRecord(TOPIC, {}), copy)))

    assert lossy_bus.call(Expire("one", idle_s=0.0))

    assert [record.erased for record in whole_log(lossy_bus, "dead:Ada")] == [True]
    assert not lossy_bus.call(Expire("one", idle_s=0.0))


def test_a_process_that_was_late_does_not_end_the_scrub_of_another(
    client: redis.Redis, bus: RedisBus, prefix: str
) -> None:
    def function(name: str, *arguments: str) -> object:
        epoch: Any = client.hget(f"{prefix}:meta", "epoch")
        return client.fcall(f"{LIBRARY.name}_{name}", 0, prefix, epoch, *arguments)

    def lease_ends() -> None:
        client.delete(f"{prefix}:scrubber")

    bus.call(Append(records=tuple(NewRecord(TOPIC, {"n": n}) for n in range(3))))
    function("erase", TOPIC, "0", "1")
    assert function("scrub_begin", "late") == 1
    lease_ends()
    assert bus.call(Scrub())
    function("erase", TOPIC, "0", "2")
    assert function("scrub_begin", "died") == 1
    lease_ends()

    assert function("scrub", TOPIC, "late", "0", "100", "1") is None
    assert function("scrub_end", "late", "1") == 0

    assert client.hget(f"{prefix}:scrub", "n") == b"1", "the second deletion still needs its scrub"


# --- several releases and prefixes on one server


async def test_two_releases_work_on_one_log_side_by_side(
    redis_server: RedisServer, client: redis.Redis, bus: RedisBus, prefix: str
) -> None:
    other = OtherRelease(redis_server.url, prefix=prefix)

    seqs = [(bus.call(put(n)).seqs, other.call(put(n + 1)).seqs) for n in range(0, 20, 2)]
    await asyncio.gather(*(each.acall(put(n)) for n in range(20, 40) for each in (bus, other)))

    assert seqs == [((n + 1,), (n + 2,)) for n in range(0, 20, 2)]
    assert len(whole_log(other, TOPIC)) == 40
    assert libraries(client) == {LIBRARY.name, OtherRelease.library.name}
    await bus.aclose()
    await other.aclose()


def test_a_release_goes_on_when_another_deletes_its_library(
    redis_server: RedisServer, client: redis.Redis, bus: RedisBus, prefix: str
) -> None:
    other = OtherRelease(redis_server.url, prefix=prefix)
    bus.call(put(1))
    other.call(put(2))

    client.function_delete(LIBRARY.name)

    assert bus.call(put(3)).seqs == (3,)
    assert other.call(put(4)).seqs == (4,)
    other.close()


def test_prefixes_share_one_library_and_no_records(redis_server: RedisServer, client: redis.Redis, prefix: str) -> None:
    buses = [RedisBus(redis_server.url, prefix=f"{prefix}-{name}") for name in "abc"]

    for n, bus in enumerate(buses, 1):
        for _ in range(n):
            bus.call(Append(records=(NewRecord(TOPIC, {}),)))

    assert [bus.call(Describe((TOPIC,)))[0].last for bus in buses] == [1, 2, 3]
    assert libraries(client) == {LIBRARY.name}
    for bus in buses:
        bus.close()


def test_libraries_of_old_releases_are_deleted_when_they_are_too_many(client: redis.Redis, bus: RedisBus) -> None:
    for n in range(LIBRARIES_MAX):
        client.function_load(library_source(f"{LIBRARY_PREFIX}{n:016x}"))
    client.function_load(library_source(f"{LIBRARY_PREFIX}tools_of_a_user"))

    bus.call(put())

    assert libraries(client) == {LIBRARY.name, f"{LIBRARY_PREFIX}tools_of_a_user"}


def test_few_libraries_of_other_releases_stay(client: redis.Redis, bus: RedisBus) -> None:
    client.function_load(library_source(f"{LIBRARY_PREFIX}{1:016x}"))

    bus.call(put())

    assert libraries(client) == {LIBRARY.name, f"{LIBRARY_PREFIX}{1:016x}"}


def library_source(name: str) -> str:
    return f"#!lua name={name}\nredis.register_function('{name}_f', function() return 1 end)"


def test_a_claim_during_a_deletion_leaves_no_lane_with_erased_mail(
    bus: RedisBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deletion takes several calls. Here the process dies after the first, and a scrub makes the others."""
    bus.call(mail_to("A", ["c1"]))

    def nothing(_keyspace: object, _conversation: object) -> Iterator[object]:
        yield from ()

    with monkeypatch.context() as dying:
        dying.setattr(exchanges, "_erase_copies", nothing)
        bus.call(Delete(("stream:c1",), conversation="c1"))
    claimed = bus.call(Claim(worker="w1", agents=("A",), limit=1, lease_s=60.0))
    scrubbed = bus.call(Scrub())

    assert (claimed.lanes, scrubbed) == ((), True)
    assert bus.call(Lanes("A")) == ()
    bus.call(mail_to("A", ["c2"]))
    (later,) = bus.call(Claim(worker="w1", agents=("A",), limit=1, lease_s=60.0)).lanes
    assert later.owner.conversation == "c2"


# --- ACL rights


@pytest.fixture
def limited(redis_server: RedisServer, client: redis.Redis, prefix: str) -> Iterator[Callable[..., RedisBus]]:
    """Buses of a user with the needed rights, changed by some ACL rules."""
    buses: list[RedisBus] = []

    def bus(*rules: str) -> RedisBus:
        needed = [f"~{prefix}:*", f"&{prefix}:*", *NEEDED_RIGHTS.split()]
        acl: Any = client.execute_command  # untyped
        acl("ACL", "SETUSER", USER, "reset", "on", f">{PASSWORD}", *needed, *rules)
        buses.append(RedisBus(user_url(redis_server), prefix=prefix))
        return buses[-1]

    yield bus
    for each in buses:
        each.close()
    client.acl_deluser(USER)


def user_url(server: RedisServer) -> str:
    return f"redis://{USER}:{PASSWORD}@127.0.0.1:{server.port}/0"


async def test_the_rights_that_the_error_names_are_enough(limited: Callable[..., RedisBus]) -> None:
    bus = limited()
    whole: tuple[Operation[Any], ...] = (
        Append(records=(NewRecord(TOPIC, {"n": 1}),), heads=(SetHead(TOPIC, {"title": "One"}),)),
        PutBlob(b"content"),
        mail_to(AGENT, ["one"]),
        Claim(worker="w1", agents=(AGENT,), limit=1, lease_s=60.0),
        Read(TOPIC, 0),
        Trim(TOPIC, keep=0),
        Delete((TOPIC,), "one"),
    )

    for operation in whole:
        bus.call(operation)
    await bus.acall(mail_to(AGENT, ["two"]))
    with bus.watch([f"chat:{AGENT}"]) as watch:
        while not await watch.changed(5.0):
            pass

    assert bus.call(Info()).engine == "redis"
    await bus.aclose()


@pytest.mark.parametrize("right", ["fcall", "fcall_ro", "function|load"])
def test_a_missing_right_to_functions_is_named_at_first_contact(limited: Callable[..., RedisBus], right: str) -> None:
    bus = limited(f"-{right}")

    with pytest.raises(NoPermission, match=rf"'{right.replace('|', '.')}'.*\+fcall \+fcall_ro \+function\|load"):
        bus.call(Info())


async def test_a_missing_right_is_named_on_an_event_loop(limited: Callable[..., RedisBus]) -> None:
    bus = limited("-fcall")

    with pytest.raises(NoPermission, match=r"'fcall'.*ACL SETUSER"):
        await bus.acall(put())
    await bus.aclose()


def test_a_command_that_a_function_may_not_run_is_named(limited: Callable[..., RedisBus]) -> None:
    bus = limited("-xadd")

    with pytest.raises(NoPermission, match=r"\+@write"):
        bus.call(put())


def test_keys_outside_the_rights_are_named(limited: Callable[..., RedisBus]) -> None:
    bus = limited("resetkeys", "~other:*")

    with pytest.raises(NoPermission, match="~<prefix>"):
        bus.call(put())


def test_without_the_right_to_delete_old_libraries_they_stay(
    limited: Callable[..., RedisBus], client: redis.Redis
) -> None:
    for n in range(LIBRARIES_MAX):
        client.function_load(library_source(f"{LIBRARY_PREFIX}{n:016x}"))

    limited("-function|delete").call(put())

    assert len(libraries(client)) == LIBRARIES_MAX + 1


def test_doctor_names_the_missing_right(
    limited: Callable[..., RedisBus], redis_server: RedisServer, prefix: str, tmp_path: Path
) -> None:
    limited("-function|load")

    with CommandLine(tmp_path) as magent2:
        url = f"{user_url(redis_server)}?prefix={prefix}"
        done = magent2.run("doctor", "--bus", url, "--url", "http://127.0.0.1:1")

    shown = "\n".join(done.lines)
    assert "function|load" in shown
    assert "ACL SETUSER" in shown
    assert PASSWORD not in shown


# --- servers that refuse


def test_a_server_whose_functions_are_switched_off_is_refused(tmp_path: Path) -> None:
    skip_if_left_out()
    server = RedisServer(tmp_path, "--save", "", "--rename-command", "FCALL_RO", "")
    server.start()
    bus = RedisBus(server.url)

    with pytest.raises(UnsupportedServer, match="Redis Functions"):
        bus.call(put())
    bus.close()
    server.stop()


def test_a_full_redis_can_be_read_and_emptied(tmp_path: Path) -> None:
    skip_if_left_out()
    server = RedisServer(tmp_path, "--save", "")
    server.start()
    bus = RedisBus(server.url)
    bus.call(put(1))
    bus.call(Append(records=(NewRecord("stream:two", {}, "two"),)))
    with redis.Redis(port=server.port) as client:
        client.config_set("maxmemory", "1")

    with pytest.raises(StorageFull):
        bus.call(put(2))
    assert len(bus.call(Read(TOPIC, 0)).records) == 1
    assert bus.call(Trim(TOPIC, keep=0)).floor == 1
    with suppress(StorageFull):  # only the final clean-up needs memory
        bus.call(Delete(("stream:two",)))

    assert bus.call(Describe((TOPIC, "stream:two")))[1].deleted
    bus.close()
    server.stop()
