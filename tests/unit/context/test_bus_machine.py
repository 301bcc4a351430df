"""The message bus beside a plain one that looks through everything."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from magent2.context import BusMessage, MessageBus

AGENTS = ("main", "a-0001", "b-0002")
IDS = tuple("abcdefgh")


class PlainBus:
    """Every message ever sent, and for each subscriber the numbers that it has read."""

    def __init__(self, maxlen: int) -> None:
        self.maxlen = maxlen
        self.sent: list[BusMessage] = []
        self.here: list[int] = []  # numbers in the queue
        self.since: dict[str, int] = {}
        self.read: dict[str, set[int]] = {}

    def subscribe(self, agent: str) -> None:
        if agent not in self.since:
            self.since[agent] = len(self.sent)
            self.read[agent] = set()

    def unsubscribe(self, agent: str) -> None:
        self.since.pop(agent, None)

    def send(self, message: BusMessage) -> BusMessage:
        for number in self.here:
            if self.sent[number].id == message.id:
                return self.sent[number]
        self.here = [*self.here, len(self.sent)][-self.maxlen :]
        self.sent.append(message)
        return message

    def addressed(self, agent: str) -> list[int]:
        if agent not in self.since:
            return []
        later = range(self.since[agent], len(self.sent))
        return [n for n in later if n not in self.read[agent] and self.sent[n].target in (None, agent)]

    def unread(self, agent: str) -> list[BusMessage]:
        return [self.sent[number] for number in self.addressed(agent) if number in self.here]

    def lag(self, agent: str) -> int:
        return sum(number not in self.here for number in self.addressed(agent))

    def consume(self, agent: str) -> list[BusMessage]:
        unread = self.unread(agent)
        self.subscribe(agent)
        self.read[agent].update(number for number in self.addressed(agent) if number in self.here)
        return unread

    def sweep(self) -> None:
        wanted = {number for agent in self.since for number in self.addressed(agent)}
        self.here = [number for number in self.here if number in wanted]

    def clear(self) -> None:
        self.since.clear()
        self.here = []


class BusMachine(RuleBasedStateMachine):
    @initialize(maxlen=st.integers(1, 6))
    def open(self, maxlen: int) -> None:
        self.bus = MessageBus(maxlen)
        self.plain = PlainBus(maxlen)
        self.number = 0
        for agent in AGENTS:
            self.subscribe(agent)

    @rule(agent=st.sampled_from(AGENTS))
    def subscribe(self, agent: str) -> None:
        self.bus.subscribe(agent)
        self.plain.subscribe(agent)

    @rule(agent=st.sampled_from(AGENTS), back=st.booleans())
    def leave(self, agent: str, back: bool) -> None:
        self.bus.unsubscribe(agent)
        self.plain.unsubscribe(agent)
        if back:
            self.subscribe(agent)

    @rule(name=st.sampled_from(IDS), to=st.sampled_from((*AGENTS, None, None, "nobody")), count=st.integers(1, 3))
    def send(self, name: str, to: str | None, count: int) -> None:
        for _ in range(count):
            self.number += 1
            message = BusMessage(id=name, content=str(self.number), source="x", target=to)
            assert self.bus.send(message) is self.plain.send(message)

    @rule(first=st.sampled_from(AGENTS), names=st.permutations(IDS))
    def send_own_and_common(self, first: str, names: list[str]) -> None:
        """What has to be put in order again when it is read."""
        for name, to in zip(names, (first, None, first), strict=False):
            self.send(name, to, 1)

    @rule(agent=st.sampled_from(AGENTS))
    def consume(self, agent: str) -> None:
        assert self.bus.consume(agent) == self.plain.consume(agent)

    @rule(everything=st.integers(0, 5).map(lambda chance: chance == 5))
    def tidy(self, everything: bool) -> None:
        for bus in (self.bus, self.plain):
            if everything:
                bus.clear()
            else:
                bus.sweep()

    @invariant()
    def both_say_the_same(self) -> None:
        assert len(self.bus) == len(self.plain.here)
        assert set(self.bus.subscribers) == set(self.plain.since)
        for agent in AGENTS:
            assert self.bus.peek(agent) == self.plain.unread(agent)
            assert self.bus.has_pending(agent) == bool(self.plain.unread(agent))
            assert self.bus.lag(agent) == self.plain.lag(agent)


BusMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40)
TestMessageBus = BusMachine.TestCase
