"""Waiting for topics on Redis: one SUBSCRIBE connection per event loop, and one loop on a thread for those without."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable

from magent2.bus.redis_engine.connection import ServerAddress, pack
from magent2.bus.redis_engine.functions import Reply
from magent2.bus.redis_engine.pipeline import LoopConnection, on_loop
from magent2.bus.watch import LocalWatch, Watch, WatchHub
from magent2.errors import Magent2Error

LISTEN_AGAIN_S = 1.0  # between series of attempts while the server is away
THREAD_END_S = 5.0
SUBSCRIBE_PAGE = 256  # channels per command after a reconnect
NOTIFICATIONS_KEPT_MAX_BYTES = 64 << 10  # of one topic, until somebody takes them


class NotificationWatch(LocalWatch):
    """A watch that is also handed what notifications of a topic carried since it was last asked."""

    def __init__(self, hub: WatchHub) -> None:
        super().__init__(hub)
        self.news: dict[str, bytes] = {}

    def hear(self, topic: str, news: bytes) -> None:
        """News follow each other; once some are missing or too many, nothing is kept and the topic has to be read."""
        before = self.news.get(topic)
        kept = news if before is None else before + b"\n" + news if before and news else b""
        self.news[topic] = kept if len(kept) <= NOTIFICATIONS_KEPT_MAX_BYTES else b""
        self.wake(topic)


class SubscriberConnection(LoopConnection):
    """The SUBSCRIBE connection of a hub."""

    def __init__(
        self, server: ServerAddress, loop: asyncio.AbstractEventLoop, retry_for_s: float, hub: SubscriptionHub
    ) -> None:
        super().__init__(server, loop, retry_for_s)
        self._hub = hub

    def received(self, reply: Reply) -> None:
        kind, channel, content = reply
        if kind == b"message":
            self._hub.tell(channel, content)
        elif kind == b"subscribe":
            self._hub.listening(channel)

    def connected(self) -> bytes:
        return self._hub.resubscribe()

    def disconnected(self) -> bool:
        return self._hub.lost()

    def gave_up(self, error: Magent2Error) -> None:
        if self._hub.lost() and not self._closed:
            self.loop.call_later(LISTEN_AGAIN_S, self.open)


class SubscriptionHub(WatchHub):
    """Who watches what on one event loop. Its watches may wait on any thread."""

    def __init__(self, server: ServerAddress, prefix: str, loop: asyncio.AbstractEventLoop, retry_for_s: float) -> None:
        super().__init__()
        self._channel_prefix = f"{prefix}:n:"
        self._live: set[str] = set()  # topics that the server is known to tell us of
        self._asked: set[str] = set()
        self._listener = SubscriberConnection(server, loop, retry_for_s, self)

    def watch(self, topics: Iterable[str] = ()) -> NotificationWatch:
        watch = NotificationWatch(self)
        watch.add(*topics)
        return watch

    def close(self) -> None:
        self._listener.close()

    def abandon(self) -> None:
        self._listener.abandon()

    # --- from any thread

    def watch_added(self, watch: LocalWatch, topic: str, first: bool) -> None:
        self._on_loop(self._enter, watch, topic)

    def topic_unwatched(self, topic: str) -> None:
        self._on_loop(self._leave, topic)

    def _on_loop(self, act: Callable[..., None], *arguments: object) -> None:
        loop = self._listener.loop
        if on_loop(loop):
            act(*arguments)
        elif not loop.is_closed():
            loop.call_soon_threadsafe(act, *arguments)

    # --- on the loop

    def _enter(self, watch: LocalWatch, topic: str) -> None:
        if topic in self._live:
            watch.wake(topic)
        elif topic not in self._asked:
            self._asked.add(topic)
            self._listener.write(pack(("SUBSCRIBE", self._channel_prefix + topic)))

    def _leave(self, topic: str) -> None:
        if topic not in self._watches and topic in self._asked:
            self._asked.discard(topic)
            self._live.discard(topic)
            self._listener.write(pack(("UNSUBSCRIBE", self._channel_prefix + topic)))

    def _topic(self, channel: bytes) -> str:
        return channel.decode()[len(self._channel_prefix) :]

    def listening(self, channel: bytes) -> None:
        """From now on nothing is missed; what came before has to be looked for."""
        topic = self._topic(channel)
        if topic in self._asked:
            self._live.add(topic)
            self.notify((topic,))

    def tell(self, channel: bytes, news: bytes) -> None:
        topic = self._topic(channel)
        with self._lock:
            watches = list(self._watches.get(topic, ()))
        for watch in watches:
            if isinstance(watch, NotificationWatch):
                watch.hear(topic, news)
            else:
                watch.wake(topic)

    def resubscribe(self) -> bytes:
        self._asked = set(self.watched())
        channels = [self._channel_prefix + topic for topic in self._asked]
        pages = (channels[start : start + SUBSCRIBE_PAGE] for start in range(0, len(channels), SUBSCRIBE_PAGE))
        return b"".join(pack(("SUBSCRIBE", *page)) for page in pages)

    def lost(self) -> bool:
        """Whether anybody still watches."""
        self._live.clear()
        self._asked = set(self.watched())
        return bool(self._asked)


class EventLoopThread:
    """An event loop on a thread of its own, for watches of threads that have none."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="magent2-redis-watch", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(self.loop.shutdown_default_executor())
        finally:
            self.loop.close()

    def stop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(THREAD_END_S)


class RedisWatch(Watch):
    """Listens where it waits: on the event loop of the task, or, for a thread that blocks, on the bus's own.

    Nothing is missed by beginning only then, because a topic is told once when listening to it has begun.
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

    def take_news(self, topic: str) -> bytes | None:
        """What notifications of the topic have carried, once."""
        return self._local.news.pop(topic, None) if self._local is not None else None

    def close(self) -> None:
        if self._local is not None:
            self._local.close()
            self._local = None
