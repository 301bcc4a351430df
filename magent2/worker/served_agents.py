"""Whose mail a worker takes. Agents may join and leave while it works."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import AGENTS_PER_WORKER_MAX
from magent2.bus.retry import insist
from magent2.bus.watch import Watch
from magent2.errors import AddressError, NameTaken
from magent2.mail.registration import register_agent
from magent2.models.address import chat_topic, control_topic
from magent2.worker.control_feed import Controls, SteerPost, steerable_inboxes
from magent2.worker.runner_adapter import Runner

log = logging.getLogger(__name__)

Runners: TypeAlias = Mapping[str, Runner]
RunnersNow: TypeAlias = Callable[[], Runners]  # says who is served now, each with its runner


class Roll:
    """The agents of a worker, each with its runner.

    One that left has no mail taken any more: it waits on the log for whoever serves the agent next. Its runs go on to
    their end, and until then commands reach them.
    """

    def __init__(self, bus: Engine, runners: Runners | RunnersNow, worker: str) -> None:
        self._now = runners if callable(runners) else None
        self._runners = dict(runners() if callable(runners) else runners)
        self._wanted: Runners = self._runners
        self._asked = frozenset(self._runners)  # wanted at the last look, whether they can be had or not
        self._bus = bus
        self._worker = worker
        self.agents = tuple(self._runners)
        self.leaving: frozenset[str] = frozenset()
        self.controls = Controls(bus, self.agents, worker)
        self.steers = SteerPost(bus, self._runners, worker)

    @property
    def may_change(self) -> bool:
        return self._now is not None

    @property
    def topics(self) -> tuple[str, ...]:
        return (*map(chat_topic, self.agents), *map(control_topic, self.agents))

    def runner_of(self, agent: str) -> Runner:
        return self._runners[agent]

    async def enlist(self) -> None:
        """Make the agents known; the first whose name is in use is the caller's error."""
        for agent in self.agents:
            await register_agent(Log(self._bus), agent)

    # --- who joins and who leaves

    def look(self) -> bool:
        """Whether others are to be served than at the last look."""
        wanted = dict(self._now()) if self._now is not None else self._wanted
        if wanted.keys() == self._asked:
            return False
        self._asked = frozenset(wanted)
        if not 0 < len(wanted) <= AGENTS_PER_WORKER_MAX:
            facts = {"agents": len(wanted), "max": AGENTS_PER_WORKER_MAX}
            log.error("a worker cannot serve so many agents; those before stay", extra=facts)
            return False
        self._wanted = wanted
        return True

    @property
    def changed(self) -> bool:
        return self._wanted is not self._runners

    async def change(self, watch: Watch, busy: Collection[str]) -> int:
        """Serve those that are wanted; how many claims it may take until commands to the new ones lie in their lanes.

        `busy` agents have runs under way.
        """
        wanted = self._wanted
        joining = [agent for agent in wanted if agent not in self._runners and await self._welcome(agent)]
        left = [agent for agent in self._runners if agent not in wanted]
        known = {*self._runners, *joining}
        self._wanted = self._runners = {agent: wanted[agent] for agent in wanted if agent in known}
        self.agents = tuple(self._runners)
        self.leaving = (self.leaving | frozenset(left)) - frozenset(self.agents)
        for topic in map(chat_topic, left):
            watch.discard(topic)
            self.steers.discard(topic)
        watch.add(*self.topics)
        self.let_go(watch, busy)
        log.info("another team is served", extra={"joined": joining, "left": left})
        await self.steers.add(steerable_inboxes({agent: wanted[agent] for agent in joining}))
        return await self.controls.add(map(control_topic, joining))

    async def _welcome(self, agent: str) -> bool:
        try:
            await insist(lambda: register_agent(Log(self._bus), agent), self._worker)
        except (NameTaken, AddressError) as error:
            log.warning("an agent that joined cannot be served", extra={"agent": agent, "error": str(error)})
            return False
        return True

    def let_go(self, watch: Watch, busy: Collection[str]) -> None:
        """Forget agents that left and have no run any more."""
        gone = self.leaving - frozenset(busy)
        self.leaving -= gone
        for topic in map(control_topic, gone):
            watch.discard(topic)
            self.controls.discard(topic)
