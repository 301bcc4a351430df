"""PostgreSQL is killed with SIGKILL under load, and restarted or replaced by its standby.

The servers sync every commit (`fsync`). Where their files are makes no difference: what a killed server has written to
files survives in the cache of the operating system, on a disk as in memory. What it held in its own memory is lost.
"""

from __future__ import annotations

import random
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Self

import pytest

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.operations import Append, Claim, OwnedAppend, Settle
from magent2.bus.postgres import PostgresBus
from magent2.bus.records import ClaimedLane, NewRecord, Record
from magent2.errors import Fenced, TransientError
from tests.support.audit import STARTED, append_findings, assert_clean, series_findings, whole_log
from tests.support.numbered_appends import append_id, numbered_append
from tests.support.postgres_server import PostgresPair, PostgresServer
from tests.support.processes import ProcessGroup
from tests.support.service_pool import ServicePool
from tests.support.waiting import eventually
from tests.support.worker_pool import WorkerPool

pytestmark = pytest.mark.postgres

FOLLOWER = "tests.integration.children.follower"
TOPICS = ("stream:one", "history:one", "chat:one")
DEATHS, DEATHS_SOAK = 2, 20
WRITERS = 8  # threads that share a bus, so their appends are committed in groups
PAUSE_S = 0.005  # between two appends of a thread, so that workers get their turn on a small machine
APPENDS_BEFORE_DEATH_MAX = 200
APPENDS_AFTER_DEATH = 50
RUNS_AFTER_DEATH = 10
LANES, WORKERS = 20, 2
MESSAGES, CONVERSATIONS = 30, 10  # of worker services, per death
DEADLINE_S = 120.0  # for progress after a death, on a busy machine


class NumberedWriters:
    """Threads that append numbered records to all topics, and try again until each append is acknowledged."""

    def __init__(self, url: str) -> None:
        self.acknowledged: dict[str, int] = {}  # id → seq
        self.happened: Counter[str] = Counter()
        self.errors: list[BaseException] = []
        self._bus = connect(url)
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        names = [f"w{number}" for number in range(WRITERS)]
        self._threads = [threading.Thread(target=self._write, args=(name,)) for name in names]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()
        self._bus.close()

    def _write(self, name: str) -> None:
        try:
            n = 0
            while not self._stopping.is_set():
                n += 1
                self._append(name, n)
                self._stopping.wait(PAUSE_S)
        except BaseException as error:  # shown by the test
            self.errors.append(error)
            raise

    def _append(self, name: str, n: int) -> None:
        operation = numbered_append(TOPICS, name, n)
        while True:
            try:
                result = self._bus.call(operation)
            except TransientError:
                with self._lock:
                    self.happened["unavailable"] += 1
                continue
            with self._lock:
                self.acknowledged[append_id(name, n)] = result.seqs[0]
                self.happened["replies lost"] += result.repeat
            return

    def wait_for(self, more: int) -> None:
        target = len(self.acknowledged) + more
        eventually(lambda: len(self.acknowledged) >= target or self.errors, DEADLINE_S)
        assert not self.errors


def survive_deaths(
    url: str, process_group: ProcessGroup, rng: random.Random, kill_and_restore: Callable[[], None], deaths: int
) -> None:
    """Run writers, workers and a follower while the server dies, then audit all that they did."""
    with closing(connect(url)) as engine, NumberedWriters(url) as writers:
        follower = process_group.spawn(FOLLOWER, url=url, topic=TOPICS[0])
        shift = WorkerPool(url, engine, process_group, rng)
        for _ in range(WORKERS):
            shift.start_worker()
        shift.await_ready()
        assert follower.next_report() == {"ready": True}

        for _ in range(deaths):
            shift.post([f"lane-{lane}" for lane in range(LANES)])
            writers.wait_for(rng.randint(1, APPENDS_BEFORE_DEATH_MAX))
            kill_and_restore()
            writers.wait_for(APPENDS_AFTER_DEATH)
            shift.wait_for_runs(RUNS_AFTER_DEATH)
        writers.stop()
        shift.wait_for_the_rest()
        shift.drain_all()

        logs = {topic: whole_log(engine, topic) for topic in TOPICS}
        findings = append_findings(logs, writers.acknowledged)
        findings += [finding for records in logs.values() for finding in series_findings(records)]
        assert_clean(findings + shift.findings())
        records = logs[TOPICS[0]]
        assert {record.id: record.seq for record in records} == writers.acknowledged
        followed = [follower.next_report() for _ in records]
        assert followed == [{"seq": record.seq, "id": record.id} for record in records]
        print(
            f"{deaths} deaths, {len(records)} appends acknowledged, {dict(writers.happened)}, 0 lost, 0 doubled,"
            f" {shift.posted()} messages settled once, {takeovers(shift.trail)} takeovers, {shift.fenced()} fenced,"
            f" follower: {len(followed)} records without a gap"
        )


def takeovers(trail: list[Record]) -> int:
    return sum(record.payload["act"] == STARTED and record.payload["attempt"] > 1 for record in trail)


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """One for all tests; each has a log of its own."""
    with PostgresServer() as server:
        server.start()
        yield server


@pytest.fixture
def pair() -> Iterator[PostgresPair]:
    with PostgresPair() as pair:
        pair.start()
        yield pair


def survive_kills(server: PostgresServer, process_group: ProcessGroup, rng: random.Random, deaths: int) -> None:
    def kill_and_restore() -> None:
        server.kill()
        server.start()

    survive_deaths(f"{server.url}?prefix={uuid.uuid4().hex}", process_group, rng, kill_and_restore, deaths)


def test_a_killed_server_loses_and_doubles_nothing(
    server: PostgresServer, process_group: ProcessGroup, rng: random.Random
) -> None:
    survive_kills(server, process_group, rng, DEATHS)


@pytest.mark.soak
def test_a_server_that_is_killed_often_loses_and_doubles_nothing(
    server: PostgresServer, process_group: ProcessGroup, rng: random.Random
) -> None:
    survive_kills(server, process_group, rng, DEATHS_SOAK)


def test_a_promoted_standby_has_everything_once(
    pair: PostgresPair, process_group: ProcessGroup, rng: random.Random
) -> None:
    survive_deaths(pair.url, process_group, rng, pair.fail_over, 1)


@pytest.mark.soak
def test_standbys_that_are_promoted_in_turn_have_everything_once(
    pair: PostgresPair, process_group: ProcessGroup, rng: random.Random
) -> None:
    url = pair.url

    def kill_and_restore() -> None:
        pair.fail_over()
        pair.rejoin()

    survive_deaths(url, process_group, rng, kill_and_restore, DEATHS_SOAK)


@pytest.mark.soak
def test_worker_services_answer_every_message_once_while_servers_die(
    pair: PostgresPair, process_group: ProcessGroup, rng: random.Random
) -> None:
    url = pair.url
    with closing(connect(url)) as engine:
        pool = ServicePool(url, engine, process_group, rng)
        for _ in range(WORKERS):
            pool.start_worker()
        pool.await_ready()
        for death in range(DEATHS_SOAK):
            for number in range(MESSAGES):
                pool.post(f"message {death}-{number}", f"c{number % CONVERSATIONS}")
            pool.wait_for(rng.randint(1, MESSAGES // 2))
            if death % 2:
                pair.fail_over()
                pool.wait_for(1)
                pair.rejoin()
            else:
                pair.primary.kill()
                pair.primary.start()
        pool.wait_for(pool.posted())
        outcomes = pool.drain_all()
        assert_clean(pool.findings())
        print(f"{DEATHS_SOAK} deaths, {pool.posted()} messages, {pool.takeovers()} takeovers, {dict(outcomes)}")


# --- claims, which are not synced


def post(engine: Engine, *conversations: str) -> None:
    for conversation in conversations:
        engine.call(Append(records=(NewRecord("chat:Ada", {"conversation_id": conversation}),)))


def claim(engine: Engine, limit: int) -> tuple[ClaimedLane, ...]:
    return engine.call(Claim(worker="w1", agents=("Ada",), limit=limit, lease_s=60.0)).lanes


def answer(lane: ClaimedLane, n: int = 1) -> OwnedAppend:
    return OwnedAppend(owner=lane.owner, n=n, records=(NewRecord(f"stream:{lane.owner.conversation}", {"n": n}),))


def settle(lane: ClaimedLane) -> Settle:
    return Settle(owner=lane.owner, mail=(lane.mail[0].ref,), records=(NewRecord("stream:settled", {}),))


def number_of(lane: ClaimedLane) -> str:
    return lane.owner.token.rpartition("/")[2]


def test_the_owner_of_a_claim_that_was_lost_is_fenced_and_its_mail_is_claimed_again(server: PostgresServer) -> None:
    with closing(PostgresBus(server.url, prefix=uuid.uuid4().hex)) as bus:
        post(bus, "a", "b", "c")
        server.suspend_wal_writer()  # so a kill loses what was not synced
        lost = claim(bus, limit=2)

        server.kill()
        server.start()

        for operation in (answer(lost[0]), settle(lost[1])):
            with pytest.raises(Fenced):
                bus.call(operation)
        again = claim(bus, limit=3)
        assert [(lane.owner.conversation, lane.attempt) for lane in again] == [("a", 1), ("b", 1), ("c", 1)]
        # The server counts from the same number again. The nonce of the claim makes the tokens different.
        assert [number_of(lane) for lane in again[:2]] == [number_of(lane) for lane in lost]
        for lane in lost:
            for operation in (answer(lane), settle(lane)):
                with pytest.raises(Fenced):
                    bus.call(operation)
        for lane in again:
            bus.call(answer(lane))
            bus.call(settle(lane))
        assert [len(whole_log(bus, f"stream:{name}")) for name in ("a", "b", "c", "settled")] == [1, 1, 1, 3]


def test_a_claim_lasts_with_what_was_written_under_it(server: PostgresServer) -> None:
    with closing(PostgresBus(server.url, prefix=uuid.uuid4().hex)) as bus:
        post(bus, "a")
        server.suspend_wal_writer()  # so a kill loses what was not synced
        (lane,) = claim(bus, limit=1)
        bus.call(answer(lane))

        server.kill()
        server.start()

        assert bus.call(answer(lane, n=2)).seqs == (2,)
        bus.call(settle(lane))
        assert not claim(bus, limit=1)
