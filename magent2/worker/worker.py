"""The worker of contract v1: synchronous, one message after another, on an engine or on a v1 bus."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import TypeVar

from pydantic import ValidationError

from magent2.background import keep_running, log_error
from magent2.bus.base import EngineBase
from magent2.bus.interface import Bus, BusMessage, Engine
from magent2.bus.log import Log
from magent2.bus.operations import CLAIM_LIMIT_MAX, Claim, Operation
from magent2.bus.records import lane_of
from magent2.bus.retry import PERMANENT_ERRORS, retry_while_unavailable
from magent2.bus.v1_adapter import is_engine
from magent2.bus.watch import Watch
from magent2.errors import LimitError
from magent2.mail.lane_loop import leave_bus, renew_lease
from magent2.mail.registration import register_agent
from magent2.models.address import chat_topic, check_name, stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.history import HistoryCache
from magent2.sessions.stream import event_payload
from magent2.worker.lane_run import LaneRun
from magent2.worker.run_attempt import RunServices
from magent2.worker.runner_adapter import Runner, check_event
from magent2.worker.service import LEASE_S, new_worker_id
from magent2.worker.settlement import SETTLED, Outcome
from magent2.worker.webhooks import KnownWebhooks

__all__ = ["Runner", "Worker"]

log = logging.getLogger(__name__)

R = TypeVar("R")

LIMIT = 100  # messages per call of `process_available`
V1_BACKLOG_MAX = 10_000  # messages from before the first read of a v1 bus that are still answered


class Worker:
    """Answers the mail of one agent when `process_available` is called.

    On an engine it claims lanes as `WorkerService` does, under the same rules for settling, retrying and burying. On
    any other object with v1's `publish` and `read`, it publishes exactly what the runner yields, and only this object
    remembers how far it has read.
    """

    def __init__(self, agent_name: str, bus: Bus, runner: Runner, *, lease_s: float = LEASE_S) -> None:
        agent = check_name(agent_name, "agent name")
        self._mailbox: _EngineMailbox | _V1Mailbox
        if is_engine(bus):
            self._mailbox = _EngineMailbox(agent, BlockingEngine(bus), runner, lease_s)
        else:
            self._mailbox = _V1Mailbox(agent, bus, runner)

    def process_available(self, limit: int = LIMIT) -> int:
        """Process up to `limit` messages that are there now. Return how many were settled.

        Works on any thread. If an event loop runs on this thread, it is blocked meanwhile.
        """
        if limit < 1:
            raise LimitError(f"limit must be at least 1, not {limit}")
        return self._mailbox.process(limit)


class _EngineMailbox:
    """The mail of one agent on an engine: claimed, processed and settled lane by lane."""

    def __init__(self, agent: str, bus: Engine, runner: Runner, lease_s: float) -> None:
        self._agent = agent
        self._bus = bus
        self._runner = runner
        self._lease_s = lease_s
        self._worker = new_worker_id()

    def process(self, limit: int) -> int:
        return _run_in_thread(self._process(limit))

    async def _process(self, limit: int) -> int:
        await register_agent(Log(self._bus), self._agent)
        try:
            async with self._lease():
                outcomes = await self._work(limit)
        finally:
            # The event loop ends with this call. A runner closes here what it has opened on it: connections, and
            # processes of Python blocks.
            leave_loop = getattr(self._runner, "leave_loop", None)
            if leave_loop is not None:
                await leave_loop()
        return sum(outcome in SETTLED for outcome in outcomes)

    async def _work(self, limit: int) -> list[Outcome]:
        outcomes: list[Outcome] = []
        webhooks = KnownWebhooks(self._bus)
        while len(outcomes) < limit:
            room = min(limit - len(outcomes), CLAIM_LIMIT_MAX)
            claim = Claim(worker=self._worker, agents=(self._agent,), limit=room, lease_s=self._lease_s)
            claims = await retry_while_unavailable(self._bus, claim, self._worker)
            if claims.lanes:
                await webhooks.update(self._worker)
            for lane in claims.lanes:
                services = RunServices(HistoryCache(self._bus), webhooks=webhooks)
                outcomes.append(await LaneRun(self._bus, lane, self._runner, services=services).work())
            if not claims.lanes and not claims.more:
                break
        return outcomes

    @asynccontextmanager
    async def _lease(self) -> AsyncIterator[None]:
        """Renew the lease until the block ends, then give all lanes back."""
        renewal = asyncio.create_task(
            keep_running(f"{self._worker} lease", self._renew, fatal=PERMANENT_ERRORS), name="magent2-lease"
        )
        try:
            yield
        finally:
            renewal.cancel()
            # A store that only a person can fix fails the work too, so the error is not raised here.
            await asyncio.gather(renewal, return_exceptions=True)
            await leave_bus(self._bus, self._worker)

    async def _renew(self) -> None:
        await asyncio.sleep(self._lease_s / 3)
        await renew_lease(self._bus, self._worker, self._lease_s)


class _V1Mailbox:
    """The mail of one agent on a v1 bus, read by a cursor that lives in this object.

    A message whose runner raises is counted and skipped: what the runner had yielded stays on the stream, the error is
    logged, and the mail after it is answered. If the bus fails, the error is raised, and the next call processes the
    message again.
    """

    def __init__(self, agent: str, bus: Bus, runner: Runner) -> None:
        self._topic = chat_topic(agent)
        self._bus = bus
        self._runner = runner
        self._last_id: str | None = None

    def process(self, limit: int) -> int:
        done = 0
        while done < limit:
            records = self._read(limit - done)
            for record in records:
                envelope = self._parse(record)
                if envelope is not None:
                    topic = stream_topic(envelope.conversation_id)
                    for payload in self._payloads(envelope):
                        self._bus.publish(topic, BusMessage(topic, payload))
                    done += 1
                self._last_id = record.id
                if done == limit:
                    break
            if not records:
                break
        return done

    def _read(self, limit: int) -> list[BusMessage]:
        """Return the next records. Without a cursor a v1 bus returns its last ones, so the first read is a long one."""
        if self._last_id is not None:
            return list(self._bus.read(self._topic, self._last_id, limit))
        records = list(self._bus.read(self._topic, None, V1_BACKLOG_MAX))
        if len(records) == V1_BACKLOG_MAX:
            facts = {"topic": self._topic, "kept": V1_BACKLOG_MAX}
            log.warning("older mail on a v1 bus is not answered", extra=facts)
        return records

    def _parse(self, record: BusMessage) -> MessageEnvelope | None:
        """Return the message to answer, if the record is one."""
        if lane_of(self._topic, record.payload) is None:
            return None
        try:
            envelope = MessageEnvelope.model_validate(record.payload)
        except ValidationError as error:
            faults = error.error_count()
            log.warning("mail cannot be read and is skipped", extra={"id": record.id, "faults": faults})
            return None
        return envelope if envelope.type == "message" else None

    def _payloads(self, envelope: MessageEnvelope) -> Iterator[dict[str, object]]:
        """Yield the events of the runner as JSON until it ends or raises. Errors of the bus are not caught here."""
        try:
            for event in self._runner.stream_run(envelope):
                yield event_payload(check_event(event))
        except Exception as error:  # noqa: BLE001  a runner may raise anything; the mail after it is answered
            log_error("a run failed", error, log, envelope_id=envelope.id)


class BlockingEngine(EngineBase):
    """An engine whose `acall` blocks: for an event loop that runs only one call of a synchronous method.

    An engine may keep connections per event loop. Its synchronous side needs none, so nothing has to be opened and
    closed with every such loop.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def call(self, operation: Operation[R]) -> R:
        return self._engine.call(operation)

    async def acall(self, operation: Operation[R]) -> R:
        return self._engine.call(operation)

    def watch(self, topics: Iterable[str] = ()) -> Watch:
        return self._engine.watch(topics)

    def close(self) -> None:
        self._engine.close()


def _run_in_thread(work: Coroutine[object, None, R]) -> R:
    """Run a coroutine on a thread and an event loop of its own, and wait for it."""
    with ThreadPoolExecutor(1, thread_name_prefix="magent2-worker") as threads:
        return threads.submit(contextvars.copy_context().run, asyncio.run, work).result()
