"""Threads and tasks on one bus: nothing is lost but what `lag` says."""

from __future__ import annotations

import asyncio
import threading

import pytest

from magent2.context import BusMessage, MessageBus

MESSAGES = 10_000
SOAK_MESSAGES = 100_000
SENDERS = 4
CONSUMERS = ("main", "other")


class Reader:
    """Consumes until all is sent, then once more."""

    def __init__(self, bus: MessageBus, agent: str, over: threading.Event) -> None:
        self.seen: list[str] = []
        self._bus, self._agent, self._over = bus, agent, over
        bus.subscribe(agent)

    def read(self) -> None:
        while True:
            over = self._over.is_set()
            self.seen += [message.content for message in self._bus.consume(self._agent)]
            if over:
                return


def send_all(bus: MessageBus, sender: int, count: int) -> None:
    """A quarter each; of four messages one is for everybody, one for each consumer, one for nobody."""
    targets = (None, *CONSUMERS, "nobody")
    for number in range(count):
        content = f"{sender}:{number}"
        bus.send(BusMessage.model_construct(id=content, content=content, source="x", target=targets[number % 4]))


@pytest.mark.parametrize("maxlen", [1, 500, MESSAGES])
def test_four_threads_send_and_two_consume_and_nothing_is_lost_but_the_lag(maxlen: int) -> None:
    send_and_consume(maxlen, MESSAGES)


@pytest.mark.soak
@pytest.mark.parametrize("maxlen", [1, 500, SOAK_MESSAGES])
def test_nor_of_a_hundred_thousand(maxlen: int) -> None:
    send_and_consume(maxlen, SOAK_MESSAGES)


def send_and_consume(maxlen: int, messages: int) -> None:
    bus, over = MessageBus(maxlen), threading.Event()
    readers = {agent: Reader(bus, agent, over) for agent in CONSUMERS}
    sending = [threading.Thread(target=send_all, args=(bus, number, messages // SENDERS)) for number in range(SENDERS)]
    reading = [threading.Thread(target=reader.read) for reader in readers.values()]

    for thread in (*reading, *sending):
        thread.start()
    for thread in sending:
        thread.join()
    over.set()
    for thread in reading:
        thread.join()

    for agent, reader in readers.items():
        assert len(reader.seen) + bus.lag(agent) == messages // 2
        assert len(set(reader.seen)) == len(reader.seen)
        for sender in range(SENDERS):
            numbers = [int(seen.split(":")[1]) for seen in reader.seen if seen.startswith(f"{sender}:")]
            assert numbers == sorted(numbers)
        if maxlen == messages:
            assert bus.lag(agent) == 0
    assert len(bus) == maxlen


async def test_tasks_and_a_thread_may_share_a_bus() -> None:
    bus = MessageBus(10_000)
    bus.subscribe("main")

    async def send(sender: int) -> None:
        for number in range(100):
            bus.send(BusMessage(content=f"{sender}:{number}", source="x"))
            await asyncio.sleep(0)

    await asyncio.gather(*(send(number) for number in range(4)), asyncio.to_thread(send_all_of, bus, 4))

    assert len({message.content for message in bus.consume("main")}) == 500


def send_all_of(bus: MessageBus, sender: int) -> None:
    for number in range(100):
        bus.send(BusMessage(content=f"{sender}:{number}", source="x"))
