"""A cache of reads while sends are planned, in which sends that are already held count as sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable
from dataclasses import replace
from typing import Concatenate, ParamSpec, TypeVar, cast

from magent2.bus.log import Log
from magent2.bus.operations import AnyOperation, Append, Describe, Find, Operation, Read
from magent2.bus.records import TopicInfo
from magent2.errors import AddressError, Magent2Error
from magent2.models.json_types import JsonObject

P = ParamSpec("P")
R = TypeVar("R")


class PlanCache:
    """What the plans of sends that leave together have read.

    A cached read may be out of date. That is safe: the append carries its conditions, and the sends are planned again
    if the log refuses it.
    """

    __slots__ = ("_heads", "_infos", "_plans", "_reads")

    def __init__(self, held: Iterable[Append] = ()) -> None:
        self._reads: dict[AnyOperation, object] = {}
        self._infos: dict[tuple[str, ...], tuple[TopicInfo, ...]] = {}
        self._plans: dict[Hashable, Append] = {}
        self._heads: dict[str, JsonObject] = {}  # fields that held sends will set
        for append in held:
            self.note(append)

    async def plan(
        self, log: Log, planning: Callable[Concatenate[Log, P], Awaitable[R]], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run `planning` over a log that answers repeated reads from this cache."""
        try:
            return await planning(_CachedLog(log, self), *args, **kwargs)
        except Magent2Error:
            self.forget()  # the next attempt must read again
            raise

    def plan_like(self, key: Hashable | None) -> Append | None:
        """Return the plan of an earlier send with this key, if nothing that it depends on has changed since."""
        return None if key is None else self._plans.get(key)

    def note(self, append: Append, key: Hashable | None = None) -> None:
        """Count `append` as sent: later plans see the heads that it sets."""
        if not append.heads:
            self._plans.setdefault(key, append)
            return
        self._plans.clear()
        for head in append.heads:
            self._heads[head.topic] = {**self._heads.get(head.topic, {}), **head.fields}
        for topics, found in self._infos.items():
            self._infos[topics] = tuple(map(self._with_held_heads, found))

    def forget(self) -> None:
        """Drop all reads, because the log may have changed. Held sends still count."""
        self._reads.clear()
        self._infos.clear()
        self._plans.clear()

    async def read(self, log: Log, operation: Read | Find) -> object:
        known = self._reads.get(operation)
        if known is None:
            known = self._reads[operation] = await log.run(operation)
        return known

    async def describe(self, log: Log, operation: Describe) -> tuple[TopicInfo, ...]:
        known = self._infos.get(operation.topics)
        if known is None:
            found = await log.run(operation)
            known = self._infos[operation.topics] = tuple(map(self._with_held_heads, found))
        return known

    def _with_held_heads(self, info: TopicInfo) -> TopicInfo:
        if info.deleted:
            raise AddressError(f"{info.topic.partition(':')[2]!r} was deleted; send to another conversation")
        fields = self._heads.get(info.topic)
        return replace(info, head={**info.head, **fields}) if fields else info


class _CachedLog(Log):
    """The log, with reads answered by a `PlanCache`."""

    __slots__ = ("_cache", "_log")

    def __init__(self, log: Log, cache: PlanCache) -> None:
        super().__init__(log.bus)
        self._log = log
        self._cache = cache

    async def run(self, operation: Operation[R]) -> R:
        if isinstance(operation, Describe):
            return cast("R", await self._cache.describe(self._log, operation))
        if isinstance(operation, Read | Find):
            return cast("R", await self._cache.read(self._log, operation))
        return await self._log.run(operation)
