"""Notifications of commits: between the processes of a log by LISTEN and NOTIFY, within a process directly.

A NOTIFY inside the transaction of an append would take a lock of the whole server at its commit, so all appends to all
databases would wait for each other. Instead one thread of the process sends what has changed, on a connection of its
own, after the commits. A process that dies in between is made up for by a sweep: every process looks now and then at
the topics that it watches.
"""

from __future__ import annotations

import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from hashlib import blake2b

import orjson
from psycopg import sql

from magent2.background import log_error
from magent2.bus.postgres_engine.connection import Connection, PostgresAddress
from magent2.bus.postgres_engine.errors import translate
from magent2.bus.postgres_engine.functions import render
from magent2.bus.postgres_engine.reads import rows
from magent2.bus.record_watch import Changes, RecordHub
from magent2.bus.servers import DELAY_MAX_S, DELAY_MIN_S
from magent2.bus.watch import LocalWatch
from magent2.models.address import KIND_MARK, chat_topic

log = logging.getLogger(__name__)

NOTIFY_PAUSE_S = 0.002  # between two notifications of a process; what changes meanwhile goes with the next one
NOTIFICATION_MAX_BYTES = 7500  # PostgreSQL takes less than 8000
NOTIFICATIONS_MAX = 16  # per sending; if more topics have changed, the others are told to sweep
UNSENT_TOPICS_MAX = 10_000  # likewise, while the server cannot be reached
SWEEP_S = 5.0
SWEEP_OVERLAP_MS = 60_000  # a topic that was listed this long before the last sweep may have been committed after it
TOPICS_PER_SWEEP = 2000  # names in one statement
SWEEP_NOW = ""  # a notification that names no topics

_VERSIONS = "SELECT name, version FROM topics WHERE name = ANY (%s::text[])"
_LISTED = (
    "SELECT name, version FROM topics"
    " WHERE kind = ANY (%(kinds)s::text[]) AND NOT deleted AND active_ms > 0 AND active_ms > %(since)s"
    " UNION ALL SELECT name, version FROM topics"
    " WHERE kind = ANY (%(kinds)s::text[]) AND deleted AND active_ms > %(since)s"
)
_READY = "SELECT DISTINCT agent FROM turns WHERE agent = ANY (%s::text[])"
_NOW = render("SELECT now_ms$v()")


class NotificationHub(RecordHub):
    """The watches of this process. `committed` tells them and the other processes of a commit."""

    def __init__(self, connect: Callable[[], Connection], server: PostgresAddress) -> None:
        super().__init__()
        self._connect = connect
        self._server = server
        self._starting = threading.Lock()
        self._thread: NotificationThread | None = None
        self._closed = False

    def committed(self, changes: Changes, versions: Mapping[str, int]) -> None:
        thread = self._running_thread()
        if thread is not None:
            thread.send(versions, changes)
        self.hand_over(changes)

    def watch_added(self, watch: LocalWatch, topic: str, first: bool) -> None:
        thread = self._running_thread()
        if thread is not None and not thread.is_listening:
            thread.wake()

    def topic_unwatched(self, topic: str) -> None:
        if self._thread is not None:
            self._thread.forget(topic)

    def _running_thread(self) -> NotificationThread | None:
        thread = self._thread  # read without the lock, because every commit comes here
        if thread is None:
            with self._starting:
                thread = self._thread
                if thread is None and not self._closed:
                    thread = self._thread = NotificationThread(self, self._connect, self._server)
        return thread

    def close(self) -> None:
        with self._starting:
            self._closed = True
            thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()


class NotificationThread:
    """Sends and receives the notifications of a process, and sweeps."""

    def __init__(self, hub: NotificationHub, connect: Callable[[], Connection], server: PostgresAddress) -> None:
        self.is_listening = False
        self._connect = connect
        self._hub = hub
        self._server = server
        self._sender = os.urandom(8).hex()  # tells the own notifications from those of others
        self._lock = threading.Lock()
        self._unsent: dict[str, int] = {}  # topic → version; 0 for a lane that became ready
        self._unsent_listed: set[str] = set()
        self._unsent_erasure = False  # whether content of earlier records was removed
        self._too_many = False  # changes to name them all
        self._received: deque[bytes] = deque()
        self._seen: dict[str, int] = {}  # versions of watched topics
        self._listed_seen: dict[str, int] = {}
        self._swept_ms: int | None = None
        self._sweep_at = 0.0
        self._send_at = 0.0
        self._stopping = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._woken = False
        self._thread = threading.Thread(target=self._work, name="magent2-postgres-notify", daemon=True)
        self._thread.start()

    def send(self, versions: Mapping[str, int], changes: Changes) -> None:
        """Note what a commit of this process has changed, for the next notification."""
        with self._lock:
            self._unsent.update(dict.fromkeys(changes.topics, 0))
            self._unsent.update(versions)
            self._unsent_listed |= changes.listed
            self._unsent_erasure |= changes.erased
            if len(self._unsent) > UNSENT_TOPICS_MAX:
                self._unsent, self._unsent_listed, self._too_many = {}, set(), True
            self._note(versions)
        self.wake()

    def _note(self, versions: Mapping[str, int]) -> None:
        """Note versions of topics that are watched. The caller holds the lock."""
        for topic, version in versions.items():
            known = self._seen.get(topic)
            if known is not None and known < version:
                self._seen[topic] = version

    def wake(self) -> None:
        if not self._woken:
            self._woken = True
            try:
                self._wake_out.send(b"\0")
            except BlockingIOError:
                return  # its buffer is full, so the thread will wake up anyway

    def forget(self, topic: str) -> None:
        with self._lock:
            self._seen.pop(topic, None)

    def stop(self) -> None:
        self._stopping = True
        self._woken = False
        self.wake()
        self._thread.join()
        self._wake_in.close()
        self._wake_out.close()

    # --- the thread ---

    def _work(self) -> None:
        delay_s = DELAY_MIN_S
        while not self._stopping:
            try:
                connection = self._connect()
            except Exception as error:  # noqa: BLE001  tried again until the bus is closed
                cause = str(translate(error, str(self._server)))
                log.info("postgres notifications wait for the server", extra={"error": cause})
                self._pause(delay_s)
                delay_s = min(2 * delay_s, DELAY_MAX_S)
                continue
            delay_s = DELAY_MIN_S
            try:
                self._serve(connection)
            except Exception as error:  # noqa: BLE001  likewise
                if not self._stopping:
                    interruption = translate(error, str(self._server))
                    log_error("the notifications of the postgres log were interrupted", interruption)
            finally:
                self.is_listening = False
                connection.close()

    def _pause(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopping and (left := end - time.monotonic()) > 0:
            self._wait_for_wake(left)

    def _wait_for_wake(self, seconds: float) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_in, selectors.EVENT_READ)
            if selector.select(seconds):
                self._drain_wakes()

    def _drain_wakes(self) -> None:
        self._woken = False
        try:
            while self._wake_in.recv(64):
                pass
        except BlockingIOError:
            return

    def _serve(self, connection: Connection) -> None:
        channel = f"magent2_{blake2b(self._server.schema.encode(), digest_size=16).hexdigest()}"
        connection.add_notify_handler(lambda notification: self._received.append(notification.payload.encode()))
        connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
        # Before this, notifications were missed. The server may be another one, which counts from other versions.
        self.is_listening = True
        self._swept_ms = None
        with self._lock:
            self._seen.clear()
        self._hub.drop_kept()
        self._hub.notify_all()
        self._sweep_at = 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_in, selectors.EVENT_READ)
            selector.register(connection.fileno(), selectors.EVENT_READ)
            while not self._stopping:
                self._receive(connection)
                now = time.monotonic()
                has_unsent = bool(self._unsent) or self._unsent_erasure or self._too_many
                if has_unsent and now >= self._send_at:
                    self._send_unsent(connection, channel)
                    self._send_at = time.monotonic() + NOTIFY_PAUSE_S
                    has_unsent = False
                if now >= self._sweep_at:
                    self._sweep(connection)
                    self._sweep_at = time.monotonic() + SWEEP_S
                until = min(self._sweep_at, self._send_at if has_unsent else self._sweep_at)
                if selector.select(max(0.0, until - time.monotonic())):
                    self._drain_wakes()
            self._send_unsent(connection, channel)

    def _receive(self, connection: Connection) -> None:
        connection.pgconn.consume_input()
        while (notification := connection.pgconn.notifies()) is not None:
            self._received.append(notification.extra)
        while self._received:
            sender, _, text = self._received.popleft().partition(b" ")
            if sender == self._sender.encode():
                continue
            if not text:
                self._sweep_at = 0.0
                continue
            changed, listed, erased = orjson.loads(text)
            with self._lock:
                self._note(changed)
            if erased:
                self._hub.drop_kept()
            self._hub.notify(changed, listed)

    def _send_unsent(self, connection: Connection, channel: str) -> None:
        with self._lock:
            unsent, self._unsent = self._unsent, {}
            listed, self._unsent_listed = self._unsent_listed, set()
            erased, self._unsent_erasure = self._unsent_erasure, False
            too_many, self._too_many = self._too_many, False
        if not unsent and not erased and not too_many:
            return
        texts = _notifications(unsent, listed, erased)
        if too_many or len(texts) > NOTIFICATIONS_MAX:
            texts = [SWEEP_NOW, _text({}, set(), erased)]
        connection.execute(
            "SELECT pg_notify(%s, text) FROM unnest(%s::text[]) AS n (text)",
            (channel, [f"{self._sender} {text}" for text in texts]),
            prepare=True,
        )

    def _sweep(self, connection: Connection) -> None:
        """Find the changes of watched topics of which no notification came."""
        watched = self._hub.watched()
        if not watched:
            return
        topics = [topic for topic in watched if not topic.endswith(KIND_MARK)]
        kinds = [topic.removesuffix(KIND_MARK) for topic in watched if topic.endswith(KIND_MARK)]
        changed = self._sweep_topics(connection, topics)
        agents = [topic.removeprefix("chat:") for topic in topics if topic.startswith("chat:")]
        if agents:
            changed.update(chat_topic(agent) for (agent,) in rows(connection, _READY, (agents,)))
        listed = self._sweep_kinds(connection, kinds) if kinds else []
        if changed or listed:
            self._hub.drop_kept()
            self._hub.notify(changed, listed)

    def _sweep_topics(self, connection: Connection, topics: list[str]) -> set[str]:
        found: dict[str, int] = {}
        for start in range(0, len(topics), TOPICS_PER_SWEEP):
            found.update(rows(connection, _VERSIONS, (topics[start : start + TOPICS_PER_SWEEP],)))
        with self._lock:
            changed = {topic for topic, version in found.items() if self._seen.get(topic, -1) < version}
            self._seen.update({topic: found[topic] for topic in changed})
        return changed

    def _sweep_kinds(self, connection: Connection, kinds: list[str]) -> list[str]:
        ((now_ms,),) = rows(connection, _NOW)
        if self._swept_ms is None:  # `notify_all` has reported the kinds
            self._swept_ms = now_ms
        since = self._swept_ms - SWEEP_OVERLAP_MS
        found: dict[str, int] = dict(rows(connection, _LISTED, {"kinds": kinds, "since": since}))
        listed = [topic for topic, version in found.items() if self._listed_seen.get(topic) != version]
        self._listed_seen, self._swept_ms = found, now_ms
        return listed


def _notifications(changed: Mapping[str, int], listed: set[str], erased: bool) -> list[str]:
    """Return the texts that tell of these changes, each short enough for one notification."""
    texts: list[str] = []
    part: dict[str, int] = {}
    size = 0
    for topic, version in changed.items():
        length = 3 * len(topic.encode()) + 32  # its name may be escaped, and be among the listed ones too
        if part and size + length > NOTIFICATION_MAX_BYTES:
            texts.append(_text(part, listed, erased))
            part, size = {}, 0
        part[topic] = version
        size += length
    return [*texts, _text(part, listed, erased)]


def _text(part: Mapping[str, int], listed: set[str], erased: bool) -> str:
    return orjson.dumps([part, [topic for topic in part if topic in listed], erased]).decode()
