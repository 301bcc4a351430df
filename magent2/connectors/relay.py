"""The relay: sends what is in the outboxes of external connectors.

Each destination is a lane of the bus. So its messages go in order, one relay at a time works on it, and when that one
is lost another takes over after the lease. A relay sleeps until there is something to send, or something falls due.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import AGENTS_PER_WORKER_MAX, Claim, Leave, Renew
from magent2.bus.records import ClaimedLane, ClaimResult
from magent2.bus.retry import insist, persist
from magent2.bus.watch import Watch
from magent2.connectors.builtin import make_connector
from magent2.connectors.delivery_attempt import work_on
from magent2.connectors.interface import Connector
from magent2.connectors.outbox_retention import trim_outbox
from magent2.directory.connectors import ROLL, Registration, list_connector_ids
from magent2.errors import Fenced, Magent2Error, MalformedRecord
from magent2.models.address import chat_topic, relay_agent

log = logging.getLogger(__name__)

CONCURRENCY = 32  # destinations at a time
LEASE_S = 30.0  # longer than one attempt takes
SWEEP_S = 30.0
DRAIN_S = 20.0
TIDY_S = 3600.0  # between two looks for what was delivered long ago
LEAVE_MAX_S = 5.0


class Relay:
    """Serves every connector that is set up, also those that are set up while it runs.

    `chance`, from 0 to 1, spreads messages that failed together; `now_s` is the clock on the wall.
    """

    def __init__(
        self,
        bus: Engine,
        make: Callable[[Registration], Connector] = make_connector,
        *,
        concurrency: int = CONCURRENCY,
        lease_s: float = LEASE_S,
        worker: str | None = None,
        chance: Callable[[], float] = random.random,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self.worker = worker or f"relay-{uuid.uuid4().hex[:12]}"
        self._bus = bus
        self._make = make
        self._concurrency = concurrency
        self._lease_s = lease_s
        self._chance = chance
        self._now_s = now_s
        self._agents: tuple[str, ...] = ()
        self._made: dict[str, tuple[Registration, Connector]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._awake = asyncio.Event()
        self._draining = False
        self._failure: BaseException | None = None

    async def run(self) -> None:
        """Serve until drained or cancelled."""
        helpers: list[asyncio.Task[None]] = []
        try:
            with self._bus.watch([ROLL]) as watch:
                chores = self._listen(watch), self._renew(), self._tidy()
                helpers += [asyncio.create_task(chore) for chore in chores]
                while not (self._draining and not self._tasks):
                    self._check(helpers)
                    self._awake.clear()
                    await self._sleep(await self._look(watch))
        finally:
            await self._go_home(helpers)

    def drain(self) -> None:
        """Claim nothing more; `run` ends when what is on its way has arrived."""
        self._draining = True
        self._awake.set()

    async def _look(self, watch: Watch) -> float | None:
        """Take what there is; when the next thing falls due."""
        room = 0 if self._draining else self._concurrency - len(self._tasks)
        await self._learn(watch)
        if not room or not self._agents:
            return None
        claims = await self._claim(room)
        for lane in claims.lanes:
            self._start(lane)
        if claims.more or (claims.lanes and len(claims.lanes) == room):
            self._awake.set()
        return claims.wait_s

    async def _learn(self, watch: Watch) -> None:
        names = await insist(lambda: list_connector_ids(Log(self._bus)), self.worker)
        agents = tuple(relay_agent(name) for name in names)[-AGENTS_PER_WORKER_MAX:]
        if agents != self._agents:
            watch.add(*(chat_topic(agent) for agent in agents))
            self._agents = agents

    async def _claim(self, room: int) -> ClaimResult:
        claim = Claim(worker=self.worker, agents=self._agents, limit=room, lease_s=self._lease_s)
        return await persist(self._bus, claim, self.worker)

    async def _sleep(self, wait_s: float | None) -> None:
        delay = SWEEP_S if wait_s is None else min(wait_s, SWEEP_S)
        timer = asyncio.get_running_loop().call_later(delay, self._awake.set)
        await self._awake.wait()
        timer.cancel()

    def _start(self, lane: ClaimedLane) -> None:
        task = asyncio.create_task(work_on(self._bus, lane, self._connector, self._chance))
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Fenced):
            log.warning("another relay has taken over a destination", extra={"worker": self.worker})
        elif error is not None:
            self._failure = error
        self._awake.set()

    def _connector(self, registration: Registration) -> Connector:
        known = self._made.get(registration.id)
        if known is None or known[0] != registration:
            self._made[registration.id] = (registration, self._make(registration))
        return self._made[registration.id][1]

    def _check(self, helpers: list[asyncio.Task[None]]) -> None:
        for helper in helpers:
            if helper.done():
                helper.result()
        if self._failure is not None:
            raise self._failure

    async def _listen(self, watch: Watch) -> None:
        while True:
            await watch.changed(None)
            self._awake.set()

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / 3)
            if self._agents and not await persist(self._bus, Renew(self.worker, self._lease_s), self.worker):
                log.warning("the lease was lost", extra={"worker": self.worker})

    async def _tidy(self) -> None:
        """Every relay does: it costs little, and does no harm twice."""
        while True:
            for name in await insist(lambda: list_connector_ids(Log(self._bus)), self.worker):
                await self._tidy_outbox(name)
            await asyncio.sleep(TIDY_S)

    async def _tidy_outbox(self, connector: str) -> None:
        now_ms = round(self._now_s() * 1000)
        try:
            gone = await insist(lambda: trim_outbox(Log(self._bus), connector, now_ms), self.worker)
        except MalformedRecord as error:  # messages go out all the same
            log.warning("an outbox cannot be tidied", extra={"connector": connector, "error": str(error)})
        else:
            log.info("an outbox was tidied", extra={"connector": connector, "messages": gone})

    async def _go_home(self, helpers: list[asyncio.Task[None]]) -> None:
        """Whatever is still on its way is cut off; the lanes go back to others at once."""
        left = [*helpers, *self._tasks]
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        for _, connector in self._made.values():
            await connector.aclose()
        try:
            async with asyncio.timeout(LEAVE_MAX_S):
                await self._bus.acall(Leave(self.worker))
        except (Magent2Error, TimeoutError) as error:
            log.warning("left without a word; the lease will run out", extra={"error": str(error)})
