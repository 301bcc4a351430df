"""The API keys in use, cached until the log reports a change."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace

from magent2.background import keep_running
from magent2.bus.base import FOLLOW_RETRY_S, FOLLOW_SWEEP_S
from magent2.bus.interface import Engine
from magent2.bus.log import Log
from magent2.bus.operations import Describe
from magent2.bus.records import TopicInfo
from magent2.bus.watch import Watch
from magent2.directory.entity import EntitySnapshot, find_entity
from magent2.directory.keys import KEYS, ApiKey, replace_token, split_credential
from magent2.errors import TopicDeleted, UnknownEntity
from magent2.gateway.access.auth import Identity, WatchedToken
from magent2.gateway.instrumentation import log_key_revoked, log_key_used
from magent2.gateway.limits.rate_limits import UnknownKeyLimit
from magent2.models.address import entity_topic

KNOWN_MAX = 10_000  # keys in the cache
TOKEN_CHECK_S = 1.0  # how often a gateway looks whether its token file has changed
SWEEP_PAGE = 1000  # keys per `Describe` of the sweep
PREFIX = entity_topic(KEYS.name, "")


@dataclass(frozen=True, slots=True)
class KnownKey:
    """A key as of `seq`. A revoked key is cached too, and grants no access."""

    key: ApiKey
    seq: int
    identity: Identity

    @classmethod
    def of(cls, found: EntitySnapshot[ApiKey]) -> KnownKey:
        return cls(found.state, found.seq, Identity(found.state.principal, found.state.id))

    def as_revoked(self) -> KnownKey:
        """Return the key as revoked, after its log was deleted. The time of the revocation is not known."""
        return replace(self, key=replace(self.key, revoked_ms=self.key.revoked_ms or self.key.created_ms))


class KeyCache:
    """API keys by id. A key that is revoked anywhere ends here too, together with its streams.

    Each key is watched before it is read, so that no revocation falls between the two. `end_streams` ends the streams
    of a key and returns their number. A key for which `in_use` is true has a stream and stays in the cache.
    `gateways` is the number of processes that serve the address, which share the limit of unknown keys.
    """

    def __init__(
        self, bus: Engine, end_streams: Callable[[str], int], in_use: Callable[[str], bool], gateways: int = 1
    ) -> None:
        self._bus = bus
        self._end_streams = end_streams
        self._in_use = in_use
        self._known: OrderedDict[str, KnownKey] = OrderedDict()
        self._stale: set[str] = set()  # changed on the log and not read again yet
        self._misses = UnknownKeyLimit(gateways)
        self._watch: Watch | None = None
        self._task: asyncio.Task[None] | None = None

    def known(self, text: str) -> Identity | None:
        """Return the identity of a key from the cache, or `None` if the log must be read. Every request calls this."""
        if not self._is_following:  # so also while no key was ever used
            return None
        parts = split_credential(text)
        found = self._known.get(parts[0]) if parts is not None else None
        if parts is None or found is None or not found.key.opens(parts[1]) or parts[0] in self._stale:
            return None
        self._known.move_to_end(parts[0])
        return found.identity

    async def find(self, text: str, client: str = "") -> Identity | None:
        """Return the identity of a key, or `None` for an unknown key, a wrong secret or a revoked key.

        `client` is the address of the caller: the limit of unknown keys counts per address.
        """
        parts = split_credential(text)
        if parts is None:
            return None
        if not self._is_following:
            self.close()
        known = self._known.get(parts[0])
        if known is None or parts[0] in self._stale:
            known = await self._load(parts[0], client)
        return known.identity if known is not None and known.key.opens(parts[1]) else None

    @property
    def _is_following(self) -> bool:
        """Whether changes are followed. Without, the cache must not be used: a revocation would go unnoticed."""
        return self._task is not None and not self._task.done()

    def has_ended(self, key: str | None) -> bool:
        """Return whether a key was revoked, possibly after its request was admitted."""
        known = self._known.get(key) if key is not None else None
        return known is not None and known.key.revoked_ms is not None

    async def _load(self, key: str, client: str) -> KnownKey | None:
        self._misses.check(client)
        self._follow(KEYS.topic(key))
        first = key not in self._known
        known = await self._read(key)
        if known is None:
            self._misses.count(client)
            self._forget(key)
        elif first and known.key.revoked_ms is None:
            log_key_used(key, known.identity.principal.name)
        return known

    async def _read(self, key: str) -> KnownKey | None:
        """Read a key from the log into the cache. Of two reads that overlap, the one with the higher seq counts."""
        try:
            found = KnownKey.of(await find_entity(Log(self._bus), KEYS, key))
        except (UnknownEntity, TopicDeleted):
            if key in self._known:
                self._known[key] = self._known[key].as_revoked()
            return None
        before = self._known.get(key)
        if before is not None and before.seq > found.seq:
            return before
        self._known[key] = found
        self._make_room()
        return found

    def _make_room(self) -> None:
        for _ in range(len(self._known) - KNOWN_MAX):
            oldest = next(iter(self._known))
            if self._in_use(oldest):
                self._known.move_to_end(oldest)
            else:
                self._forget(oldest)

    def _forget(self, key: str) -> None:
        self._known.pop(key, None)
        if self._watch is not None:
            self._watch.discard(KEYS.topic(key))

    # --- following changes

    def _follow(self, topic: str) -> None:
        if self._watch is None:
            self._watch = self._bus.watch([topic])
            watch = self._watch
            self._task = asyncio.create_task(
                keep_running("follow API keys", lambda: self._read_changes(watch)), name="magent2-keys"
            )
        else:
            self._watch.add(topic)

    def close(self) -> None:
        """Stop following, and clear the cache."""
        if self._task is not None:
            self._task.cancel()
        if self._watch is not None:
            self._watch.close()
        self._watch = self._task = None
        self._known.clear()
        self._stale.clear()

    async def _read_changes(self, watch: Watch) -> None:
        changed = await watch.changed(FOLLOW_RETRY_S if self._stale else FOLLOW_SWEEP_S)
        self._stale.update(topic.removeprefix(PREFIX) for topic in changed)
        await (self._reload_stale() if self._stale else self._sweep())

    async def _reload_stale(self) -> None:
        """Read the stale keys again, and end the streams of revoked ones. Changes meanwhile wait in the watch."""
        for key in tuple(self._stale):
            was_valid = key in self._known and not self.has_ended(key)
            known = await self._read(key)
            self._stale.discard(key)
            if known is None or known.key.revoked_ms is not None:
                streams = self._end_streams(key)
                if was_valid or streams:
                    log_key_revoked(key, streams)

    async def _sweep(self) -> None:
        """Find keys whose change notification was lost. One `Describe` covers many keys."""
        keys = list(self._known)
        for start in range(0, len(keys), SWEEP_PAGE):
            topics = tuple(KEYS.topic(key) for key in keys[start : start + SWEEP_PAGE])
            found: tuple[TopicInfo, ...] = await self._bus.acall(Describe(topics))
            for info in found:
                key = info.topic.removeprefix(PREFIX)
                if (known := self._known.get(key)) is not None and (info.last != known.seq or info.deleted):
                    self._stale.add(key)
        await self._reload_stale()


async def keep_token_registered(bus: Engine, token: WatchedToken) -> None:
    """Register the token of the token file on the log, and replace it there whenever the file changes. Never ends.

    The other gateways of the log then accept the token too.
    """
    registered: str | None = None

    async def check() -> None:
        nonlocal registered
        current = token.token
        if current and current != registered:
            await replace_token(Log(bus), registered, current, token.label)
            registered = current
        await asyncio.sleep(TOKEN_CHECK_S)

    await keep_running("register the token", check)
