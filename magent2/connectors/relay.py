"""The relay: sends the messages in the outboxes of external connectors.

Each destination is a lane of the bus. So its messages are sent in order, one relay at a time works on it, and another
relay takes over when that one is lost and its lease has expired. The relay has a lane loop of its own: slow receivers
take no slots from agents, and connectors do not count as agents of a worker.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from magent2.background import keep_running, log_error
from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import AGENTS_PER_WORKER_MAX, Settle, Trim
from magent2.bus.records import ClaimedLane
from magent2.bus.retention import trim_steps
from magent2.bus.retry import retry_call
from magent2.bus.watch import Watch
from magent2.connectors.builtin import make_connector
from magent2.connectors.delivery_attempt import DeliveryAttempt, DeliveryOutcome
from magent2.connectors.interface import Connector
from magent2.connectors.outbox import list_outboxes, trim_outbox
from magent2.directory.connectors import (
    CONNECTOR_LIST_TOPIC,
    ConnectorRegistration,
    find_connector,
    list_connector_ids,
)
from magent2.directory.webhooks import CONFIGURED_PREFIX, Webhook, find_webhook
from magent2.errors import TransientError, UnknownEntity
from magent2.failures import Failure
from magent2.mail.lane_loop import BackgroundWork, LaneHandler, LaneLoop
from magent2.mail.retry_policy import DELIVERY_RETRY, RetryPolicy
from magent2.models.address import WEBHOOK_PREFIX, WEBHOOK_RELAY, chat_topic, outbox_topic, relay_agent

log = logging.getLogger(__name__)

CONCURRENCY = 32  # destinations at a time
LEASE_S = 30.0  # longer than one attempt takes
DRAIN_S = 20.0  # one attempt takes at most 15 s, and resolving the receiver's name 5 s
RESTART_S = 5.0  # after a relay has failed
TRIM_S = 3600.0  # between two checks for messages that were delivered long ago
CONNECTORS_OPEN_MAX = 256  # that a relay keeps open; it closes those that it has not used for the longest time


class Relay(LaneHandler[DeliveryAttempt]):
    """Sends the messages of every registered connector, also of those that are registered while it runs.

    `chance` returns a number from 0 to 1 that spreads the retries of messages that failed together. `now_s` is the wall
    clock. `configured` returns the webhooks of the agents file, by their ids. `on_outcome` is called with the kind of
    the receiver, `webhook` or `connector`, and the outcome of each attempt.
    """

    def __init__(  # noqa: PLR0913  one parameter per setting
        self,
        bus: Engine,
        make: Callable[[ConnectorRegistration], Connector] = make_connector,
        *,
        concurrency: int = CONCURRENCY,
        lease_s: float = LEASE_S,
        worker: str | None = None,
        chance: Callable[[], float] = random.random,
        now_s: Callable[[], float] = time.time,
        retry: RetryPolicy = DELIVERY_RETRY,
        configured: Callable[[], Mapping[str, Webhook]] = dict,
    ) -> None:
        self.worker = worker or f"relay-{uuid.uuid4().hex[:12]}"
        self._bus = bus
        self._make = make
        self._chance = chance
        self._now_s = now_s
        self._retry = retry
        self._configured = configured
        self.on_outcome: Callable[[str, DeliveryOutcome], None] = lambda kind, outcome: None
        self._agents: tuple[str, ...] = ()
        self._has_webhooks = False  # a webhook has ever got a notification
        self._connectors: dict[str, tuple[ConnectorRegistration, Connector]] = {}
        self._replaced: list[tuple[ConnectorRegistration, Connector]] = []
        self._lane_loop = LaneLoop(
            bus, self, worker=self.worker, concurrency=concurrency, lease_s=lease_s, drain_s=DRAIN_S
        )

    async def run(self) -> None:
        """Send until drained or cancelled. A delivery that is cut off is handled by the next relay's crash rule."""
        try:
            await self._lane_loop.run()
        finally:
            for item in (*self._connectors.values(), *self._replaced):
                await self._close(*item)

    def drain(self) -> None:
        """Claim nothing more. `run` ends when the deliveries in progress have ended, or are cancelled after 20 s."""
        self._lane_loop.begin_drain()

    # --- what is claimed

    @property
    def agents(self) -> tuple[str, ...]:
        return self._agents

    @property
    def topics(self) -> tuple[str, ...]:
        return (CONNECTOR_LIST_TOPIC, chat_topic(WEBHOOK_RELAY))

    async def before_claim(self, watch: Watch) -> bool:
        names = await retry_call(lambda: list_connector_ids(Log(self._bus)), self.worker)
        if not self._has_webhooks:  # without webhooks and connectors, a relay claims nothing
            (inbox,) = await retry_call(lambda: Log(self._bus).describe(chat_topic(WEBHOOK_RELAY)), self.worker)
            self._has_webhooks = inbox.last > 0
        webhooks = (WEBHOOK_RELAY,) if self._has_webhooks else ()
        agents = (*(relay_agent(name) for name in names), *webhooks)[-AGENTS_PER_WORKER_MAX:]
        if agents != self._agents:
            watch.add(*(chat_topic(agent) for agent in agents))
            self._agents = agents
        return False

    # --- deliveries

    def create_work(self, lane: ClaimedLane) -> DeliveryAttempt:
        kind = "webhook" if lane.owner.agent == WEBHOOK_RELAY else "connector"
        return DeliveryAttempt(
            self._bus,
            lane,
            self._connector,
            self._chance,
            self._retry,
            self._find,
            lambda outcome: self.on_outcome(kind, outcome),
        )

    async def work_on(self, work: DeliveryAttempt) -> bool:
        try:
            return await work.work()
        finally:
            await self._close_unused()

    def burials(self, lane: ClaimedLane, work: DeliveryAttempt | None, failure: Failure) -> Iterable[Settle]:
        return super().burials(lane, work, failure) if work is None else work.burials(failure)

    async def _find(self, connector_id: str) -> ConnectorRegistration:
        """Return the registration of a connector or a webhook. Raises `UnknownEntity` if it does not exist.

        Raises `TransientError` for a webhook that is not in this worker's agents file: it may be in that of others.
        """
        webhook_id = connector_id.removeprefix(WEBHOOK_PREFIX)
        if webhook_id == connector_id:
            return (await retry_call(lambda: find_connector(Log(self._bus), connector_id), self.worker)).state
        if webhook_id.startswith(CONFIGURED_PREFIX):
            webhook = self._configured().get(webhook_id)
            if webhook is None:
                name = webhook_id.removeprefix(CONFIGURED_PREFIX)
                raise TransientError(
                    f"the agents file of the worker has no [webhook.{name}]; add it, or drop the message"
                )
            return webhook.registration
        return (await retry_call(lambda: find_webhook(Log(self._bus), webhook_id), self.worker)).registration

    def _connector(self, registration: ConnectorRegistration) -> Connector:
        """Return the connector of a registration. It is created once, and again when the registration changes."""
        known = self._connectors.pop(registration.id, None)
        if known is None or known[0] != registration:
            if known is not None:
                self._replaced.append(known)  # another delivery may still use it
            known = registration, self._make(registration)
        self._connectors[registration.id] = known  # at the end: the order is that of the last use
        return known[1]

    async def _close_unused(self) -> None:
        """Close connectors that were replaced, and above the limit those that were not used for the longest time."""
        in_use = {work.connector_id for work in self._lane_loop.by_lane.values()}
        unused = [item for item in self._replaced if item[0].id not in in_use]
        self._replaced = [item for item in self._replaced if item[0].id in in_use]
        surplus = max(0, len(self._connectors) - CONNECTORS_OPEN_MAX)
        idle = [name for name in self._connectors if name not in in_use]
        for item in (*unused, *[self._connectors.pop(name) for name in idle[:surplus]]):
            await self._close(*item)

    async def _close(self, registration: ConnectorRegistration, connector: Connector) -> None:
        try:
            await connector.aclose()
        except Exception as error:  # noqa: BLE001  the others are closed all the same
            log_error("a connector cannot be closed", error, connector=registration.id)

    # --- retention

    def background(self) -> Sequence[BackgroundWork]:
        return [keep_running(f"{self.worker} outbox retention", self._trim_outboxes)]

    async def _trim_outboxes(self) -> None:
        """Remove old deliveries from all outboxes. Every relay does this: it costs little, and may be repeated."""
        for name in await retry_call(lambda: list_outboxes(Log(self._bus)), self.worker):
            await self._trim_outbox(name)
        await asyncio.sleep(TRIM_S)

    async def _trim_outbox(self, connector: str) -> None:
        now_ms = round(self._now_s() * 1000)
        try:
            await self._empty_if_deleted(connector)
            removed = await retry_call(lambda: trim_outbox(Log(self._bus), connector, now_ms), self.worker)
        except Exception as error:  # noqa: BLE001  messages are sent all the same, and other outboxes are trimmed
            log_error("an outbox cannot be trimmed", error, connector=connector)
        else:
            log.info("an outbox was trimmed", extra={"connector": connector, "messages": removed})

    async def _empty_if_deleted(self, connector: str) -> None:
        """Empty the outbox of a webhook that was deleted: a run that ended at that moment may have written to it."""
        if not connector.startswith(WEBHOOK_PREFIX):
            return
        try:
            await self._find(connector)
        except TransientError:  # of another worker's agents file
            return
        except UnknownEntity:
            async for _ in trim_steps(Log(self._bus), Trim(outbox_topic(connector), keep=0)):
                pass


# --- the relay of a worker process: it is started again after an error, while agents are served


@asynccontextmanager
async def running_relay(bus: Engine, make: Callable[[Engine], Relay] = Relay) -> AsyncIterator[None]:
    """Run a relay inside the block. On the way out, give its deliveries some time to finish."""
    supervisor = _RelaySupervisor(bus, make)
    task = asyncio.create_task(supervisor.run(), name="relay")
    try:
        yield
    finally:
        supervisor.drain()
        await asyncio.wait([task], timeout=DRAIN_S)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


class _RelaySupervisor:
    """Runs a relay, and starts another after one has failed. Agents are served meanwhile."""

    def __init__(self, bus: Engine, make: Callable[[Engine], Relay]) -> None:
        self._bus = bus
        self._make = make
        self._relay = make(bus)
        self._draining = asyncio.Event()

    async def run(self) -> None:
        while not self._draining.is_set():
            try:
                await self._relay.run()
            except Exception as error:  # noqa: BLE001  whatever it is, messages have to be sent again when it is over
                log_error("the relay has failed; it starts again soon", error, restart_in_s=RESTART_S)
                await self._pause()
                self._relay = self._make(self._bus)

    def drain(self) -> None:
        self._draining.set()
        self._relay.drain()

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(RESTART_S):
                await self._draining.wait()
        except TimeoutError:
            return
