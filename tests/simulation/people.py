"""Those who write: they send mail, send it twice, stop what they have begun, and delete a conversation."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from magent2.bus.log import Log
from magent2.bus.operations import Describe
from magent2.bus.retry import retry_call
from magent2.errors import IdConflict, TopicDeleted
from magent2.mail.delivery import SendOptions, deliver
from magent2.models.address import stream_topic
from magent2.models.envelope import MessageEnvelope
from magent2.sessions.store import delete_session
from magent2.worker.lane_plan import STOP
from tests.simulation.calls import CALLS, FAMILIES, KINDS
from tests.simulation.ledger import Ledger
from tests.simulation.line import Line
from tests.simulation.moods import FAILS, KILLS, REFUSES

CONVERSATIONS = ("one", "two", "three")
CLIENTS = 2
MESSAGES = 6
STEERS = 0.8  # how often a message to an agent that hears them is followed by a steer to its lane
STOPS = 0.4  # how often a message is followed by a stop, to its lane or to another
POISON = 0.12  # how often there is a message that kills whoever runs it
FAMILY = 0.2  # how often a message makes whoever hears it start another agent
DELETES = 0.2  # how often a conversation is deleted
PAUSE_MAX_S = 0.8  # between messages of one client
STOP_MAX_S = 3.0  # after the message that it follows
STEER_MAX_S = 2.0
DELETE_MAX_S = 5.0


@dataclass(frozen=True)
class Sent:
    """A message whose delivery was acknowledged."""

    id: str
    agent: str
    conversation: str
    text: str
    hopeless: bool = False  # the model will say no, or nobody will survive it

    @classmethod
    def of(cls, envelope: MessageEnvelope) -> Sent:
        agent = envelope.recipient.partition(":")[2]
        hopeless = bool(envelope.metadata.get(REFUSES) or envelope.metadata.get(KILLS))
        return cls(envelope.id, agent, envelope.conversation_id, envelope.content or "", hopeless)


class People:
    """Clients of one world, and what was acknowledged to them."""

    def __init__(self, ledger: Ledger, dice: random.Random, agents: Sequence[str], hearing: Collection[str]) -> None:
        self.sent: list[Sent] = []
        self.stops: list[Sent] = []
        self._ledger = ledger
        self._dice = dice
        self._agents = agents
        self._hearing = hearing
        self._poison = dice.randrange(MESSAGES) if dice.random() < POISON else None
        self._deletes = dice.random() < DELETES
        self._following: list[asyncio.Task[None]] = []

    async def live(self) -> None:
        """Until all have written what they had to write."""
        clients = [self._write(number) for number in range(CLIENTS)]
        await asyncio.gather(*clients, *([self._delete()] if self._deletes else []))
        await asyncio.gather(*self._following)

    async def _write(self, client: int) -> None:
        line = self.line()
        for number in range(client, MESSAGES, CLIENTS):
            await asyncio.sleep(self._dice.uniform(0, PAUSE_MAX_S))
            envelope = self._envelope(number)
            if self._dice.random() < STOPS:
                self._following.append(asyncio.create_task(self._stop(line, number, envelope)))
            if envelope.recipient.partition(":")[2] in self._hearing and self._dice.random() < STEERS:
                self._following.append(asyncio.create_task(self._steer(line, number, envelope)))
            if await self._send(line, envelope):
                self.sent.append(Sent.of(envelope))

    def _envelope(self, number: int) -> MessageEnvelope:
        return MessageEnvelope(
            id=f"m{number}",
            conversation_id=self._dice.choice(CONVERSATIONS),
            sender="user:ann",
            recipient=f"agent:{self._dice.choice(self._agents)}",
            content=f"message {number} of few"[: self._dice.randint(5, 13)],
            metadata={
                FAILS: self._dice.choice((0, 0, 0, 1, 2)),
                REFUSES: self._dice.random() < 0.1,
                KILLS: number == self._poison,
                CALLS: self._calls(),
            },
        )

    def _calls(self) -> list[list[str]]:
        if self._dice.random() < FAMILY:
            return self._dice.choice(FAMILIES)
        return [self._dice.choices(KINDS, k=self._dice.randint(1, 3)) for _ in range(self._dice.randint(0, 2))]

    async def _steer(self, line: Line, number: int, follows: MessageEnvelope) -> None:
        await asyncio.sleep(self._dice.uniform(0, STEER_MAX_S))
        lane = {"conversation_id": follows.conversation_id, "recipient": follows.recipient}
        steer = self._envelope(number).model_copy(update={"id": f"t{number}", **lane})
        if await self._send(line, steer, SendOptions(steer=True)):
            self.sent.append(Sent.of(steer))
            self._ledger.counts["steer sent"] += 1

    async def _stop(self, line: Line, number: int, follows: MessageEnvelope) -> None:
        """Named by its sender, so that the log tells which stop has stopped what."""
        await asyncio.sleep(self._dice.uniform(0, STOP_MAX_S))
        follows = self._dice.choice((follows, follows, self._envelope(number)))
        stop = MessageEnvelope(
            id=f"s{number}",
            conversation_id=follows.conversation_id,
            sender=f"user:s{number}",
            recipient=follows.recipient,
            type="control",
            content=STOP,
        )
        self._ledger.begun[stop.id] = len(self._ledger.arrived)
        if await self._send(line, stop):
            self.stops.append(Sent.of(stop))
            self._ledger.counts["stop sent"] += 1

    async def _delete(self) -> None:
        await asyncio.sleep(self._dice.uniform(0, DELETE_MAX_S))
        line = self.line()
        await retry_call(lambda: delete_session(Log(line), CONVERSATIONS[-1]), "client")

    async def _send(self, line: Line, envelope: MessageEnvelope, sending: SendOptions | None = None) -> bool:
        """Once or several times at once; whether the log has taken it."""
        times = self._dice.choice((1, 1, 2, 3))
        taken = await asyncio.gather(*(self._deliver(line, envelope, sending) for _ in range(times)))
        return all(taken)

    async def _deliver(self, line: Line, envelope: MessageEnvelope, sending: SendOptions | None) -> bool:
        await asyncio.sleep(self._dice.choice((0.0, self._dice.uniform(0, PAUSE_MAX_S))))
        try:
            await retry_call(lambda: deliver(Log(line), envelope, sending), "client")
        except TopicDeleted:
            self._ledger.counts["sent too late"] += 1
            return False
        except IdConflict:  # a repeat, after the deletion had erased what the first was
            if not await self._is_deleted(line, envelope):
                raise
            self._ledger.counts["sent too late"] += 1
            return False
        return True

    async def _is_deleted(self, line: Line, envelope: MessageEnvelope) -> bool:
        state = await retry_call(lambda: line.acall(Describe((stream_topic(envelope.conversation_id),))), "client")
        return bool(state[0].deleted)

    def line(self) -> Line:
        return Line(self._ledger, self._dice, loses_appends=True)


def by_id(messages: Iterable[Sent]) -> dict[str, Sent]:
    return {message.id: message for message in messages}
