"""Many operations at once on few topics and lanes: the PostgreSQL engine takes its locks in one order."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import count
from urllib.parse import quote

import psycopg
import pytest

from magent2.bus.interface import Engine
from magent2.bus.operations import (
    Append,
    Claim,
    Delete,
    Erase,
    Expire,
    HeadIs,
    LastSeqIs,
    Later,
    Leave,
    OwnedAppend,
    PutBlob,
    Renew,
    SetHead,
    Settle,
    SweepBlobs,
    Topics,
    Trim,
)
from magent2.bus.postgres import PostgresBus
from magent2.bus.records import ClaimedLane, NewRecord
from magent2.errors import BlobMissing, ConditionFailed, CounterGap, Fenced, TopicDeleted
from magent2.models.address import conversation_topics
from tests.support.audit import assert_clean, sequence_findings, whole_log
from tests.support.postgres_server import PostgresServer, Schemas

pytestmark = pytest.mark.postgres

THREADS = 8
SHORT_S, SOAK_S = 3.0, 120.0
CONVERSATIONS = 6  # at a time; a deleted one is replaced
AGENTS = ("Ada", "Bo", "Cy")
PRINCIPALS = ("ann", "ben", "cat", "dan")
BLOBS = tuple(f"blob {number}".encode() for number in range(3))
LEASE_S = 0.02  # shorter than most work, so that claims find expired workers
DEADLOCK_TIMEOUT_MS = 20  # after which the server looks for a deadlock
REFUSALS = (BlobMissing, ConditionFailed, CounterGap, Fenced, TopicDeleted)


class Workload:
    """Random operations, which several threads run at the same time. Each thread has an engine of its own."""

    def __init__(self, seed: int) -> None:
        self.happened: Counter[str] = Counter()
        self._seed = seed
        self._numbers = count(1)
        self._conversations = [self._new_conversation() for _ in range(CONVERSATIONS)]
        self._lock = threading.Lock()

    def _new_conversation(self) -> str:
        return f"c{next(self._numbers)}"

    def run(self, engine: Engine, thread: int, end: float) -> None:
        actor = Actor(engine, f"worker-{thread}", random.Random(f"{self._seed} {thread}"), self)
        steps: list[Callable[[], None]] = [actor.post, actor.post, actor.claim, actor.claim, actor.work, actor.work]
        steps += [actor.leave, actor.create, actor.compare, actor.trim, actor.erase, actor.delete, actor.expire]
        steps += [actor.use_blobs]
        while time.monotonic() < end:
            step = actor.rng.choice(steps)
            try:
                step()
                outcome = step.__name__
            except REFUSALS as refusal:
                outcome = type(refusal).__name__
            with self._lock:
                self.happened[outcome] += 1

    def conversations(self) -> list[str]:
        return list(self._conversations)

    def replace(self, conversation: str) -> None:
        with self._lock:
            if conversation in self._conversations:
                self._conversations[self._conversations.index(conversation)] = self._new_conversation()

    def new_topic(self) -> str:
        """A name that is new, or that another thread uses for the first time at this moment."""
        return f"note:{next(self._numbers) // THREADS}"


class Actor:
    """One thread's part of the workload."""

    def __init__(self, engine: Engine, worker: str, rng: random.Random, workload: Workload) -> None:
        self.engine = engine
        self.rng = rng
        self._worker = worker
        self._workload = workload
        self._held: list[ClaimedLane] = []

    def _some(self, low: int = 1) -> list[str]:
        conversations = self._workload.conversations()
        return self.rng.sample(conversations, self.rng.randint(low, len(conversations)))

    def _records(
        self, conversations: list[str], kinds: tuple[str, ...], blobs: tuple[str, ...] = ()
    ) -> list[NewRecord]:
        topics = [(f"{kind}:{name}", name) for name in conversations for kind in kinds]
        records = [NewRecord(topic, {"conversation_id": name}, blobs=blobs) for topic, name in topics]
        self.rng.shuffle(records)
        return records

    def post(self) -> None:
        """Mail to several agents, some of it with the owners of its conversations."""
        chosen = self._some()
        inboxes = tuple(f"{self.rng.choice(('chat', 'control'))}:{agent}" for agent in AGENTS)
        records = self._records(chosen, ("stream", "history"))
        records += [NewRecord(self.rng.choice(inboxes), {"conversation_id": name}) for name in chosen]
        self.rng.shuffle(records)
        heads = [SetHead(f"stream:{name}", {"owner": self.rng.choice(PRINCIPALS)}) for name in chosen[:2]]
        self.engine.call(Append(records=tuple(records), heads=tuple(heads)))

    def claim(self) -> None:
        agents = tuple(self.rng.sample(AGENTS, self.rng.randint(1, len(AGENTS))))
        limit = self.rng.randint(0, 4)
        claim = Claim(worker=self._worker, agents=agents, limit=limit, lease_s=LEASE_S, share=self.rng.choice((0.5, 1)))
        self._held += self.engine.call(claim).lanes

    def work(self) -> None:
        if not self._held:
            self.engine.call(Renew(self._worker, LEASE_S))
            return
        lane = self._held.pop(self.rng.randrange(len(self._held)))
        records = tuple(self._records([lane.owner.conversation, *self._some()], ("stream", "history")))
        if self.rng.random() < 0.3:
            self.engine.call(OwnedAppend(owner=lane.owner, n=1, records=records))
        if self.rng.random() < 0.7:
            self.engine.call(Settle(owner=lane.owner, mail=(lane.mail[0].ref,), records=records))
        else:
            self.engine.call(Later(owner=lane.owner, delay_s=self.rng.choice((0.0, 0.01, None)), records=records))

    def leave(self) -> None:
        self._held.clear()
        self.engine.call(Leave(self._worker))

    def create(self) -> None:
        topics = [self._workload.new_topic() for _ in range(3)] + [f"stream:{name}" for name in self._some()]
        self.rng.shuffle(topics)
        records = tuple(NewRecord(topic, {"n": number}) for number, topic in enumerate(topics))
        self.engine.call(Append(records=records))

    def compare(self) -> None:
        """An append that only succeeds if topics do not exist yet, with most of its topics in conditions."""
        names = [f"{self.rng.choice(('stream', 'history'))}:{name}" for name in self._some()]
        missing = [f"missing:{self.rng.randrange(5)}" for _ in range(3)]
        conditions = [LastSeqIs(name, 0) for name in (*names[1:], *missing)] + [HeadIs(names[0], "owner", None)]
        self.rng.shuffle(conditions)
        self.engine.call(Append(records=(NewRecord(names[0], {}),), conditions=tuple(conditions)))

    def trim(self) -> None:
        topics = [f"chat:{agent}" for agent in AGENTS] + [f"stream:{name}" for name in self._some()]
        self.engine.call(Trim(self.rng.choice(topics), keep=self.rng.randint(0, 5)))

    def erase(self) -> None:
        self.engine.call(Erase(f"chat:{self.rng.choice(AGENTS)}", tuple(self.rng.sample(range(1, 200), 5))))

    def delete(self) -> None:
        (name,) = self._some()[:1]
        self._workload.replace(name)
        self.engine.call(Delete(conversation_topics(name), conversation=name))

    def expire(self) -> None:
        (name,) = self._some()[:1]
        if self.engine.call(Expire(name, 0.0)):
            self._workload.replace(name)

    def use_blobs(self) -> None:
        blobs = tuple(self.engine.call(PutBlob(data)) for data in self.rng.sample(BLOBS, 2))
        records = self._records(self._some(), ("stream", "chat:Ada", "history"), blobs)
        self.engine.call(Append(records=tuple(records)))
        self.engine.call(SweepBlobs(0.0))


def deadlocks(server: PostgresServer) -> int:
    """How many deadlocks the server has found since its start."""
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_force_next_flush()")
        rows = connection.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        (found,) = rows.fetchone() or (0,)
        return int(found)


def run_at_once(server: PostgresServer, schemas: Schemas, rng: random.Random, seconds: float) -> None:
    before = deadlocks(server)
    # As superuser, because only that one may change how soon the server looks for deadlocks.
    url = f"{server.admin_url}?options={quote(f'-c deadlock_timeout={DEADLOCK_TIMEOUT_MS}')}"
    prefix = schemas.new_name()
    buses = [PostgresBus(url, prefix=prefix) for _ in range(THREADS)]
    workload = Workload(rng.randrange(2**32))
    end = time.monotonic() + seconds
    with ThreadPoolExecutor(THREADS) as executor:
        runs = [executor.submit(workload.run, bus, thread, end) for thread, bus in enumerate(buses)]
    for bus in buses:
        bus.close()
    for run in runs:
        run.result()
    print(f"{sum(workload.happened.values())} operations: {dict(workload.happened)}")
    assert deadlocks(server) - before == 0
    with closing(PostgresBus(url, prefix=prefix)) as bus:
        assert_clean(topic_findings(bus))


def topic_findings(engine: Engine) -> list[str]:
    findings = []
    before: tuple[int, str] | None = None
    while True:
        page = engine.call(Topics(before=before))
        for info in page.topics:
            records = whole_log(engine, info.topic)
            findings += [f"{info.topic}: {finding}" for finding in sequence_findings(records, info.floor)]
            if len(records) != info.last - info.floor:
                findings.append(f"{info.topic}: {len(records)} records from {info.floor} to {info.last}")
        before = page.next
        if before is None:
            return findings


def test_operations_on_the_same_topics_and_lanes_never_deadlock(
    postgres_server: PostgresServer, postgres_schemas: Schemas, rng: random.Random
) -> None:
    run_at_once(postgres_server, postgres_schemas, rng, SHORT_S)


@pytest.mark.soak
def test_operations_on_the_same_topics_and_lanes_never_deadlock_for_long(
    postgres_server: PostgresServer, postgres_schemas: Schemas, rng: random.Random
) -> None:
    run_at_once(postgres_server, postgres_schemas, rng, SOAK_S)
