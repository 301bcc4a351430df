"""Watching topics on Redis: one subscriber connection per event loop, and one more loop for threads without a loop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Executor

import hiredis

from magent2.bus.redis_engine.connection import REPLY_TIMEOUT_S, pack
from magent2.bus.redis_engine.functions import Reply
from magent2.bus.redis_engine.pipeline import LoopConnection, on_loop
from magent2.bus.redis_engine.primary import LogServer
from magent2.bus.watch import LocalWatch, Watch, WatchHub
from magent2.errors import Magent2Error
from magent2.models.address import KIND_MARK

log = logging.getLogger(__name__)

RESUBSCRIBE_AFTER_S = 1.0  # between series of attempts while the server is unavailable
THREAD_END_S = 5.0
SUBSCRIBE_PAGE = 256  # channels per command after a reconnect
NOTIFICATIONS_KEPT_MAX_BYTES = 64 << 10  # per topic, until they are taken
_PING = pack(("PING",))
_PONGS = (b"PONG", [b"pong", b""])  # without and with subscriptions


class NotificationWatch(LocalWatch):
    """A watch that also collects the content of notifications, per topic, until it is taken."""

    def __init__(self, hub: WatchHub) -> None:
        super().__init__(hub)
        self.notifications: dict[str, bytes] = {}

    def notify(self, topic: str, message: bytes) -> None:
        """Add a notification and wake.

        Once one of them is empty or they are too large together, the content is dropped and stays empty until it is
        taken: with a gap in it the topic has to be read anyway.
        """
        before = self.notifications.get(topic)
        kept = message if before is None else before + b"\n" + message if before and message else b""
        self.notifications[topic] = kept if len(kept) <= NOTIFICATIONS_KEPT_MAX_BYTES else b""
        self.wake(topic)


class SubscriberConnection(LoopConnection):
    """The connection in subscriber mode of one hub.

    It asks the server for a sign of life every `REPLY_TIMEOUT_S`: nothing else would tell it that the server is
    suspended or cut off, and that others are served by a new primary.
    """

    def __init__(
        self,
        server: LogServer,
        opener: Executor,
        loop: asyncio.AbstractEventLoop,
        retry_for_s: float,
        hub: SubscriptionHub,
    ) -> None:
        super().__init__(server, opener, loop, retry_for_s)
        self._hub = hub
        self._silent = False  # since the last PING
        self._watchdog: asyncio.TimerHandle | None = None

    def _check_server(self) -> None:
        """Drop the connection if the server has sent nothing since the last PING; else send another."""
        self._watchdog = None
        if self._socket is None or self._closed:
            return
        if self._silent:
            self._lost()
            return
        self._silent = True
        self.write(_PING)
        self._watchdog = self.loop.call_later(REPLY_TIMEOUT_S, self._check_server)

    def _stop_watchdog(self) -> None:
        if self._watchdog is not None:
            self._watchdog.cancel()
            self._watchdog = None

    def received(self, reply: Reply) -> None:
        self._silent = False
        if reply in _PONGS:
            return
        if isinstance(reply, hiredis.ReplyError):
            # No caller waits for a subscription. Its topic is still read in the sweeps of its followers.
            log.error("redis refuses a subscription; changes are noticed late", extra={"error": str(reply)})
            return
        kind, channel, content = reply
        if kind == b"message":
            self._hub.message(channel, content)
        elif kind == b"subscribe":
            self._hub.subscribed(channel)

    def connected(self) -> bytes:
        self._silent = False
        self._stop_watchdog()
        self._watchdog = self.loop.call_later(REPLY_TIMEOUT_S, self._check_server)
        return self._hub.resubscribe()

    def disconnected(self) -> bool:
        self._stop_watchdog()
        return self._hub.lost()

    def gave_up(self, error: Magent2Error) -> None:
        self._stop_watchdog()
        # A watch has no caller that could be told, so it tries again for as long as topics are watched.
        if self._hub.lost() and not self._closed:
            self.loop.call_later(RESUBSCRIBE_AFTER_S, self.open)


class SubscriptionHub(WatchHub):
    """The subscriptions of one event loop, and the watches that need them. Its watches may wait on any thread.

    Subscribing takes time, and records appended meanwhile send no notification to us. A topic is therefore reported as
    changed once its subscription is confirmed, after the first one and after every reconnect.
    """

    def __init__(
        self,
        server: LogServer,
        opener: Executor,
        prefix: str,
        loop: asyncio.AbstractEventLoop,
        retry_for_s: float,
    ) -> None:
        super().__init__()
        self._channel_prefix = f"{prefix}:n:"
        self._requested: set[str] = set()  # topics with a SUBSCRIBE on the current connection
        self._confirmed: set[str] = set()  # those of them that the server has confirmed
        self._connection = SubscriberConnection(server, opener, loop, retry_for_s, self)

    def watch(self, topics: Iterable[str] = ()) -> NotificationWatch:
        watch = NotificationWatch(self)
        watch.add(*topics)
        return watch

    def close(self) -> None:
        self._connection.close()

    def abandon(self) -> None:
        self._connection.abandon()

    # --- from any thread

    def watch_added(self, watch: LocalWatch, topic: str, first: bool) -> None:
        self._on_loop(self._subscribe, watch, topic)

    def topic_unwatched(self, topic: str) -> None:
        self._on_loop(self._unsubscribe, topic)

    def _on_loop(self, act: Callable[..., None], *arguments: object) -> None:
        loop = self._connection.loop
        if on_loop(loop):
            act(*arguments)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(act, *arguments)

    # --- on the loop

    def _subscribe(self, watch: LocalWatch, topic: str) -> None:
        if topic in self._confirmed:
            watch.wake(topic)
        elif topic not in self._requested:
            self._requested.add(topic)
            self._connection.write(pack(("SUBSCRIBE", self._channel_prefix + topic)))

    def _unsubscribe(self, topic: str) -> None:
        # Another watch may have been added to the topic since this call was scheduled.
        if topic not in self._watches and topic in self._requested:
            self._requested.discard(topic)
            self._confirmed.discard(topic)
            self._connection.write(pack(("UNSUBSCRIBE", self._channel_prefix + topic)))

    def _topic(self, channel: bytes) -> str:
        return channel.decode()[len(self._channel_prefix) :]

    def subscribed(self, channel: bytes) -> None:
        """Handle a confirmation: nothing is missed from now on, and earlier records have to be read."""
        topic = self._topic(channel)
        if topic in self._requested:
            self._confirmed.add(topic)
            self.notify((topic,))

    def message(self, channel: bytes, content: bytes) -> None:
        topic = self._topic(channel)
        if topic.endswith(KIND_MARK):  # the message is the name of a topic of this kind
            self.notify((), (content.decode(),))
            return
        with self._lock:
            watches = list(self._watches.get(topic, ()))
        for watch in watches:
            if isinstance(watch, NotificationWatch):
                watch.notify(topic, content)
            else:
                watch.wake(topic)

    def resubscribe(self) -> bytes:
        """The commands that subscribe a new connection to all watched topics."""
        self._requested = set(self.watched())
        channels = [self._channel_prefix + topic for topic in self._requested]
        pages = (channels[start : start + SUBSCRIBE_PAGE] for start in range(0, len(channels), SUBSCRIBE_PAGE))
        return b"".join(pack(("SUBSCRIBE", *page)) for page in pages)

    def lost(self) -> bool:
        """Forget the subscriptions of a lost connection. Returns whether topics are still watched."""
        self._confirmed.clear()
        self._requested = set(self.watched())
        return bool(self._requested)


class EventLoopThread:
    """An event loop on a thread of its own, for watches of threads that have no loop."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="magent2-redis-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
        finally:
            self.loop.close()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(THREAD_END_S)


class RedisWatch(Watch):
    """A watch that subscribes where it waits: on the event loop of the task, or on that of the bus for a thread.

    It subscribes when it first waits, not when it is created: only then it is known which of the two it needs. Nothing
    is missed by that, because a topic is reported once when its subscription is confirmed.
    """

    def __init__(self, loop_hub: Callable[[], SubscriptionHub], thread_hub: Callable[[], SubscriptionHub]) -> None:
        self._loop_hub = loop_hub
        self._thread_hub = thread_hub
        self._topics: dict[str, None] = {}
        self._hub: SubscriptionHub | None = None
        self._local: NotificationWatch | None = None

    def add(self, *topics: str) -> None:
        self._topics.update(dict.fromkeys(topics))
        if self._local is not None:
            self._local.add(*topics)

    def discard(self, *topics: str) -> None:
        for topic in topics:
            self._topics.pop(topic, None)
        if self._local is not None:
            self._local.discard(*topics)

    def wait(self, timeout_s: float | None) -> frozenset[str]:
        return self._on(self._thread_hub()).wait(timeout_s)

    async def changed(self, timeout_s: float | None) -> frozenset[str]:
        return await self._on(self._loop_hub()).changed(timeout_s)

    def _on(self, hub: SubscriptionHub) -> NotificationWatch:
        if self._local is None or self._hub is not hub:
            self.close()
            self._hub, self._local = hub, hub.watch(self._topics)
        return self._local

    def take_notifications(self, topic: str) -> bytes | None:
        """The content of the topic's notifications since the last call; empty if it is not complete."""
        return self._local.notifications.pop(topic, None) if self._local is not None else None

    def close(self) -> None:
        if self._local is not None:
            self._local.close()
            self._local = None
