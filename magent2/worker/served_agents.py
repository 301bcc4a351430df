"""The agents that a worker serves. Agents may join and leave while it runs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping
from typing import TypeAlias

from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import AGENTS_PER_WORKER_MAX
from magent2.bus.retry import retry_call
from magent2.bus.watch import Watch
from magent2.errors import AddressError, NameTaken
from magent2.mail.registration import register_agent
from magent2.models.address import chat_topic, control_topic
from magent2.worker.control_feed import ControlFeed, SteerFeed, steerable_inboxes
from magent2.worker.runner_adapter import Runner

log = logging.getLogger(__name__)

Runners: TypeAlias = Mapping[str, Runner]
CurrentRunners: TypeAlias = Callable[[], Runners]  # returns the agents to serve now, each with its runner


class ServedAgents:
    """The agents of a worker, each with its runner.

    The mail of an agent that left is not claimed any more. It waits on the log for the next worker that serves the
    agent. Runs of the agent that are in progress finish, and commands reach them until then.
    """

    def __init__(self, bus: Engine, runners: Runners | CurrentRunners, worker: str) -> None:
        self._current = runners if callable(runners) else None
        self._runners = dict(runners() if callable(runners) else runners)
        self._wanted: Runners = self._runners  # another object while a change is pending
        self._last_seen = frozenset(self._runners)  # wanted at the last check, whether they can be served or not
        self._bus = bus
        self._worker = worker
        self.agents = tuple(self._runners)
        self.leaving: frozenset[str] = frozenset()  # agents that left and have runs in progress
        self.controls = ControlFeed(bus, self.agents, worker)
        self.steers = SteerFeed(bus, self._runners, worker)

    @property
    def may_change(self) -> bool:
        return self._current is not None

    @property
    def topics(self) -> tuple[str, ...]:
        return (*map(chat_topic, self.agents), *map(control_topic, self.agents))

    def runner_of(self, agent: str) -> Runner:
        return self._runners[agent]

    async def register(self) -> None:
        """Register the agents. One whose name is in use is left out: a user must not keep the others from starting.

        Raises `NameTaken` if none is left.
        """
        taken: NameTaken | None = None
        for agent in self.agents:
            try:
                await register_agent(Log(self._bus), agent)
            except NameTaken as error:
                taken = error
                del self._runners[agent]
                self.controls.discard(control_topic(agent))
                self.steers.discard(chat_topic(agent))
                log.error("an agent cannot be served", extra={"agent": agent, "error": str(error)})  # noqa: TRY400
        if taken is None:
            return
        if not self._runners:
            raise taken
        self.agents = tuple(self._runners)

    def has_changed(self) -> bool:
        """Check which agents are wanted now. Return whether they differ from the last check and can be served."""
        wanted = dict(self._current()) if self._current is not None else self._wanted
        if wanted.keys() == self._last_seen:
            return False
        self._last_seen = frozenset(wanted)
        if not 0 < len(wanted) <= AGENTS_PER_WORKER_MAX:
            facts = {"agents": len(wanted), "max": AGENTS_PER_WORKER_MAX}
            log.error("a worker cannot serve this number of agents; it keeps serving the previous ones", extra=facts)
            return False
        self._wanted = wanted
        return True

    @property
    def change_pending(self) -> bool:
        return self._wanted is not self._runners

    async def apply_change(self, watch: Watch, busy: Collection[str]) -> int:
        """Serve the agents that are wanted now. `busy` are agents with runs in progress.

        Return how many claims it may take until commands for the agents that joined are in their lanes.
        """
        wanted = self._wanted
        joining = [agent for agent in wanted if agent not in self._runners and await self._register_joining(agent)]
        left = [agent for agent in self._runners if agent not in wanted]
        served = {*self._runners, *joining}
        self._wanted = self._runners = {agent: wanted[agent] for agent in wanted if agent in served}
        self.agents = tuple(self._runners)
        self.leaving = (self.leaving | frozenset(left)) - frozenset(self.agents)
        for topic in map(chat_topic, left):
            watch.discard(topic)
            self.steers.discard(topic)
        watch.add(*self.topics)
        self.forget_idle(watch, busy)
        log.info("the served agents have changed", extra={"joined": joining, "left": left})
        await self.steers.add(steerable_inboxes({agent: wanted[agent] for agent in joining}))
        return await self.controls.add(map(control_topic, joining))

    async def _register_joining(self, agent: str) -> bool:
        """Register an agent that joins. One that cannot be registered is left out; the others are served."""
        try:
            await retry_call(lambda: register_agent(Log(self._bus), agent), self._worker)
        except (NameTaken, AddressError) as error:
            log.warning("an agent that joined cannot be served", extra={"agent": agent, "error": str(error)})
            return False
        return True

    def forget_idle(self, watch: Watch, busy: Collection[str]) -> None:
        """Forget agents that left and have no run in progress any more."""
        idle = self.leaving - frozenset(busy)
        self.leaving -= idle
        for topic in map(control_topic, idle):
            watch.discard(topic)
            self.controls.discard(topic)
