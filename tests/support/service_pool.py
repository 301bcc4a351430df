"""Worker services in separate processes, their mail, and injected faults."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict
from typing import Any

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.operations import READ_LIMIT_MAX, Lanes, Read, Workers
from magent2.mail.delivery import deliver
from magent2.worker.retry import CRASHES_MAX
from tests.support.audit import whole_log
from tests.support.audited_lane import call_with_retry
from tests.support.processes import Child, ProcessGroup
from tests.support.run_audit import ENDS, run_findings
from tests.support.waiting import LOOK_AGAIN_S, eventually
from tests.support.worker_fixture import AGENT, dead_letters, envelope

SERVICE = "tests.integration.children.service"
LEASE_S = 0.6
THINK_MAX_S = 0.03  # per token
FROZEN_MAX_S = 4 * LEASE_S
QUIET_DEADLINE_S = 60.0
# A worker gives up mail after `CRASHES_MAX` crashes, as it should. So no fault is injected while a run has been taken
# over this often: the takeover that is under way, and one of a slow worker, must not reach the limit.
TAKEOVERS_MAX = CRASHES_MAX - 4


class ServicePool:
    """Worker processes for the mail of one agent."""

    module = SERVICE

    def __init__(self, url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random) -> None:
        self.engine = engine
        self.sent: dict[str, list[tuple[str, str]]] = defaultdict(list)
        self.workers: dict[str, Child] = {}
        self.started_workers: list[Child] = []
        self.happened: Counter[str] = Counter()
        self._url = url
        self._process_group = process_group
        self._rng = rng
        self._started = 0
        self._ended = 0
        self._cursors: Counter[str] = Counter()
        self._open_takeovers: Counter[str] = Counter()  # of runs that have not ended

    # --- mail

    def post(self, text: str, conversation: str) -> None:
        mail = envelope(text, conversation)
        run_sync(self.engine, deliver, mail)
        self.sent[conversation].append((mail.id, text))

    def posted(self) -> int:
        return sum(len(messages) for messages in list(self.sent.values()))  # another thread may add a conversation

    def ended(self) -> int:
        """How many runs have ended by now."""
        for conversation in list(self.sent):
            self._read_on(f"stream:{conversation}")
        return self._ended

    def _read_on(self, topic: str) -> None:
        for record in call_with_retry(self.engine, Read(topic, self._cursors[topic], READ_LIMIT_MAX)).records:
            self._cursors[topic] = record.seq
            status, run_id = record.payload.get("status"), record.payload.get("run_id", "")
            if status in ENDS:
                self._ended += 1
                del self._open_takeovers[run_id]
            elif status == "restarted":
                self._open_takeovers[run_id] += 1

    def wait_for(self, more: int) -> None:
        """Wait until this many more runs have ended, or all."""
        target = min(self.ended() + more, self.posted())
        eventually(lambda: self.ended() >= target, QUIET_DEADLINE_S)

    # --- workers

    def start_worker(self, think_max_s: float = THINK_MAX_S, lease_s: float = LEASE_S) -> Child:
        self._started += 1
        name = f"worker-{self._started}"
        self.workers[name] = self._process_group.spawn(
            self.module,
            url=self._url,
            worker=name,
            agent=AGENT,
            lease_s=lease_s,
            think_max_s=think_max_s,
            seed=self._rng.randrange(2**32),
        )
        self.started_workers.append(self.workers[name])
        return self.workers[name]

    def await_ready(self) -> None:
        """Wait until the workers have registered their agent, which they do before their first claim."""
        for child in self.workers.values():
            assert "ready" in child.next_report()
        names = set(self.workers)
        eventually(lambda: names <= {info.worker for info in call_with_retry(self.engine, Workers())}, QUIET_DEADLINE_S)

    def _victim(self) -> str:
        def holders() -> list[str]:
            workers = call_with_retry(self.engine, Workers())
            return sorted(info.worker for info in workers if info.lanes and info.worker in self.workers)

        def is_ready() -> bool:
            all_ended = self.ended() == self.posted()
            return max(self._open_takeovers.values(), default=0) < TAKEOVERS_MAX and (all_ended or bool(holders()))

        eventually(is_ready, QUIET_DEADLINE_S)
        return self._rng.choice(holders() or sorted(self.workers))

    def kill_one(self) -> None:
        self.workers.pop(self._victim()).kill()
        self.happened["kills"] += 1
        self.start_worker()

    def freeze_one(self) -> None:
        """Freeze a worker until others have its lanes, then resume it."""
        name = self._victim()
        self.workers[name].freeze()
        end = time.monotonic() + FROZEN_MAX_S
        while name in {info.worker for info in call_with_retry(self.engine, Workers())} and time.monotonic() < end:
            time.sleep(LOOK_AGAIN_S)
        self.happened["freezes"] += 1
        self.workers[name].resume()

    def drain_all(self) -> Counter[str]:
        """Drain all workers; return the outcomes of their runs."""
        outcomes: Counter[str] = Counter()
        for child in self.workers.values():
            child.write_line("drain")
        for child in self.workers.values():
            assert child.finish() == 0, child.errors()
            words: dict[str, Any] = child.final_reports()[-1]
            outcomes.update({name: count for name, count in words.items() if name != "left"})
        return outcomes

    # --- the audit

    def findings(self) -> list[str]:
        findings = [
            f"{conversation}: {finding}"
            for conversation, messages in self.sent.items()
            for finding in run_findings(
                messages,
                whole_log(self.engine, f"stream:{conversation}"),
                whole_log(self.engine, f"history:{conversation}"),
            )
        ]
        findings += [f"left over: {lane}" for lane in self.engine.call(Lanes(AGENT))]
        findings += [f"still there: {worker}" for worker in self.engine.call(Workers())]
        findings += [f"buried: {letter}" for letter in dead_letters(self.engine)]
        return findings

    def takeovers(self) -> int:
        return sum(
            record.payload.get("status") == "restarted"
            for conversation in self.sent
            for record in whole_log(self.engine, f"stream:{conversation}")
        )
