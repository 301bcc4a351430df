"""The message bus of one run and its messages: a bounded queue with a cursor per subscriber.

A message is stored once. A message for one subscriber is also in that subscriber's inbox until it is read. Broadcasts
are in one list and have consecutive numbers; the cursor of a subscriber is the number of the last broadcast that it has
read. Numbers only grow, so trimming moves no cursor. Therefore `send`, `has_pending` and `lag` take constant time at
any `maxlen`, and `consume` takes time proportional to what it returns.
"""

from __future__ import annotations

import threading
import uuid
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice

from pydantic import BaseModel, ConfigDict, Field

from magent2.errors import LimitError
from magent2.models.envelope import UtcTime

MAXLEN = 500  # messages
CONTENT_MAX_CHARS = 1_000_000
NAME_MAX_CHARS = 1_000  # of an id, a source, a target
TEMPLATE_STORED_MAX_CHARS = 100_000  # of a template in a message; `templates.py` renders only far shorter ones


class BusMessage(BaseModel):
    """An immutable message from an agent or a user to an agent. Without a target it is a broadcast."""

    model_config = ConfigDict(frozen=True)

    id: str = Field(default_factory=lambda: str(uuid.uuid4()), min_length=1, max_length=NAME_MAX_CHARS)
    content: str = Field(max_length=CONTENT_MAX_CHARS)
    source: str = Field(max_length=NAME_MAX_CHARS)
    target: str | None = Field(default=None, max_length=NAME_MAX_CHARS)
    template: str | None = Field(default=None, max_length=TEMPLATE_STORED_MAX_CHARS)
    timestamp: UtcTime = Field(default_factory=lambda: datetime.now(UTC))

    def render(self) -> str:
        """Apply the template and return the text. Raises `TemplateRefused` for a template that is not allowed."""
        if self.template is None:
            return self.content
        from magent2.context.templates import render  # Jinja2 is slow to import, and few messages need it

        return render(
            self.template,
            {
                "id": self.id,
                "content": self.content,
                "source": self.source,
                "target": self.target,
                "timestamp": self.timestamp.isoformat(),
            },
        )


@dataclass(slots=True)
class _Subscriber:
    cursor: int  # number of the last broadcast that was read
    inbox: deque[BusMessage] = field(default_factory=deque)  # unread messages for this subscriber alone
    after: deque[int] = field(default_factory=deque)  # for each message of the inbox, the last broadcast before it
    lost: int = 0  # messages that were trimmed before they were read; broadcasts since the cursor not included


class MessageBus:
    """Delivers messages between agents, in the order they were sent. Threads and tasks may share a bus.

    A subscriber receives messages that are sent after it subscribed. A full bus drops its oldest message, read or not;
    `lag` counts the messages that a subscriber lost that way. Duplicate ids are detected only while the message with
    that id is on the bus.
    """

    def __init__(self, maxlen: int = MAXLEN) -> None:
        if maxlen < 1:
            raise LimitError(f"maxlen must be at least 1, not {maxlen}; a bus that stores nothing delivers nothing")
        self._maxlen = maxlen
        self._lock = threading.Lock()
        self._queue: deque[BusMessage] = deque()
        self._by_id: dict[str, BusMessage] = {}
        self._broadcasts: deque[BusMessage] = deque()  # the messages of the queue that have no target
        self._latest = 0  # number of the latest broadcast
        self._dropped = 0  # number of the latest broadcast that was removed
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
        """Deliver messages that are sent from now on to this agent. A subscribed agent keeps its cursor."""
        with self._lock:
            self._subscribe(agent_id)

    def unsubscribe(self, agent_id: str) -> None:
        """Stop delivering to this agent and drop its cursor. Does nothing for an agent that is not subscribed."""
        with self._lock:
            self._subscribers.pop(agent_id, None)

    def send(self, message: BusMessage) -> BusMessage:
        """Store the message and return it; return the stored message if one with the same id is on the bus.

        Raises `TemplateRefused` for a new message whose template cannot be rendered.
        """
        with self._lock:
            known = self._by_id.get(message.id)
        if known is not None:  # ignored, whatever else it brings: also a template that would be refused
            return known
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
        """Return the unread messages and mark them as read. An agent that is not subscribed becomes a subscriber."""
        with self._lock:
            subscriber = self._subscribers.get(agent_id)
            if subscriber is None:
                self._subscribe(agent_id)
                return []
            unread = self._unread(subscriber)
            subscriber.lost += self._missed_broadcasts(subscriber)
            subscriber.cursor = self._latest
            subscriber.inbox.clear()
            subscriber.after.clear()
        return unread

    def peek(self, agent_id: str) -> list[BusMessage]:
        """Return the unread messages without marking them as read."""
        with self._lock:
            subscriber = self._subscribers.get(agent_id)
            return [] if subscriber is None else self._unread(subscriber)

    def has_pending(self, agent_id: str) -> bool:
        with self._lock:
            subscriber = self._subscribers.get(agent_id)
            return subscriber is not None and bool(subscriber.inbox or self._unread_broadcasts(subscriber))

    def lag(self, agent_id: str) -> int:
        """Return how many messages were trimmed before the agent read them, since it subscribed."""
        with self._lock:
            subscriber = self._subscribers.get(agent_id)
            return 0 if subscriber is None else subscriber.lost + self._missed_broadcasts(subscriber)

    def clear(self) -> None:
        """Remove all messages and subscribers."""
        self.sweep(keep=())

    def sweep(self, keep: Collection[str] | None = None) -> None:
        """Remove the messages that every subscriber has read or cannot receive.

        With `keep`, all other subscribers are removed first, and the messages that only they could read with them.
        """
        with self._lock:
            if keep is not None:
                self._subscribers = {name: found for name, found in self._subscribers.items() if name in keep}
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
        """Drop the oldest message, and count it as lost for the subscribers that have not read it."""
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

    def _unread_broadcasts(self, subscriber: _Subscriber) -> int:
        """Return how many broadcasts on the bus the subscriber has not read."""
        return self._latest - max(subscriber.cursor, self._dropped)

    def _missed_broadcasts(self, subscriber: _Subscriber) -> int:
        """Return how many broadcasts since the cursor were removed before the subscriber read them."""
        return max(0, self._dropped - subscriber.cursor)

    def _unread(self, subscriber: _Subscriber) -> list[BusMessage]:
        """Return the messages of the inbox and the unread broadcasts, merged in the order they were sent."""
        count = self._unread_broadcasts(subscriber)
        broadcasts = list(islice(reversed(self._broadcasts), count))[
            ::-1
        ]  # from the end, so that the cost does not depend on older broadcasts
        if not broadcasts or not subscriber.inbox:
            return broadcasts or list(subscriber.inbox)
        first, taken = self._latest - count, 0
        merged: list[BusMessage] = []
        for message, after in zip(subscriber.inbox, subscriber.after, strict=True):
            before = max(taken, after - first)
            merged += broadcasts[taken:before]
            merged.append(message)
            taken = before
        return merged + broadcasts[taken:]

    def _sweep(self) -> None:
        subscribers = self._subscribers.values()
        read_by_all = min((subscriber.cursor for subscriber in subscribers), default=self._latest)
        while self._dropped < read_by_all:
            self._broadcasts.popleft()
            self._dropped += 1
        kept = {message.id for subscriber in subscribers for message in subscriber.inbox}
        kept.update(message.id for message in self._broadcasts)
        self._queue = deque(message for message in self._queue if message.id in kept)
        self._by_id = {message.id: message for message in self._queue}
