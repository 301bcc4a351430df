"""The message bus of one run: a bounded queue, and a cursor for each subscriber.

A message is stored once. What is addressed to one subscriber also stands in its inbox until it is read; what is for
everybody stands in one list of broadcasts, numbered from the first one ever, and a subscriber's cursor is the number of
the last one it has heard. Numbers only grow, so trimming moves nobody's cursor. Hence, at any `maxlen`: `send`,
`has_pending` and `lag` cost the same, and `consume` costs what it returns.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from magent2.context.message import BusMessage
from magent2.errors import LimitError

MAXLEN = 500  # messages


@dataclass(slots=True)
class _Subscriber:
    heard: int  # number of the last broadcast that is read
    inbox: deque[BusMessage] = field(default_factory=deque)  # unread, for this one alone
    after: deque[int] = field(default_factory=deque)  # for each of them, the latest broadcast before it
    lost: int = 0  # trimmed before they were read, and counted


class MessageBus:
    """Messages between agents, in the order they were sent. Threads and tasks may share one.

    Subscribers see what is sent after they subscribed. A full bus drops its oldest message, read or not: `lag` says how
    many a subscriber has lost that way. An id is known while its message is on the bus, and not longer.
    """

    def __init__(self, maxlen: int = MAXLEN) -> None:
        if maxlen < 1:
            raise LimitError(f"maxlen must be at least 1, not {maxlen}: a bus that keeps nothing delivers nothing")
        self._maxlen = maxlen
        self._lock = threading.Lock()
        self._queue: deque[BusMessage] = deque()
        self._by_id: dict[str, BusMessage] = {}
        self._broadcasts: deque[BusMessage] = deque()  # those of the queue that are for everybody
        self._latest = 0  # number of the latest broadcast
        self._dropped = 0  # number of the latest broadcast that is no longer here
        self._subscribers: dict[str, _Subscriber] = {}

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def maxlen(self) -> int:
        return self._maxlen

    @property
    def subscribers(self) -> tuple[str, ...]:
        with self._lock:
            return tuple(self._subscribers)

    def subscribe(self, agent_id: str) -> None:
        """Deliver to this agent whatever is sent from now on. One that has subscribed keeps its place."""
        with self._lock:
            self._subscribe(agent_id)

    def unsubscribe(self, agent_id: str) -> None:
        """Deliver no more to this agent, and forget its place. A stranger's leaving is no error."""
        with self._lock:
            self._subscribers.pop(agent_id, None)

    def send(self, message: BusMessage) -> BusMessage:
        """Store the message and return it, or return the one that is here under its id. A bad template is refused."""
        if message.template is not None:
            from magent2.context.templates import check_template

            check_template(message.template)
        with self._lock:
            known = self._by_id.get(message.id)
            if known is not None:
                return known
            if len(self._queue) >= self._maxlen:
                self._trim()
            self._store(message)
        return message

    def consume(self, agent_id: str) -> list[BusMessage]:
        """The unread messages, which are read from then on. A stranger is subscribed, and has none yet."""
        with self._lock:
            subscriber = self._subscribers.get(agent_id)
            if subscriber is None:
                self._subscribe(agent_id)
                return []
            unread = self._unread(subscriber)
            subscriber.lost += self._missed(subscriber)
            subscriber.heard = self._latest
            subscriber.inbox.clear()
            subscriber.after.clear()
        return unread

    def peek(self, agent_id: str) -> list[BusMessage]:
        """The unread messages, which stay unread."""
        with self._lock:
            subscriber = self._subscribers.get(agent_id)
            return [] if subscriber is None else self._unread(subscriber)

    def has_pending(self, agent_id: str) -> bool:
        with self._lock:
            subscriber = self._subscribers.get(agent_id)
            return subscriber is not None and bool(subscriber.inbox or self._waiting(subscriber))

    def lag(self, agent_id: str) -> int:
        """How many messages were trimmed, since the agent subscribed, before it had read them."""
        with self._lock:
            subscriber = self._subscribers.get(agent_id)
            return 0 if subscriber is None else subscriber.lost + self._missed(subscriber)

    def clear(self) -> None:
        """Remove all messages and subscribers."""
        with self._lock:
            self._subscribers.clear()
            self._sweep()

    def sweep(self) -> None:
        """Remove the messages that no subscriber can still read. Nobody loses any by it."""
        with self._lock:
            self._sweep()

    def _subscribe(self, agent_id: str) -> None:
        if agent_id not in self._subscribers:
            self._subscribers[agent_id] = _Subscriber(self._latest)

    def _store(self, message: BusMessage) -> None:
        self._queue.append(message)
        self._by_id[message.id] = message
        if message.target is None:
            self._broadcasts.append(message)
            self._latest += 1
        elif (subscriber := self._subscribers.get(message.target)) is not None:
            subscriber.inbox.append(message)
            subscriber.after.append(self._latest)

    def _trim(self) -> None:
        """Drop the oldest message, and count it as lost to whoever had not read it."""
        message = self._queue.popleft()
        del self._by_id[message.id]
        if message.target is None:
            self._broadcasts.popleft()
            self._dropped += 1
            return
        subscriber = self._subscribers.get(message.target)
        if subscriber is not None and subscriber.inbox and subscriber.inbox[0] is message:
            subscriber.inbox.popleft()
            subscriber.after.popleft()
            subscriber.lost += 1

    def _waiting(self, subscriber: _Subscriber) -> int:
        """How many broadcasts are here that the subscriber has not heard."""
        return self._latest - max(subscriber.heard, self._dropped)

    def _missed(self, subscriber: _Subscriber) -> int:
        """How many broadcasts are gone that the subscriber has not heard, and that are not counted yet."""
        return max(0, self._dropped - subscriber.heard)

    def _unread(self, subscriber: _Subscriber) -> list[BusMessage]:
        """Own messages and broadcasts in the order they were sent."""
        count = self._waiting(subscriber)
        heard = list(islice(reversed(self._broadcasts), count))[::-1]  # from the end: no other is looked at
        if not heard or not subscriber.inbox:
            return heard or list(subscriber.inbox)
        first, taken = self._latest - count, 0
        merged: list[BusMessage] = []
        for message, after in zip(subscriber.inbox, subscriber.after, strict=True):
            before = max(taken, after - first)
            merged += heard[taken:before]
            merged.append(message)
            taken = before
        return merged + heard[taken:]

    def _sweep(self) -> None:
        subscribers = self._subscribers.values()
        heard = min((subscriber.heard for subscriber in subscribers), default=self._latest)
        while self._dropped < heard:
            self._broadcasts.popleft()
            self._dropped += 1
        kept = {message.id for subscriber in subscribers for message in subscriber.inbox}
        kept.update(message.id for message in self._broadcasts)
        self._queue = deque(message for message in self._queue if message.id in kept)
        self._by_id = {message.id: message for message in self._queue}
