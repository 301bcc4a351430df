"""The long-running worker: runs agents on the lane loop, many lanes at a time, until it is drained."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from magent2 import __version__
from magent2.background import keep_running, log_error
from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import Settle
from magent2.bus.records import ClaimedLane, Record
from magent2.bus.retention import RetentionPolicy
from magent2.bus.watch import Watch
from magent2.errors import InvalidInput
from magent2.failures import Failure
from magent2.mail.lane_loop import BackgroundWork, LaneHandler, LaneKey, LaneLoop
from magent2.mail.retry_policy import RUN_RETRY, RetryPolicy
from magent2.models.address import budgets_topic
from magent2.runner.circuit import CIRCUIT_FAILURES, Circuits
from magent2.sessions.approvals import APPROVAL_MAX_S, now_ms
from magent2.sessions.history import HistoryCache
from magent2.sessions.queue_depth import QUEUE_MAX_MESSAGES
from magent2.telemetry.metrics import RunMetrics
from magent2.telemetry.observation import RunObserver
from magent2.worker.control_feed import lanes_with_steers, takes_steers
from magent2.worker.lane_run import RUN_MAX_S, LaneRun
from magent2.worker.run_attempt import RunServices
from magent2.worker.scheduler import keep_firing
from magent2.worker.served_agents import CurrentRunners, Runners, ServedAgents
from magent2.worker.settlement import DELAYED, Outcome
from magent2.worker.sweeper import keep_sweeping
from magent2.worker.webhooks import KnownWebhooks

CONCURRENCY = 256  # lanes that are worked on at a time
PRINCIPAL_SHARE = 0.5  # of these slots that one principal may use; the others stay free for principals that come later
LEASE_S = 15.0
DRAIN_S = 30.0
TEAM_POLL_S = 0.5  # between two checks whether the agents to serve have changed
OWNER_CHECKS_MAX = 32  # at a time, after a renewal of the lease


def new_worker_id() -> str:
    return f"worker-{uuid.uuid4().hex[:12]}"


class WorkerService(LaneHandler[LaneRun]):
    """Serves the mail of agents, each with its runner. The agents may change while it runs.

    Mail of one lane (agent and conversation) is processed in order. Lanes run side by side, up to `concurrency` of
    them, and up to `principal_share` of that for one principal; two agents may run in one conversation at a time.
    """

    def __init__(  # noqa: PLR0913  one parameter per setting
        self,
        bus: Engine,
        runners: Runners | CurrentRunners,
        *,
        concurrency: int = CONCURRENCY,
        principal_share: float = PRINCIPAL_SHARE,
        lease_s: float = LEASE_S,
        run_max_s: float = RUN_MAX_S,
        worker: str | None = None,
        observer: RunObserver | None = None,
        release: str = __version__,
        retry: RetryPolicy = RUN_RETRY,
        circuit_failures: int = CIRCUIT_FAILURES,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """`chance` returns a number from 0 to 1 that spreads the retries of runs that failed together."""
        self.worker = worker or new_worker_id()
        self.approval_max_s = APPROVAL_MAX_S
        self.retention: Callable[[], RetentionPolicy] | None = None  # with it, this worker sweeps in turn with others
        self.fires_schedules = False  # with it, this worker sends the messages of schedules, in turn with others
        self.queue_max_messages = QUEUE_MAX_MESSAGES  # in one conversation; the message of a slot is refused above it
        self.now_ms: Callable[[], int] = now_ms  # the wall clock, for the displayed expiry of approvals
        self.outcomes: Counter[Outcome] = Counter()
        self.webhooks = KnownWebhooks(bus)
        self._bus = bus
        self._served = ServedAgents(bus, runners, self.worker)
        if not self._served.agents:
            raise InvalidInput("a worker needs at least one agent to serve")
        self._controls = self._served.controls
        self._steers = self._served.steers
        self.run_max_s = run_max_s
        self._observer = observer
        self._release = release
        metrics = None if observer is None else observer.metrics
        self.lane_loop = LaneLoop(
            bus,
            self,
            worker=self.worker,
            concurrency=concurrency,
            lease_s=lease_s,
            drain_s=DRAIN_S,
            principal_share=principal_share,
            on_claim=None if metrics is None else metrics.claimed,
        )
        on_change = {} if metrics is None else {"on_change": metrics.set_circuit}
        self._services = RunServices(
            HistoryCache(bus),
            slot_released=self.lane_loop.slot_released,
            retry=retry,
            circuits=Circuits(retry, circuit_failures, chance, **on_change),
            chance=chance,
            webhooks=self.webhooks,
        )
        self.budgets = self._services.budgets
        self.budgets.chance = chance
        if metrics is not None:
            self._count_usage(metrics)
        self._limits_changed = True  # limits may have been set that this worker has not read
        self._commands: list[Record] = []  # commands that were read before the claim
        self._steered: set[LaneKey] = set()  # lanes with steers that were read before the claim
        self._more_mail = False  # the last claim left mail that is not in its lane yet
        self._has_unsorted_commands = False  # commands from before the start may not be in their lanes yet

    def _count_usage(self, metrics: RunMetrics) -> None:
        self.budgets.on_spent = lambda used: metrics.count_cost(float(used.cost_usd), used.unpriced_calls)
        self.budgets.on_reached = lambda kinds: metrics.count_budgets_reached(*kinds)

    @property
    def metrics(self) -> RunMetrics | None:
        return None if self._observer is None else self._observer.metrics

    async def run(self) -> None:
        """Serve until drained.

        Raises `NameTaken` for an agent whose name is in use, and errors that only a person can fix.
        """
        await self.lane_loop.run()

    async def drain(self, timeout_s: float | None = None) -> None:
        """Claim nothing more, give runs `timeout_s` to finish, give the other lanes back, and leave the bus."""
        await self.lane_loop.drain(timeout_s)

    @property
    def drain_s(self) -> float:
        return self.lane_loop.drain_s

    @property
    def agents(self) -> tuple[str, ...]:
        return self._served.agents

    @property
    def topics(self) -> tuple[str, ...]:
        return *self._served.topics, budgets_topic(), *self.webhooks.topics

    def background(self) -> Sequence[BackgroundWork]:
        work = [keep_running(f"{self.worker} team", self._follow_team)] if self._served.may_change else []
        metrics = self.metrics
        if self.fires_schedules:
            work.append(keep_firing(self._bus, self.worker, self.lane_loop.lease_s, metrics, self.queue_max_messages))
        if self.retention is not None:
            work.append(keep_sweeping(self._bus, self.retention, self.worker, self.lane_loop.lease_s, metrics))
        return work

    async def _follow_team(self) -> None:
        await asyncio.sleep(TEAM_POLL_S)
        if self._served.has_changed():
            self.lane_loop.wake()

    async def start(self) -> None:
        await self._served.register()
        await self._steers.begin()
        await self._put_commands_into_lanes(await self._controls.begin())

    async def _put_commands_into_lanes(self, claims_max: int) -> None:
        """Claim nothing until every command that was sent before is in its lane.

        Each claim of 0 lanes puts a bounded number of records into lanes. Otherwise a run could start although a stop
        for it is already on the log. If other workers sort the same inboxes all the time, it may start all the same:
        `after_claim` then looks for commands in the lanes of all runs.
        """
        for _ in range(claims_max):
            result = await self.lane_loop.claim(0)
            if not result.more:
                return
        self._has_unsorted_commands = True

    def topics_changed(self, topics: frozenset[str]) -> None:
        self._controls.note(topics)
        self._steers.note(topics)
        self._limits_changed = self._limits_changed or budgets_topic() in topics
        self.webhooks.note(topics)

    async def before_claim(self, watch: Watch) -> bool:
        # Added to what is left of a round that failed: each record is read once, and a run must not miss its stop.
        await self.webhooks.update(self.worker)
        await self._update_agents(watch)
        if self._limits_changed:
            await self.budgets.refresh(Log(self._bus))
            self._limits_changed = False
        self._commands += await self._controls.read()
        self._steered |= lanes_with_steers(await self._steers.read(watch))
        if self._commands and self._served.leaving:
            # Commands for runs of agents that left must get into their lanes too. The claim that follows says again
            # whose mail this worker takes.
            await self.lane_loop.claim(0, (*self._served.agents, *self._served.leaving))
        if self._controls.waiting or self._steers.waiting:
            self.lane_loop.wake()
        return bool(self._commands or self._steered or self._more_mail or self._has_unsorted_commands)

    async def _update_agents(self, watch: Watch) -> None:
        busy = {agent for agent, _ in self.lane_loop.by_lane}
        if self._served.change_pending and not self.lane_loop.draining:
            claims_max = await self._served.apply_change(watch, busy)
            await self._put_commands_into_lanes(max(1, claims_max))  # one claim tells the bus which agents are served
        elif self._served.leaving:
            self._served.forget_idle(watch, busy)

    async def after_claim(self, more: bool) -> None:
        """Pass commands and steers to the runs that they are for.

        Not before the claim: it puts them into their lanes, and a run settles them from there.
        """
        await self._pass_on_commands(more)
        # If the claim before this one left mail outside its lane, any lane may have got a steer by this claim.
        for lane in list(self.lane_loop.by_lane) if self._more_mail else self._steered:
            run = self.lane_loop.by_lane.get(lane)
            if run is not None:
                run.note_steer()
        self._more_mail = more
        self._steered.clear()
        self._steers.mark_passed_on()

    async def _pass_on_commands(self, more: bool) -> None:
        """Pass commands to the runs in whose lanes they are. One that is in none any more belonged to an earlier run.

        `more`: the claim has left mail outside its lane.
        """
        index = 0
        while index < len(self._commands):
            record = self._commands[index]
            agent = record.topic.partition(":")[2]
            run = self.lane_loop.by_lane.get((agent, str(record.payload.get("conversation_id", ""))))
            is_in_lane = run is not None and await self._controls.lies_in(run.owner, record)
            if run is not None and is_in_lane:
                run.add_command(record)
            if more and not is_in_lane:  # it may be outside its lane, so the next claim decides
                index += 1
            else:
                del self._commands[index]
        if self._has_unsorted_commands:
            for run in list(self.lane_loop.by_lane.values()):
                for record in await self._controls.commands_in(run.owner):
                    run.add_command(record)
            self._has_unsorted_commands = more

    def create_work(self, lane: ClaimedLane) -> LaneRun:
        runner = self._served.runner_of(lane.owner.agent)
        run = LaneRun(
            self._bus,
            lane,
            runner,
            run_max_s=self.run_max_s,
            services=self._services,
            observer=self._observer,
            release=self._release,
            catch_up=self._steers.catch_up if takes_steers(runner) else None,
        )
        run.approvals.max_s, run.approvals.now_ms = self.approval_max_s, self.now_ms
        return run

    async def work_on(self, work: LaneRun) -> bool:
        outcome = await work.work()
        self.outcomes[outcome] += 1
        return outcome in DELAYED

    def burials(self, lane: ClaimedLane, work: LaneRun | None, failure: Failure) -> Iterable[Settle]:
        return super().burials(lane, work, failure) if work is None else work.burials(failure)

    async def lease_renewed(self, running: Sequence[LaneRun]) -> None:
        unchecked = iter(running)

        async def check_owners() -> None:
            for run in unchecked:
                try:
                    await run.check_owner()
                except Exception as error:  # noqa: BLE001  the others are checked all the same
                    log_error("cannot check the owner of a lane", error, owner=run.owner.token)

        await asyncio.gather(*(check_owners() for _ in range(min(OWNER_CHECKS_MAX, len(running)))))

    def give_back(self, work: LaneRun) -> bool:
        work.give_back()
        return True
