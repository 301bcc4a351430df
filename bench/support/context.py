"""The cost of the message bus inside a run: sending, checking, reading and rendering."""

from __future__ import annotations

import gc
import threading
import time
import tracemalloc
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Protocol

from bench.support.report import Pair, Stopwatch, paired
from magent2.context import AgentContext, BusMessage, MessageBus
from magent2.context.inject import InjectedMessages, InputItem

OTHERS = "other"
READER = "main"
BATCHES = 10  # per turn, or the turn would be over before it is warm
TEMPLATE = "[{{ source | upper }}] {% if target %}to you: {% endif %}{{ content }}"


@dataclass(frozen=True, slots=True)
class ContextScale:
    """How much is done per measurement."""

    rounds: int
    small: int  # length of a short queue
    large: int  # length of a long one
    sends: int
    looks: int
    injected: int
    sized: int
    subscribers: int


FULL = ContextScale(
    rounds=5, small=500, large=100_000, sends=100_000, looks=20_000, injected=100, sized=20_000, subscribers=50
)
QUICK = ContextScale(rounds=1, small=50, large=1_000, sends=1_000, looks=200, injected=100, sized=500, subscribers=5)


class Sends(Protocol):
    def send(self, message: BusMessage) -> object: ...


class Floor:
    """The smallest bounded, idempotent queue: a lock, a deque and a dict."""

    def __init__(self, maxlen: int) -> None:
        self._maxlen = maxlen
        self._lock = threading.Lock()
        self._queue: deque[BusMessage] = deque()
        self._known: dict[str, BusMessage] = {}

    def send(self, message: BusMessage) -> BusMessage:
        with self._lock:
            if message.id in self._known:
                return self._known[message.id]
            if len(self._queue) >= self._maxlen:
                del self._known[self._queue.popleft().id]
            self._queue.append(message)
            self._known[message.id] = message
        return message


def messages(count: int, targets: Sequence[str | None]) -> list[BusMessage]:
    return [
        BusMessage(content=f"message {number}", source="user", target=targets[number % len(targets)])
        for number in range(count)
    ]


# --- time --------------------------------------------------------------------------------------------------------


def full_sends(maxlen: int, scale: ContextScale) -> Pair:
    """Seconds for sends to a full queue, ours and the floor's, in turns.

    Of three messages, one is a broadcast, one is for a subscriber that never reads, one has no subscriber.
    """
    before = messages(maxlen, (None, READER, OTHERS))
    sent = messages(scale.sends, (None, READER, OTHERS))

    def measured(bus: Sends) -> float:
        for message in before:
            bus.send(message)
        with Stopwatch() as watch:
            for message in sent:
                bus.send(message)
        return watch.seconds

    def ours() -> float:
        bus = MessageBus(maxlen)
        bus.subscribe(READER)
        return measured(bus)

    measured(Floor(maxlen)), ours()
    return paired((ours(), measured(Floor(maxlen))) for _ in range(scale.rounds))


def crowded(scale: ContextScale) -> tuple[MessageBus, list[BusMessage]]:
    """A bus full of messages for others, all sent after the reader subscribed."""
    bus = MessageBus(scale.large + scale.looks)
    bus.subscribe(READER)
    bus.subscribe(OTHERS)
    for message in (sent := messages(scale.large, (OTHERS,))):
        bus.send(message)
    return bus, sent


def has_pending_us(scale: ContextScale) -> float:
    bus, _ = crowded(scale)
    return _median_us(lambda: bus.has_pending(READER), scale)


def duplicate_send_us(scale: ContextScale) -> float:
    """The highest cost among the oldest, the middle and the newest message."""
    bus, sent = crowded(scale)
    return max(
        _median_us(lambda known=known: bus.send(known), scale)  # type: ignore[misc]
        for known in (sent[0], sent[len(sent) // 2], sent[-1])
    )


def consume_own_us(scale: ContextScale) -> float:
    """Read one own message that is queued after all others; only the read is timed."""
    bus, _ = crowded(scale)
    turns: list[float] = []
    for _ in range(scale.rounds):
        taken = 0.0
        for message in messages(max(1, scale.looks // scale.rounds), (READER,)):
            bus.send(message)
            begun = time.perf_counter()
            bus.consume(READER)
            taken += time.perf_counter() - begun
        turns.append(taken / max(1, scale.looks // scale.rounds))
    return median(turns) * 1e6


def inject_ms(scale: ContextScale) -> float:
    """From the bus to the items of a request, each message through a template."""
    conversation: list[InputItem] = [{"role": "user", "content": "go"}] * 20
    turns: list[float] = []
    for _ in range(scale.rounds + 1):  # the first one warms up
        waiting = [_steered(scale.injected) for _ in range(BATCHES)]
        with Stopwatch() as watch:
            shown = [_shown(ctx, conversation) for ctx in waiting]
        if any(len(items) != scale.injected + len(conversation) for items in shown):
            raise RuntimeError("not every message was shown")
        turns.append(watch.seconds / BATCHES * 1e3)
    return median(turns[1:])


def _steered(count: int) -> AgentContext:
    """An agent with so many messages to read."""
    ctx = AgentContext()
    ctx.subscribe()
    for message in messages(count, (READER, None)):
        ctx.send_message(message.model_copy(update={"template": TEMPLATE}))
    return ctx


def _shown(ctx: AgentContext, conversation: Sequence[InputItem]) -> list[InputItem]:
    injected = InjectedMessages()
    injected.add(ctx.consume_messages(), len(conversation))
    return injected.apply(conversation)


def _median_us(act: Callable[[], object], scale: ContextScale) -> float:
    turns: list[float] = []
    for _ in range(scale.rounds):
        with Stopwatch() as watch:
            for _ in range(scale.looks):
                act()
        turns.append(watch.seconds / scale.looks)
    return median(turns) * 1e6


# --- space -------------------------------------------------------------------------------------------------------


def bytes_per_message(scale: ContextScale) -> float:
    """A message and its place on the bus."""
    return _bytes_of(scale.sized, (None,), 0, scale) / scale.sized


def bytes_per_delivery(scale: ContextScale) -> float:
    """Bytes per unread message and recipient: the larger of direct messages and broadcasts."""
    names = [f"agent-{number}" for number in range(scale.subscribers)]
    alone = _bytes_of(scale.sized, (None,), 0, scale)
    broadcast = (_bytes_of(scale.sized, (None,), scale.subscribers, scale) - alone) / (scale.sized * scale.subscribers)
    unread = _bytes_of(scale.sized, names, scale.subscribers, scale) - _bytes_of(scale.sized, names, 0, scale)
    return max(broadcast, unread / scale.sized)


def _bytes_of(count: int, targets: Sequence[str | None], subscribers: int, scale: ContextScale) -> float:
    turns: list[float] = []
    for _ in range(scale.rounds):
        gc.collect()
        tracemalloc.start()
        bus = MessageBus(count)
        for number in range(subscribers):
            bus.subscribe(f"agent-{number}")
        for message in messages(count, targets):
            bus.send(message)
        del message
        gc.collect()
        turns.append(tracemalloc.get_traced_memory()[0])
        tracemalloc.stop()
    return median(turns)
