"""Steers at random moments of long runs whose workers are killed: each is handled once, with one receipt."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import READ_LIMIT_MAX, Lanes, Read
from magent2.sessions.steering import steer
from tests.support.audit import assert_clean, whole_log
from tests.support.audited_lane import call_with_retry
from tests.support.processes import Child, ProcessGroup
from tests.support.service_pool import QUIET_DEADLINE_S, ServicePool
from tests.support.steer_audit import steer_findings
from tests.support.waiting import eventually
from tests.support.worker_fixture import AGENT, dead_letters, envelope

CONVERSATIONS = ("c1", "c2", "c3")
WORKERS = 2
TURNS_MIN, TURNS_MAX = 2, 20
RUN_EVERY = 6  # steers
THINK_MAX_S = 0.02  # per turn
STEERS, KILLS = 30, 2
STEERS_SOAK, KILLS_SOAK = 200, 25


class SteeredPool(ServicePool):
    """Workers with runs of many turns, and a client that keeps steering them."""

    module = "tests.integration.children.steerable_service"

    def __init__(self, url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random) -> None:
        super().__init__(url, engine, process_group, rng)
        self.steers: dict[str, list[str]] = defaultdict(list)
        self._read: defaultdict[str, int] = defaultdict(int)
        self._answers = 0
        self.killed: list[Child] = []

    def begin(self, conversation: str) -> None:
        self.post(f"go {self._rng.randint(TURNS_MIN, TURNS_MAX)}", conversation)

    def steer(self, conversation: str) -> None:
        number = sum(map(len, self.steers.values()))
        said = envelope(f"steer {number}", conversation, recipient=f"chat:{conversation}")
        run_sync(self.engine, steer, said)
        self.steers[conversation].append(said.id)

    def answers(self) -> int:
        """How many answers of models are recorded by now."""
        for conversation in CONVERSATIONS:
            topic = f"history:{conversation}"
            for record in call_with_retry(self.engine, Read(topic, self._read[topic], READ_LIMIT_MAX)).records:
                self._read[topic] = record.seq
                self._answers += record.payload["kind"] == "answer"
        return self._answers

    def get_on(self, answers: int) -> None:
        """Until so many more answers are recorded, or all is quiet."""
        target = self.answers() + answers
        eventually(lambda: self.answers() >= target or self.is_quiet(), QUIET_DEADLINE_S)

    def is_quiet(self) -> bool:
        return not call_with_retry(self.engine, Lanes(AGENT)) and not self._unsorted()

    def _unsorted(self) -> bool:
        """Whether mail was sent that no run has begun to answer, and no turn has seen."""
        known = {name for conversation in CONVERSATIONS for name in self._fates(conversation)}
        sent = {name for mail in self.sent.values() for name, _ in mail}
        return not (sent | {name for names in self.steers.values() for name in names}) <= known

    def _fates(self, conversation: str) -> set[str]:
        found: set[str] = set()
        for record in whole_log(self.engine, f"history:{conversation}"):
            found.update(steer["id"] for steer in record.payload.get("steers", ()))
            if record.payload["kind"] == "start":
                found.add(record.payload["envelope"]["id"])
        return found

    def kill_one(self) -> None:
        """Kill a worker inside a run. It is frozen before the look, because the run could end before the kill."""
        self.workers.pop(eventually(self._freeze_one_in_a_run, QUIET_DEADLINE_S)).kill()
        self.happened["kills"] += 1
        self.start_worker(THINK_MAX_S)

    def _freeze_one_in_a_run(self) -> str:
        """The name of the worker, or nothing if none was in a run."""
        if self.is_quiet():
            self.begin(CONVERSATIONS[0])
        held = [lane for lane in self.engine.call(Lanes(AGENT)) if lane.worker in self.workers]
        for name, conversation in [(str(lane.worker), lane.conversation) for lane in held]:
            self.workers[name].freeze()
            if self._runs(name, conversation):
                return name
            self.workers[name].resume()
        return ""

    def _runs(self, worker: str, conversation: str) -> bool:
        """Whether this worker has begun a run of the conversation that has not ended."""
        holders = [lane.worker for lane in self.engine.call(Lanes(AGENT)) if lane.conversation == conversation]
        events = [record.payload for record in whole_log(self.engine, f"stream:{conversation}")]
        statuses = [event["status"] for event in events if event["event"] == "run"]
        return holders == [worker] and statuses[-1:] in (["started"], ["restarted"])

    def findings(self) -> list[str]:
        findings = [
            finding
            for conversation in CONVERSATIONS
            for finding in steer_findings(self.engine, conversation, self.steers[conversation])
        ]
        findings += [f"buried: {letter}" for letter in dead_letters(self.engine)]
        for child in self.started_workers:
            findings += [f"shown twice: {words}" for words in child.reports_so_far() if "doubled" in words]
        return findings

    def tally(self) -> dict[str, int]:
        """How many steers were seen on the way, and how many were asked next."""
        events = [record.payload for name in CONVERSATIONS for record in whole_log(self.engine, f"stream:{name}")]
        outcomes = [message["outcome"] for event in events for message in event.get("messages", ())]
        return {outcome: outcomes.count(outcome) for outcome in ("seen", "input")}


def talk_through(pool: SteeredPool, steers: int, kills: int, rng: random.Random) -> None:
    for _ in range(WORKERS):
        pool.start_worker(THINK_MAX_S)
    pool.await_ready()
    for conversation in CONVERSATIONS:
        pool.begin(conversation)
    deaths = set(rng.sample(range(1, steers), kills))
    for number in range(steers):
        conversation = rng.choice(CONVERSATIONS)
        if number % RUN_EVERY == 0:
            pool.begin(conversation)
        pool.get_on(rng.choice((0, 0, 1, 2, 5)))
        pool.steer(conversation)
        if number in deaths:
            pool.kill_one()
    eventually(pool.is_quiet, QUIET_DEADLINE_S)


def check(pool: SteeredPool, steers: int, kills: int) -> None:
    pool.drain_all()
    assert_clean(pool.findings())
    print(f"{steers} steers: {pool.tally()}, {dict(pool.happened)}, {pool.takeovers()} takeovers")
    assert sum(pool.tally().values()) == steers
    assert pool.tally()["seen"] > steers // 4, "hardly any steer met a run: the test shows little"
    assert pool.happened["kills"] == kills
    assert pool.takeovers() >= 1, "no run was ever taken over: the test shows nothing"


# One engine in every run: on PostgreSQL, the claims that bring steers meet the locks of the run's appends. The long
# form has all engines.
@pytest.mark.parametrize("log_url", [pytest.param("postgres", marks=pytest.mark.postgres)], indirect=True)
def test_steers_survive_worker_crashes(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    pool = SteeredPool(log_url, engine, process_group, rng)

    talk_through(pool, STEERS, KILLS, rng)

    check(pool, STEERS, KILLS)


@pytest.mark.soak
def test_200_steers_survive_many_crashes(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    pool = SteeredPool(log_url, engine, process_group, rng)

    talk_through(pool, STEERS_SOAK, KILLS_SOAK, rng)

    check(pool, STEERS_SOAK, KILLS_SOAK)
