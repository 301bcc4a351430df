"""Simulated clients: they send messages, repeat them, steer and stop runs, and delete a conversation."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from magent2.bus.log import Log
from magent2.bus.operations import Describe
from magent2.bus.retry import retry_call
from magent2.errors import ConversationBusy, IdConflict, TopicDeleted
from magent2.mail.delivery import SendOptions, deliver
from magent2.mail.headers import STOP
from magent2.models.address import stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.models.run_options import RUN_OPTIONS
from magent2.sessions.busy import interrupt_id, post_if_allowed
from magent2.sessions.store import delete_session
from tests.simulation.calls import CALLS, KINDS, PICK, SUBAGENT_PLANS
from tests.simulation.directory_fixture import SENDER
from tests.simulation.engine_recorder import EngineRecorder
from tests.simulation.faulty_bus import FaultyBus
from tests.simulation.plain_runner import FAILS, KILLS, REFUSES

CONVERSATIONS = ("one", "two", "three")
CLIENTS = 2
MESSAGES = 6
STEERS = 0.8  # share of messages to agents that take steers which are followed by one
INTERRUPTS = 0.15  # share of messages that interrupt the run in progress
REJECTS = 0.15  # share of messages that only an idle conversation accepts
STOPS = 0.4  # share of messages that are followed by a stop of the same or another lane
KILLER = 0.12  # share of worlds with a message that crashes every worker which runs it
BRINGS_TOOL = 0.35  # share of messages with calls that bring a tool and call it too, in worlds with a model
STARTS_SUBAGENT = 0.2  # share of messages that make the agent start a subagent
DELETES = 0.2  # share of worlds in which a conversation is deleted
WHEN_BUSY = "when_busy"  # metadata field: what the client chose, for the audit
POSTING = SendOptions()  # of messages that interrupt or may be rejected
PAUSE_MAX_S = 0.8  # between messages of one client
STOP_MAX_S = 3.0  # after the message
STEER_MAX_S = 2.0
DELETE_MAX_S = 5.0
OWN_TOOLS = {"tools": [{"name": PICK, "parameters": {"type": "object", "properties": {}}}]}


@dataclass(frozen=True)
class AcknowledgedMessage:
    """A message whose delivery was acknowledged."""

    id: str
    agent: str
    conversation: str
    text: str
    unanswerable: bool = False  # the model refuses, or every worker that runs it crashes

    @classmethod
    def of(cls, envelope: MessageEnvelope) -> AcknowledgedMessage:
        agent = envelope.recipient.partition(":")[2]
        unanswerable = bool(envelope.metadata.get(REFUSES) or envelope.metadata.get(KILLS))
        return cls(envelope.id, agent, envelope.conversation_id, envelope.content or "", unanswerable)


class SimulatedClients:
    """The clients of one world, and the messages that were acknowledged to them."""

    def __init__(
        self, recorder: EngineRecorder, rng: random.Random, agents: Sequence[str], hearing: Collection[str]
    ) -> None:
        self.sent: list[AcknowledgedMessage] = []
        self.stops: list[AcknowledgedMessage] = []
        self.rejected: list[AcknowledgedMessage] = []  # messages whose every copy was refused
        self.interrupts: dict[str, str] = {}  # ids of the stops that interrupting messages bring → those messages
        self._recorder = recorder
        self._rng = rng
        self._agents = agents
        self._hearing = hearing
        self._poison = rng.randrange(MESSAGES) if rng.random() < KILLER else None
        self._deletes = rng.random() < DELETES
        self._following: list[asyncio.Task[None]] = []

    async def run(self) -> None:
        """Run all clients until they have sent everything."""
        clients = [self._write(number) for number in range(CLIENTS)]
        await asyncio.gather(*clients, *([self._delete()] if self._deletes else []))
        await asyncio.gather(*self._following)

    async def _write(self, client: int) -> None:
        bus = self.bus()
        for number in range(client, MESSAGES, CLIENTS):
            await asyncio.sleep(self._rng.uniform(0, PAUSE_MAX_S))
            envelope = self._with_mode(self._envelope(number))
            if self._rng.random() < STOPS:
                self._following.append(asyncio.create_task(self._stop(bus, number, envelope)))
            if envelope.recipient.partition(":")[2] in self._hearing and self._rng.random() < STEERS:
                self._following.append(asyncio.create_task(self._steer(bus, number, envelope)))
            if await self._send(bus, envelope):
                self.sent.append(AcknowledgedMessage.of(envelope))

    def _envelope(self, number: int) -> MessageEnvelope:
        return MessageEnvelope(
            id=f"m{number}",
            conversation_id=self._rng.choice(CONVERSATIONS),
            sender="user:ann",
            recipient=f"agent:{self._rng.choice(self._agents)}",
            content=f"message {number} of few"[: self._rng.randint(5, 13)],
            metadata={
                FAILS: self._rng.choice((0, 0, 0, 1, 2)),
                REFUSES: self._rng.random() < 0.1,
                KILLS: number == self._poison,
                CALLS: (calls := self._calls()),
                **({RUN_OPTIONS: OWN_TOOLS} if any(PICK in kinds for kinds in calls) else {}),
            },
        )

    def _with_mode(self, envelope: MessageEnvelope) -> MessageEnvelope:
        """Choose what the message does to a busy conversation. The sender of an interrupt is as unique as its stop."""
        chosen = self._rng.random()
        mode = "interrupt" if chosen < INTERRUPTS else "reject" if chosen < INTERRUPTS + REJECTS else "queue"
        sender = envelope.sender
        if mode == "interrupt":
            stop = interrupt_id(envelope.conversation_id, envelope.id)
            self.interrupts[stop] = envelope.id
            sender = f"user:{stop}"
        metadata = {**envelope.metadata, WHEN_BUSY: mode}
        return envelope.model_copy(update={"sender": sender, "metadata": metadata})

    def _calls(self) -> list[list[str]]:
        if self._rng.random() < STARTS_SUBAGENT:
            return self._rng.choice(SUBAGENT_PLANS)
        turns = [self._rng.choices(KINDS, k=self._rng.randint(1, 3)) for _ in range(self._rng.randint(0, 2))]
        if turns and SENDER in self._agents and self._rng.random() < BRINGS_TOOL:
            self._rng.choice(turns).append(PICK)
        return turns

    async def _steer(self, bus: FaultyBus, number: int, follows: MessageEnvelope) -> None:
        await asyncio.sleep(self._rng.uniform(0, STEER_MAX_S))
        lane = {"conversation_id": follows.conversation_id, "recipient": follows.recipient}
        steer = self._envelope(number).model_copy(update={"id": f"t{number}", **lane})
        if await self._send(bus, steer, SendOptions(steer=True)):
            self.sent.append(AcknowledgedMessage.of(steer))
            self._recorder.counts["steer sent"] += 1

    async def _stop(self, bus: FaultyBus, number: int, follows: MessageEnvelope) -> None:
        """Send a stop. Its sender is unique, so that the log shows which stop ended which run."""
        await asyncio.sleep(self._rng.uniform(0, STOP_MAX_S))
        follows = self._rng.choice((follows, follows, self._envelope(number)))
        stop = MessageEnvelope(
            id=f"s{number}",
            conversation_id=follows.conversation_id,
            sender=f"user:s{number}",
            recipient=follows.recipient,
            type="control",
            content=STOP,
        )
        self._recorder.begun[stop.id] = len(self._recorder.arrived)
        if await self._send(bus, stop):
            self.stops.append(AcknowledgedMessage.of(stop))
            self._recorder.counts["stop sent"] += 1

    async def _delete(self) -> None:
        await asyncio.sleep(self._rng.uniform(0, DELETE_MAX_S))
        bus = self.bus()
        await retry_call(lambda: delete_session(Log(bus), CONVERSATIONS[-1]), "client")

    async def _send(self, bus: FaultyBus, envelope: MessageEnvelope, sending: SendOptions | None = None) -> bool:
        """Send one to three copies at once; return whether the log has accepted all of them."""
        times = self._rng.choice((1, 1, 2, 3))
        if envelope.metadata.get(WHEN_BUSY) == "interrupt":
            self._recorder.begun[interrupt_id(envelope.conversation_id, envelope.id)] = len(self._recorder.arrived)
        taken = await asyncio.gather(*(self._try(bus, envelope, sending) for _ in range(times)))
        if None in taken and True in taken:  # a repeat of an accepted message is not refused
            return await self._deliver(bus, envelope, sending)
        if None in taken and False not in taken:
            self._recorder.counts["refused as busy"] += 1
            self.rejected.append(AcknowledgedMessage.of(envelope))
        return all(taken)

    async def _try(self, bus: FaultyBus, envelope: MessageEnvelope, sending: SendOptions | None) -> bool | None:
        """Send a copy; return whether it was accepted, or `None` if the conversation was busy."""
        try:
            return await self._deliver(bus, envelope, sending)
        except ConversationBusy:
            return None

    async def _deliver(self, bus: FaultyBus, envelope: MessageEnvelope, sending: SendOptions | None) -> bool:
        await asyncio.sleep(self._rng.choice((0.0, self._rng.uniform(0, PAUSE_MAX_S))))
        try:
            await retry_call(lambda: self._append(Log(bus), envelope, sending), "client")
        except TopicDeleted:
            self._recorder.counts["sent too late"] += 1
            return False
        except IdConflict:  # a repeat, after the deletion had erased the first copy
            if not await self._is_deleted(bus, envelope):
                raise
            self._recorder.counts["sent too late"] += 1
            return False
        return True

    async def _append(self, log: Log, envelope: MessageEnvelope, sending: SendOptions | None) -> None:
        mode = "queue" if sending is not None else envelope.metadata.get(WHEN_BUSY)
        if mode == "interrupt":
            await post_if_allowed(log, envelope, POSTING, "interrupt")
        elif mode == "reject":
            await post_if_allowed(log, envelope, POSTING, "reject")
        else:
            await deliver(log, envelope, sending)

    async def _is_deleted(self, bus: FaultyBus, envelope: MessageEnvelope) -> bool:
        state = await retry_call(lambda: bus.acall(Describe((stream_topic(envelope.conversation_id),))), "client")
        return bool(state[0].deleted)

    def bus(self) -> FaultyBus:
        return FaultyBus(self._recorder, self._rng, loses_appends=True)


def by_id(messages: Iterable[AcknowledgedMessage]) -> dict[str, AcknowledgedMessage]:
    return {message.id: message for message in messages}
