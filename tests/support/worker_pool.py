"""Audited workers in separate processes, with injected faults."""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from magent2.bus.interface import Engine
from magent2.bus.operations import OLDEST, READ_LIMIT_MAX, Lanes, Read, Workers
from magent2.bus.records import MailRef, Record
from magent2.errors import UnknownCursor
from tests.support.audit import ENDS, lane_findings, settled_mail
from tests.support.audited_lane import call_with_retry, mail_to
from tests.support.processes import Child, ProcessGroup
from tests.support.waiting import eventually

WORKER = "tests.integration.children.worker"
AGENT = "Ada"
TRAIL = "audit:lanes"
LEASE_S = 0.6
QUIET_DEADLINE_S = 60.0  # within which some worker must make progress
FROZEN_MAX_S = 4 * LEASE_S  # a worker frozen inside a commit blocks the whole file, so it is resumed then
LOOK_S = 0.05


class WorkerPool:
    """Worker processes for the lanes of one agent, observed through the audit topic."""

    def __init__(self, url: str, engine: Engine, process_group: ProcessGroup, rng: random.Random) -> None:
        self.engine = engine
        self.mail: dict[str, list[MailRef]] = defaultdict(list)
        self.trail: list[Record] = []
        self.kills = 0
        self.takeovers = 0  # workers that were frozen until others had their lanes
        self.workers: dict[str, Child] = {}
        self._url = url
        self._process_group = process_group
        self._rng = rng
        self._started = 0
        self._ended = 0
        self._settled: set[MailRef] = set()
        self._reports: list[dict[str, Any]] = []

    # --- the mail

    def post(self, conversations: Sequence[str], control: bool = False) -> None:
        """Send one message to each conversation, in one append."""
        operation = mail_to(AGENT, conversations, control)
        for conversation, record, seq in zip(
            conversations, operation.records, call_with_retry(self.engine, operation).seqs, strict=True
        ):
            self.mail[conversation].append(MailRef(record.topic, seq))

    def posted(self) -> int:
        return sum(len(refs) for refs in self.mail.values())

    def read_trail(self) -> int:
        """Read new entries of the audit topic; return how many runs have ended."""
        after = self.trail[-1].seq if self.trail else OLDEST
        try:
            new = call_with_retry(self.engine, Read(TRAIL, after, READ_LIMIT_MAX)).records
        except UnknownCursor:  # the log has lost the last entries that were read
            self.trail, self._settled, self._ended = [], set(), 0
            return self.read_trail()
        self.trail += new
        self._settled |= settled_mail(new)
        self._ended += sum(record.payload["act"] in ENDS for record in new)
        return self._ended

    def wait_for_runs(self, more: int) -> None:
        """Wait until this many more runs have ended, or all mail is settled."""
        target = self.read_trail() + more

        def enough() -> bool:
            for child in self.workers.values():
                child.check_alive()
            return self.read_trail() >= target or self.all_settled()

        eventually(enough, QUIET_DEADLINE_S)

    def all_settled(self) -> bool:
        self.read_trail()
        return len(self._settled) >= self.posted()

    def wait_for_the_rest(self) -> None:
        settled = -1
        while not self.all_settled():
            assert len(self._settled) > settled, f"runs end and no mail is settled; {self.state()}"
            settled = len(self._settled)
            self.wait_for_runs(50)

    def state(self) -> str:
        lanes = self.engine.call(Lanes(AGENT))
        return f"lanes {lanes[:5]} of {len(lanes)}, workers {self.engine.call(Workers())}"

    # --- the workers

    def start_worker(self) -> None:
        self._started += 1
        name = f"worker-{self._started}"
        self.workers[name] = self._process_group.spawn(
            WORKER,
            url=self._url,
            worker=name,
            agent=AGENT,
            trail=TRAIL,
            lease_s=LEASE_S,
            seed=self._rng.randrange(2**32),
        )

    def await_ready(self) -> None:
        for child in self.workers.values():
            assert "ready" in child.next_report()

    def _victim(self) -> str:
        """A worker that holds lanes; any worker if none does."""
        eventually(lambda: self._holders() or self.all_settled())
        return self._rng.choice(self._holders() or sorted(self.workers))

    def _holders(self) -> list[str]:
        workers = call_with_retry(self.engine, Workers())
        return sorted(worker.worker for worker in workers if worker.lanes and worker.worker in self.workers)

    def kill_one(self) -> None:
        child = self.workers.pop(self._victim())
        child.kill()
        self._reports += child.final_reports()
        self.kills += 1
        self.start_worker()

    def freeze_one(self) -> None:
        """Freeze a worker until others have taken over its lanes, then resume it."""
        name = self._victim()
        self.workers[name].freeze()
        try:
            self.takeovers += self._taken_over(name)
        finally:
            self.workers[name].resume()

    def _taken_over(self, name: str) -> bool:
        """Whether others have removed the worker before the maximum freeze time."""
        end = time.monotonic() + FROZEN_MAX_S
        with self.engine.watch([TRAIL]) as watch:
            while time.monotonic() < end:
                if name not in {worker.worker for worker in call_with_retry(self.engine, Workers())}:
                    return True
                watch.wait(LOOK_S)
        return False

    def fenced(self) -> int:
        """How many writes of former owners were refused."""
        for child in self.workers.values():
            self._reports += child.reports_so_far()
        return sum("fenced" in report for report in self._reports)

    def drain_all(self) -> None:
        for child in self.workers.values():
            child.write_line("stop")
        for child in self.workers.values():
            assert child.finish() == 0, child.errors()
            self._reports += child.final_reports()

    # --- the audit

    def findings(self) -> list[str]:
        self.read_trail()
        findings = lane_findings(self.mail, self.trail)
        ended = {record.payload["token"] for record in self.trail if record.payload["act"] in ENDS}
        done = {report["done"] for report in self._reports if "done" in report}
        findings += [f"the end of {token} was acknowledged and is gone" for token in sorted(done - ended)]
        findings += [f"left over: {lane}" for lane in self.engine.call(Lanes(AGENT))]
        findings += [f"still there: {worker}" for worker in self.engine.call(Workers())]
        return findings
