"""Messages that interrupt, are rejected, or replace answers, while workers are killed: each has one outcome."""

from __future__ import annotations

import random
import uuid
from collections import Counter
from typing import Literal

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.records import Record
from magent2.errors import ConversationBusy, NotSupersedable
from magent2.mail.delivery import SendOptions
from magent2.mail.headers import TARGET_ENVELOPE
from magent2.sessions.busy import post_if_allowed
from magent2.sessions.history import read_history
from magent2.sessions.store import with_user_message
from magent2.sessions.superseding import Replacement, replace_answer
from tests.support.audit import assert_clean, whole_log
from tests.support.processes import ProcessGroup
from tests.support.run_audit import ENDS
from tests.support.service_pool import QUIET_DEADLINE_S, ServicePool
from tests.support.waiting import eventually
from tests.support.worker_fixture import AGENT, dead_letters, envelope

CONVERSATIONS = ("c1", "c2")
WORKERS = 2
TURNS_MAX = 8
THINK_MAX_S = 0.02  # per turn
ROUNDS, KILLS = 20, 2
ROUNDS_SOAK, KILLS_SOAK = 300, 20


class BusyPool(ServicePool):
    """Workers with runs of several turns, and a client that interrupts them and asks again."""

    module = "tests.integration.children.steerable_service"

    def __init__(self, url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random) -> None:
        super().__init__(url, engine, process_group, rng)
        self.rejected: list[str] = []
        self.replaced = 0

    def say(self, conversation: str, when_busy: Literal["interrupt", "reject"]) -> None:
        text = f"go {self._rng.randint(0, TURNS_MAX)}"
        said = envelope(text, conversation)
        shown = with_user_message(said, SendOptions())
        try:
            run_sync(self.engine, post_if_allowed, said, shown, when_busy)
        except ConversationBusy:
            self.happened["busy"] += 1
            self.rejected.append(said.id)
            return
        again = run_sync(self.engine, post_if_allowed, said, shown, when_busy)
        assert again.appended.repeat, "a repeat gets the first answer, also while its own run makes it busy"
        self.sent[conversation].append((said.id, text))

    def replace(self, conversation: str) -> None:
        wanted = Replacement(conversation, str(uuid.uuid4()), "user:ann")
        try:
            run_sync(self.engine, replace_answer, wanted, SendOptions())
        except (ConversationBusy, NotSupersedable):
            return
        self.replaced += 1
        self.sent[conversation].append((wanted.envelope_id, "again"))

    def findings(self) -> list[str]:
        findings = [f"buried: {letter}" for letter in dead_letters(self.engine)]
        for conversation in CONVERSATIONS:
            findings += self._conversation_findings(conversation)
        return findings

    def _conversation_findings(self, conversation: str) -> list[str]:
        events = [record.payload for record in whole_log(self.engine, f"stream:{conversation}")]
        ends = [event for event in events if event["event"] == "run" and event["status"] in ENDS]
        times = Counter(str(event["envelope_id"]) for event in ends)
        sent = [name for name, _ in self.sent[conversation]]
        findings = [f"{name} has {times[name]} ends" for name in sent if times[name] != 1]
        findings += [f"{name} was never accepted and has a run" for name in times if name not in sent]
        inbox = {str(record.payload.get("id")) for record in whole_log(self.engine, f"chat:{AGENT}")}
        findings += [f"{name} was rejected and is in the inbox" for name in self.rejected if name in inbox]
        named = {record.headers.get(TARGET_ENVELOPE) for record in self._stops(conversation)}
        stopped = {event["envelope_id"] for event in ends if event["status"] == "stopped"}
        if None not in named:  # a stop that saw no run ends the first message that waits
            findings += [f"{name} was stopped, and no stop named it" for name in stopped - named]
        self.happened["stopped"] += len(stopped)
        return findings + self._input_findings(conversation)

    def _input_findings(self, conversation: str) -> list[str]:
        """No run has a superseded one in its input, as a reader that starts anew sees it."""
        history = run_sync(self.engine, read_history, conversation)
        gone = {name for name, run in history.runs.items() if run.superseded}
        shown = {other.run for run in history.runs.values() for other in history.earlier_runs(run)[0]}
        return [f"{name} was replaced and is in an input" for name in gone & shown]

    def _stops(self, conversation: str) -> list[Record]:
        commands = whole_log(self.engine, f"control:{AGENT}")
        return [record for record in commands if record.payload.get("conversation_id") == conversation]


def talk_through(pool: BusyPool, rounds: int, kills: int, rng: random.Random) -> None:
    for conversation in CONVERSATIONS:  # before any worker reads them: the second is refused, the third stops the first
        pool.say(conversation, "reject")
        pool.say(conversation, "reject")
        pool.say(conversation, "interrupt")
    for _ in range(WORKERS):
        pool.start_worker(THINK_MAX_S)
    pool.await_ready()
    deaths = set(rng.sample(range(1, rounds), kills))
    for number in range(rounds):
        conversation = rng.choice(CONVERSATIONS)
        what = rng.choice(("interrupt", "reject", "replace"))
        if what == "replace":
            pool.wait_for(rng.choice((0, pool.posted())))
            pool.replace(conversation)
        else:
            pool.say(conversation, "interrupt" if what == "interrupt" else "reject")
        if number in deaths:
            pool.kill_one()
    eventually(lambda: pool.ended() >= pool.posted(), QUIET_DEADLINE_S)
    for conversation in CONVERSATIONS:
        pool.replace(conversation)
    eventually(lambda: pool.ended() >= pool.posted(), QUIET_DEADLINE_S)


def check(pool: BusyPool, kills: int) -> None:
    pool.drain_all()
    assert_clean(pool.findings())
    print(f"{pool.posted()} messages, {pool.replaced} replaced, {dict(pool.happened)}")
    assert pool.happened["kills"] == kills
    assert pool.happened["busy"] >= len(CONVERSATIONS)
    assert pool.happened["stopped"] >= len(CONVERSATIONS)
    assert pool.replaced >= len(CONVERSATIONS)


@pytest.mark.parametrize("log_url", [pytest.param("redis", marks=pytest.mark.redis)], indirect=True)
def test_messages_to_busy_conversations_survive_worker_crashes(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    pool = BusyPool(log_url, engine, process_group, rng)

    talk_through(pool, ROUNDS, KILLS, rng)

    check(pool, KILLS)


@pytest.mark.soak
def test_300_messages_to_busy_conversations_survive_many_crashes(
    log_url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random
) -> None:
    pool = BusyPool(log_url, engine, process_group, rng)

    talk_through(pool, ROUNDS_SOAK, KILLS_SOAK, rng)

    check(pool, KILLS_SOAK)
