"""A deleted conversation or an erased user leaves no text in the storage: bytes are searched.

The storage is the SQLite file, a dump of Redis, or the files of tables, indexes and catalogs of a PostgreSQL database.
"""

from __future__ import annotations

import logging
import random
import sqlite3
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import psycopg
import pytest
import redis

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.log import Log, run_sync
from magent2.bus.operations import Append, Delete, Describe, Expire, Info, PutBlob, Scrub, SetHead, SweepBlobs, Trim
from magent2.bus.records import NewRecord, digest_of
from magent2.bus.redis_adapter import RedisBus
from magent2.bus.scrub import SCRUB_WITHIN_S
from magent2.connectors.interface import OutgoingMessage
from magent2.connectors.outbox import queue_records
from magent2.directory.channels import create_channel, find_channel, join_channel, new_member
from magent2.directory.connectors import Capabilities, find_connector, register_connector
from magent2.directory.erasure import erase_user
from magent2.directory.swarms import create_swarm
from magent2.directory.users import change_user, create_user, request_friendship
from magent2.mail.addressing import envelope_digest
from magent2.mail.dead_letters import list_dead_letters, retry_dead_letter
from magent2.models.address import conversation_topics
from magent2.models.envelope import MessageEnvelope
from magent2.runner.run_stream import Event
from magent2.sessions.files import CHUNK_BYTES, FileLimits, Upload, delete_file, store_inline
from magent2.sessions.store import create_session, delete_session, routing_id
from tests.support.api.sessions import answer_to, api, create, team_at_work, until_served
from tests.support.audit import whole_log
from tests.support.forked_processes import ROOT
from tests.support.postgres_server import ROLE, PostgresServer
from tests.support.processes import ProcessGroup
from tests.support.redis_server import RedisServer, skip_if_left_out
from tests.support.runners import SyncRunner
from tests.support.waiting import DEADLINE_S, eventually
from tests.support.worker_fixture import run_worker, until

SECRET = "xylophonequartz"  # a word that no file has by itself  # pragma: allowlist secret
KEPT = "marimbabasalt"  # the same in a conversation that stays
GRUMPY, ABSENT = "Grumpy", "Absent"
CONVERSATIONS = 40
GONE_DEADLINE_S = SCRUB_WITHIN_S + DEADLINE_S  # after a scrub that took long, the next one begins later
NEIGHBOURS = 400  # messages of others around it, so that pages of every engine are split and shared
INBOXES = ("chat:general", "chat:sales", f"chat:{GRUMPY}", f"chat:{ABSENT}", f"dead:{GRUMPY}", "control:general")


@dataclass(slots=True)
class Store:
    """A log, and the files it is kept in as an operator would have them written out."""

    bus: Engine
    url: str
    write_out: Callable[[], list[Path]]
    rewrite: Callable[[], object] = bool  # the append-only file

    def finds(self, *words: str) -> list[str]:
        """The words that some file holds."""
        contents = self._contents()
        return [word for word in words if any(word.encode() in content for content in contents)]

    def _contents(self) -> list[bytes]:
        while True:
            try:
                return [path.read_bytes() for path in self.write_out()]
            except FileNotFoundError:
                continue  # the server has replaced a file since they were listed


def of_sqlite(folder: Path) -> Iterator[Store]:
    url = f"sqlite:///{folder / 'log.db'}"
    bus = connect(url)
    yield Store(bus, url, lambda: sorted(filter(Path.is_file, folder.iterdir())))
    bus.close()


def of_redis(folder: Path) -> Iterator[Store]:
    """Strings are not compressed in the dump: a search must not miss what is there."""
    skip_if_left_out()
    keeping = ("--save", "", "--appendonly", "yes", "--rdbcompression", "no", "--auto-aof-rewrite-percentage", "0")
    server = RedisServer(folder, *keeping)
    server.start()
    bus = connect(server.url)

    def dump() -> list[Path]:
        with redis.Redis.from_url(server.url) as client:
            client.save()
        return [folder / "dump.rdb"]

    def rewrite() -> None:
        with redis.Redis.from_url(server.url) as client:
            client.bgrewriteaof()

    yield Store(bus, server.url, dump, rewrite)
    bus.close()
    server.stop()


def of_postgres(server: PostgresServer) -> Iterator[Store]:
    """A database of its own: a folder with the files of its tables, indexes and catalogs.

    Values are not compressed: a search must not miss what is there. The statistics of the tables are up to date, as
    autovacuum keeps them: they have samples of values.
    """
    name = f"erasure{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.admin_url, autocommit=True) as admin:
        admin.execute(f"CREATE DATABASE {name} OWNER {ROLE}")
        ((oid,),) = admin.execute("SELECT oid FROM pg_database WHERE datname = %s", (name,)).fetchall()
        url = server.url.removesuffix(ROLE) + name
        bus = connect(url)
        bus.call(Info())
        with psycopg.connect(f"{server.admin_url.removesuffix(ROLE)}{name}", autocommit=True) as superuser:
            for column in ("records.payload", "records.headers", "topics.head", "blobs.data"):
                table, _, field = column.partition(".")
                superuser.execute(f"ALTER TABLE magent2.{table} ALTER COLUMN {field} SET STORAGE EXTERNAL")

            def write_out() -> list[Path]:
                superuser.execute("ANALYZE")
                superuser.execute("CHECKPOINT")
                return sorted(filter(Path.is_file, (server.data / "base" / str(oid)).iterdir()))

            yield Store(bus, url, write_out)
        bus.close()
        admin.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("redis", marks=pytest.mark.redis),
        pytest.param("postgres", marks=pytest.mark.postgres),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "postgres":
        yield from of_postgres(request.getfixturevalue("postgres_server"))
        return
    folder = tmp_path / "store"
    folder.mkdir()
    yield from (of_sqlite if request.param == "sqlite" else of_redis)(folder)


@pytest.fixture(autouse=True)
def _frequent_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers write a snapshot before every run. A snapshot repeats the settings of its conversation."""
    monkeypatch.setattr("magent2.sessions.history.fold.SNAPSHOT_EVERY", 1)


def fail_aloud(envelope: Any) -> Iterable[Event]:
    raise ValueError(f"I do not like {envelope.content!r}")


async def live_a_life(client: httpx2.AsyncClient, bus: Engine, session: str, word: str) -> None:
    """A conversation that goes through all that can keep a text."""
    await create(client, session, instructions=f"Never say {word}.", overlay=f"Today: {word}")
    await client.patch(f"/api/sdk/session/{session}", json={"title": f"About {word}"})
    await answer_to(client, f"echo context {word}", session)  # a tool
    await client.post("/api/tools/execute", json={"session_id": session, "tool": "weather", "args": {"city": word}})
    asked = {"session_id": session, "last_user_text": f"I want to buy {word}"}
    routed = (await client.post("/api/orchestrate", json=asked)).json()
    assert routed["fallback"] == "no_model", "a supervisor was asked, in a conversation beside this one"
    await answer_to(client, "talk to sales", session)  # a handoff
    await answer_to(client, f"search for {word}", session)
    for agent in (GRUMPY, ABSENT):  # one fails, the other is not there: a dead letter, and mail that waits
        mail = {"conversation_id": session, "sender": "user:ann", "recipient": f"agent:{agent}", "content": word}
        assert (await client.post("/send", json={**mail, "id": f"{session}-{agent}"})).status_code == 200
    await until(lambda: any(word in str(letter.payload) for letter in whole_log(bus, f"dead:{GRUMPY}")))
    blob = await bus.acall(PutBlob(f"a file about {word}".encode()))
    attached = NewRecord(f"stream:{session}", {"event": "message", "text": word}, blobs=(blob,))
    await bus.acall(Append(records=(attached,)))


def neighbours(bus: Engine, word: str) -> None:
    """Short messages of many others, in the same inboxes."""
    for inbox in INBOXES[:4]:
        mail = (
            NewRecord(inbox, {"conversation_id": f"n{n}", "sender": "user:bob", "content": f"{word} {n}"}, id=f"n{n}")
            for n in range(NEIGHBOURS)
        )
        bus.call(Append(records=tuple(mail)))


def digests_of(bus: Engine, conversation: str) -> set[str]:
    """What stands for the bodies of a conversation's copies elsewhere."""
    records = [record for topic in INBOXES if topic.startswith("chat:") for record in whole_log(bus, topic)]
    own = [record.payload for record in records if record.payload.get("conversation_id") == conversation]
    return {envelope_digest(MessageEnvelope.model_validate(payload)) for payload in own}


async def after_a_life(store: Store) -> None:
    grumpy = SyncRunner(fail_aloud)
    async with team_at_work(store.bus), run_worker(store.bus, grumpy, GRUMPY), api(store.bus) as client:
        await until_served(client)
        await live_a_life(client, store.bus, "gone", SECRET)
        await live_a_life(client, store.bus, "stays", KEPT)
    snapshots = [record for record in whole_log(store.bus, "history:gone") if record.payload["kind"] == "snapshot"]
    assert any(SECRET in str(record.payload) for record in snapshots)
    neighbours(store.bus, KEPT)


async def test_a_deleted_conversation_leaves_no_text_and_no_digest(store: Store) -> None:
    await after_a_life(store)
    digests = digests_of(store.bus, "gone")
    assert len(digests) >= 5
    assert store.finds(SECRET, KEPT, *digests) == [SECRET, KEPT, *digests]

    async with api(store.bus) as client:
        assert (await client.delete("/api/sdk/session/gone")).status_code == 204

    await until(lambda: not store.finds(SECRET, *digests), GONE_DEADLINE_S)
    kept = digests_of(store.bus, "stays")
    assert store.finds(KEPT, *kept) == [KEPT, *kept]
    assert store.finds(routing_id("gone")), "ids stay, as tombstones"


async def test_a_retried_or_trimmed_dead_letter_leaves_no_text(store: Store) -> None:
    await after_a_life(store)
    (letter,) = [one for one in await list_dead_letters(Log(store.bus), GRUMPY) if SECRET in str(one.mail)]
    await retry_dead_letter(Log(store.bus), GRUMPY, letter.seq)
    await store.bus.acall(Trim("chat:general", keep=NEIGHBOURS - 150))

    async with api(store.bus) as client:
        assert (await client.delete("/api/sdk/session/gone")).status_code == 204

    await until(lambda: not store.finds(SECRET), GONE_DEADLINE_S)
    assert store.finds(KEPT)


async def test_a_conversation_deleted_during_its_run_leaves_no_text(store: Store) -> None:
    begun, ended = threading.Event(), threading.Event()

    def drip(envelope: Any) -> Iterator[Event]:
        yield {"event": "token", "text": SECRET, "index": 0}
        begun.set()
        ended.wait()
        yield {"event": "output", "text": f"all about {SECRET}"}

    async with run_worker(store.bus, SyncRunner(drip), GRUMPY) as service, api(store.bus) as client:
        mail = {"conversation_id": "gone", "sender": "user:ann", "recipient": f"agent:{GRUMPY}", "content": SECRET}
        await client.post("/send", json=mail)
        await until(begun.is_set)
        assert (await client.delete("/api/sdk/session/gone")).status_code == 204
        ended.set()
        await until(lambda: sum(service.outcomes.values()) == 1)

    await until(lambda: not store.finds(SECRET), GONE_DEADLINE_S)


def enter(bus: Engine, user: str, word: str) -> None:
    """A user of whom the directory knows much; in all of it is the word."""
    run_sync(bus, create_user, user, f"{user}_tag", {"agent": f"Agent {word}", "target": f"+47 {word}"})
    run_sync(bus, change_user, user, {"connector": "hook"})
    run_sync(bus, request_friendship, user, "house")
    run_sync(bus, create_swarm, f"{user}_desk", user, f"Desk {word}", is_open=True)
    run_sync(bus, join_channel, "lobby", new_member(word, user, f"Agent {word}"))
    said = {"message_id": f"m-{user}", "from": word, "text": f"I am {word}", "told": [], "created_at": "2026"}
    bus.call(Append(records=(NewRecord("channel:lobby", said),)))
    run_sync(bus, create_session, f"of-{user}", f"user:{user}")
    connector = run_sync(bus, find_connector, "hook").state
    message = OutgoingMessage(f"o-{user}", "hook", f"+47 {word}", f"of-{user}", "Ada", word, "2026")
    bus.call(Append(records=queue_records(message, connector)))


def entries_of(bus: Engine, user: str) -> set[str]:
    """What stands for the bodies of a user's own records."""
    logs = f"entity:user:{user}", f"entity:swarm:{user}_desk", "entity:channel:lobby", "channel:lobby"
    records = [record for topic in logs for record in whole_log(bus, topic)]
    word = SECRET if user == "gone" else KEPT
    return {digest_of(record.payload) for record in records if word in str(record.payload)}


def test_an_erased_user_leaves_no_entry_and_no_digest(store: Store) -> None:
    bus = store.bus
    run_sync(bus, create_user, "house", "house")
    run_sync(bus, register_connector, "hook", "console", Capabilities())
    run_sync(bus, create_channel, "lobby", new_member("house", "house", "Ada"))
    enter(bus, "gone", SECRET)
    enter(bus, "stays", KEPT)
    digests = entries_of(bus, "gone")
    assert len(digests) == 4
    assert store.finds(SECRET, KEPT, *digests) == [SECRET, KEPT, *digests]

    run_sync(bus, erase_user, "user:gone")

    eventually(lambda: not store.finds(SECRET, *digests), GONE_DEADLINE_S)
    assert store.finds(KEPT)
    assert [member.user for member in run_sync(bus, find_channel, "lobby").state.members] == ["house", "stays"]


async def put_file(log: Log, owner: str, word: str) -> str:
    """A text of several chunks that has the word at both ends."""
    upload = Upload(log, FileLimits(), owner, f"{word}.txt")
    await upload.write(f"{word} {'x' * 2 * CHUNK_BYTES} {word}".encode())
    return (await upload.finish()).file_id


async def cut_file(log: Log, owner: str, word: str) -> None:
    """An upload that is refused after two chunks."""
    upload = Upload(log, FileLimits(), owner, f"{word}.txt")
    await upload.write(f"{word} {'y' * 2 * CHUNK_BYTES}".encode())
    await upload.abort()


def test_files_that_are_deleted_erased_or_refused_leave_no_byte(store: Store) -> None:
    bus = store.bus
    gone = [f"{SECRET}{which}" for which in ("erased", "deleted", "inline")]
    run_sync(bus, put_file, "user:gone", gone[0])
    deleted = run_sync(bus, put_file, "user:stays", gone[1])
    run_sync(bus, create_session, "c1", "user:stays")
    run_sync(bus, store_inline, FileLimits(), "user:stays", "c1", gone[2].encode(), f"{gone[2]}.txt")
    run_sync(bus, put_file, "user:stays", KEPT)
    assert store.finds(KEPT, *gone) == [KEPT, *gone]

    run_sync(bus, erase_user, "user:gone")
    run_sync(bus, delete_file, deleted)
    run_sync(bus, delete_session, "c1")
    run_sync(bus, cut_file, "user:stays", f"{SECRET}refused")

    eventually(lambda: not store.finds(*gone, f"{SECRET}refused"), GONE_DEADLINE_S)
    assert store.finds(KEPT)
    assert bus.call(SweepBlobs(0, dry_run=True)) == 0


def word_of(n: int) -> str:
    return f"{SECRET}{n:04}"


def append_by_chance(bus: Engine, rng: random.Random, n: int) -> None:
    """A text of some length in some of the topics where a conversation may leave one, and in its head."""
    text = word_of(n) + " " * rng.choice((0, 20, 200, 900, 2500, 9000)) + word_of(n)
    payload = {"conversation_id": f"c{n}", "sender": "user:ann", "content": text}
    topics = rng.sample([*conversation_topics(f"c{n}"), "chat:Ada", "dead:Ada", "chat:Bob"], rng.randint(1, 4))
    head = SetHead(f"stream:c{n}", {"last_text": word_of(n) * rng.randint(1, 30)})
    bus.call(Append(records=tuple(NewRecord(topic, payload) for topic in topics), heads=(head,)))


def test_deleted_text_that_was_moved_within_the_file_is_erased(store: Store, rng: random.Random) -> None:
    """Pages that were split and streams that lost entries keep old bytes, unless they are overwritten."""
    alive, deleted = list(range(CONVERSATIONS)), []
    for step in range(1, 15 * CONVERSATIONS):
        append_by_chance(store.bus, rng, rng.choice(alive))
        if step % 25 == 0:
            deleted.append(alive.pop(rng.randrange(len(alive))))
            store.bus.call(Delete(conversation_topics(f"c{deleted[-1]}"), f"c{deleted[-1]}"))
        if step % 100 == 0:
            store.bus.call(Trim("chat:Bob", keep=rng.randint(10, 80)))

    eventually(lambda: not store.finds(*map(word_of, deleted)), GONE_DEADLINE_S)
    assert store.finds(*map(word_of, alive))


@pytest.mark.redis
@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_rewriting_the_append_only_file_removes_deleted_text(store: Store, tmp_path: Path) -> None:
    aof = Store(store.bus, store.url, lambda: sorted((tmp_path / "store" / "appendonlydir").iterdir()))
    record = {"conversation_id": "gone", "sender": "user:ann", "content": SECRET}
    other = {**record, "conversation_id": "stays", "content": KEPT}
    store.bus.call(Append(records=tuple(NewRecord("chat:Ada", payload) for payload in (record, other))))

    store.bus.call(Delete(conversation_topics("gone"), "gone"))
    eventually(lambda: store.bus.call(Scrub()))  # not while the scrub that the deletion has asked for is running
    assert not store.finds(SECRET)
    # It is a journal of what was done. While the disk is slow to sync, the server writes to it up to two seconds later.
    eventually(lambda: aof.finds(SECRET, KEPT) == [SECRET, KEPT])
    store.rewrite()

    eventually(lambda: not aof.finds(SECRET))
    assert aof.finds(KEPT) == [KEPT]


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_removing_old_segments_of_the_write_ahead_log_removes_deleted_text(
    store: Store, postgres_server: PostgresServer
) -> None:
    word = f"{SECRET}{uuid.uuid4().hex}"  # the log of the server has what earlier tests have written
    wal = Store(store.bus, store.url, lambda: sorted(filter(Path.is_file, (postgres_server.data / "pg_wal").iterdir())))
    store.bus.call(Append(records=(NewRecord("stream:gone", {"content": word}),)))

    store.bus.call(Delete(conversation_topics("gone"), "gone"))
    eventually(lambda: store.bus.call(Scrub()))
    assert not store.finds(word)
    assert wal.finds(word)
    with psycopg.connect(postgres_server.admin_url, autocommit=True) as superuser:
        for statement in docs_block("ALTER SYSTEM SET wal_recycle").split(";")[:-1]:
            superuser.execute(statement)

        eventually(lambda: not wal.finds(word))
        superuser.execute("ALTER SYSTEM RESET wal_recycle")


def docs_block(start: str) -> str:
    """The block of docs/operating.md that begins with this text."""
    return start + (ROOT / "docs" / "operating.md").read_text().partition(f"\n{start}")[2].partition("```")[0]


# --- scrubs that serve several deletions


def fill_inbox(bus: Engine, conversations: Iterable[str], neighbours: int) -> None:
    """Mail of these conversations, each with its word, among that of others."""
    for start in range(0, neighbours, 500):
        others = [{"conversation_id": f"n{n}", "content": KEPT} for n in range(start, min(start + 500, neighbours))]
        bus.call(Append(records=tuple(NewRecord("chat:Ada", payload) for payload in others)))
    for name in conversations:
        mail = {"conversation_id": name, "content": f"{SECRET} of {name}"}
        bus.call(Append(records=(NewRecord("chat:Ada", mail), NewRecord(f"stream:{name}", mail))))


def delete_all(bus: Engine, conversations: Iterable[str]) -> None:
    for name in conversations:
        bus.call(Delete(conversation_topics(name), name))


CONVERSATION_NAMES = tuple(f"c{n}" for n in range(12))


def test_one_scrub_serves_several_deletions(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    fill_inbox(store.bus, CONVERSATION_NAMES, NEIGHBOURS)

    with caplog.at_level(logging.INFO, "magent2.bus"):
        delete_all(store.bus, CONVERSATION_NAMES)
        eventually(lambda: not store.finds(SECRET), GONE_DEADLINE_S)
        scrubs = eventually(lambda: [line for line in caplog.messages if line == "removed deleted content"])

    assert len(scrubs) < len(CONVERSATION_NAMES) / 2
    assert store.finds(KEPT)


def scrubs_asked_for(url: str) -> int:
    """The number of deletions since the last scrub that ask for one."""
    if url.startswith("sqlite"):
        with sqlite3.connect(url.removeprefix("sqlite:///")) as log:
            found = log.execute("SELECT value FROM meta WHERE key = 'scrub'").fetchone()
        return 0 if found is None else int(found[0].split()[0])
    with psycopg.connect(url) as server:
        ((requests,),) = server.execute("SELECT requests FROM magent2.scrub").fetchall()
    return int(requests)


@pytest.mark.parametrize(
    "store", ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True
)  # on Redis a scrub copies only the inboxes that need it
def test_retention_asks_for_no_scrub_and_the_next_one_serves_it_too(store: Store) -> None:
    fill_inbox(store.bus, ("lazy", "asked"), NEIGHBOURS)
    old = NewRecord("stream:old", {"text": f"{SECRET} of old"})  # without mail: that would be in use
    store.bus.call(Append(records=(old,), heads=(SetHead("stream:old", {"owner": "user:ann"}),)))
    eventually(lambda: store.bus.call(Expire("old", idle_s=0.0)))
    store.bus.call(Delete(conversation_topics("lazy"), "lazy", scrub=False))
    assert scrubs_asked_for(store.url) == 0

    delete_all(store.bus, ("asked",))

    eventually(lambda: not store.finds(SECRET), GONE_DEADLINE_S)
    assert store.finds(KEPT)


@pytest.mark.redis
@pytest.mark.parametrize("store", ["redis"], indirect=True)
def test_a_deletion_does_not_depend_on_the_size_of_the_inbox(store: Store) -> None:
    def calls() -> int:
        with redis.Redis.from_url(store.url) as client:
            return int(client.info("commandstats")["cmdstat_fcall"]["calls"])

    assert isinstance(store.bus, RedisBus)
    store.bus._scrubber.close()  # on a slow machine its thread would call functions while these are counted
    needed = []
    for size in (10, 3000):
        fill_inbox(store.bus, [f"c{size}"], size)
        before = calls()
        delete_all(store.bus, [f"c{size}"])
        needed.append(calls() - before)

    assert needed[0] == needed[1]


def test_a_process_that_dies_after_a_deletion_leaves_the_scrub_to_the_next_one(
    store: Store, process_group: ProcessGroup
) -> None:
    fill_inbox(store.bus, CONVERSATION_NAMES, NEIGHBOURS)
    store.bus.close()
    child = process_group.spawn("tests.integration.children.deleter", url=store.url, conversations=CONVERSATION_NAMES)
    child.next_report()
    child.kill()

    following = connect(store.url)

    def is_gone() -> bool:
        following.call(Describe(("chat:Ada",)))
        return not store.finds(SECRET)

    eventually(is_gone, GONE_DEADLINE_S)
    assert store.finds(KEPT)
    following.close()


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_running_process_scrubs_at_its_next_write_what_another_one_has_deleted(
    store: Store, process_group: ProcessGroup
) -> None:
    fill_inbox(store.bus, CONVERSATION_NAMES, NEIGHBOURS)
    child = process_group.spawn("tests.integration.children.deleter", url=store.url, conversations=CONVERSATION_NAMES)
    child.next_report()
    child.kill()

    store.bus.call(Append(records=(NewRecord("stream:other", {}),)))

    eventually(lambda: not store.finds(SECRET), GONE_DEADLINE_S)


def test_closing_a_log_scrubs_it_at_once(store: Store) -> None:
    fill_inbox(store.bus, CONVERSATION_NAMES, NEIGHBOURS)
    other = connect(store.url)
    delete_all(other, CONVERSATION_NAMES)

    other.close()

    assert not store.finds(SECRET)


@pytest.mark.parametrize("store", ["sqlite"], indirect=True)
def test_a_scrub_that_a_reader_blocks_is_finished_after_the_reader(store: Store) -> None:
    fill_inbox(store.bus, CONVERSATION_NAMES, NEIGHBOURS)
    reader = sqlite3.connect(store.url.removeprefix("sqlite:///"), isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM records").fetchone()
    delete_all(store.bus, CONVERSATION_NAMES)

    assert not store.bus.call(Scrub())
    assert store.finds(SECRET)
    reader.execute("ROLLBACK")
    reader.close()

    assert store.bus.call(Scrub())
    assert not store.finds(SECRET)


# --- what prevents a scrub on PostgreSQL


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
@pytest.mark.parametrize("reads", ["SELECT count(*) FROM magent2.records", "SELECT 1"], ids=["the log", "nothing"])
def test_a_scrub_is_not_done_while_a_transaction_may_see_the_text(store: Store, reads: str) -> None:
    """The transaction keeps a lock of the table, or only a snapshot: then VACUUM FULL copies the deleted rows."""
    fill_inbox(store.bus, CONVERSATION_NAMES, NEIGHBOURS)
    with psycopg.connect(store.url) as reader:
        reader.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        reader.execute(reads)
        delete_all(store.bus, CONVERSATION_NAMES)

        assert not store.bus.call(Scrub())
        assert store.finds(SECRET)
        assert store.bus.call(Append(records=(NewRecord("stream:other", {}),))).seqs == (1,)

    assert eventually(
        lambda: store.bus.call(Scrub())
    )  # not while the scrub that the deletions have asked for is running
    assert not store.finds(SECRET)


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_large_tables_are_rewritten_only_when_asked_for(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("magent2.bus.postgres_engine.maintenance.SCRUB_MAX_BYTES", 1)
    fill_inbox(store.bus, CONVERSATION_NAMES, NEIGHBOURS)
    delete_all(store.bus, CONVERSATION_NAMES)

    assert not store.bus.call(Scrub())
    assert not store.bus.call(Scrub())
    assert store.finds(SECRET)
    assert len([line for line in caplog.messages if "erase --wait" in line]) == 1

    assert eventually(lambda: store.bus.call(Scrub(any_size=True)))
    assert not store.finds(SECRET)


@pytest.mark.postgres
@pytest.mark.parametrize("store", ["postgres"], indirect=True)
def test_the_statistics_of_the_server_hold_no_text(store: Store) -> None:
    """ANALYZE stores samples of the values of a column, in a catalog that no scrub rewrites."""
    fill_inbox(store.bus, [f"c{n}" for n in range(50)], 0)
    head = SetHead("stream:c0", {"title": SECRET})
    store.bus.call(Append(records=(NewRecord("stream:c0", {}, headers={"note": SECRET}),), heads=(head,)))
    for n in range(20):
        store.bus.call(PutBlob(f"{SECRET} {n}".encode()))
    assert store.finds(SECRET)

    store.bus.call(SweepBlobs(0.0))
    delete_all(store.bus, [f"c{n}" for n in range(50)])

    assert eventually(lambda: store.bus.call(Scrub()))
    assert not store.finds(SECRET)
