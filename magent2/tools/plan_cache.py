"""What plans see of the log: what was seen before is not asked for again, and what is held counts as done."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Any, TypeVar

from magent2.bus.flow import Flow
from magent2.bus.operations import Append, Describe, Find, Operation, Read
from magent2.bus.records import TopicInfo
from magent2.errors import AddressError, Magent2Error

R = TypeVar("R")


class Outlook:
    """The log for plans that are to leave together.

    What it remembers is good enough to plan by: the append has the last word, and is planned anew if it is refused.
    """

    __slots__ = ("_heads", "_infos", "_plans", "_seen")

    def __init__(self, held: Iterable[Append] = ()) -> None:
        self._seen: dict[Operation[Any], Any] = {}
        self._infos: dict[tuple[str, ...], tuple[TopicInfo, ...]] = {}
        self._plans: dict[Hashable, Append] = {}
        self._heads: dict[str, dict[str, Any]] = {}  # as those that are held set them
        for append in held:
            self.note(append)

    def through(self, flow: Flow[R]) -> Flow[R]:
        """The same flow, asking only for what was not seen yet."""
        try:
            operation = next(flow)
            while True:
                try:
                    found = yield from self._looking(operation)
                except Magent2Error as error:
                    operation = flow.throw(error)
                else:
                    operation = flow.send(found)
        except StopIteration as end:
            planned: R = end.value
            return planned
        except Magent2Error:
            self.forget()  # whoever tries again is to look again
            raise

    def plan_like(self, kind: Hashable | None) -> Append | None:
        """How another of this kind was planned, if nothing has changed since: it would be again."""
        return None if kind is None else self._plans.get(kind)

    def note(self, append: Append, kind: Hashable | None = None) -> None:
        """It is held: what comes after it goes by what it sets."""
        if not append.heads:
            self._plans.setdefault(kind, append)
            return
        self._plans.clear()
        for head in append.heads:
            self._heads[head.topic] = {**self._heads.get(head.topic, {}), **head.fields}
        for topics, found in self._infos.items():
            self._infos[topics] = tuple(map(self._after, found))

    def forget(self) -> None:
        """Something else has happened since: look again. What is held still counts."""
        self._seen.clear()
        self._infos.clear()
        self._plans.clear()

    def _looking(self, operation: Operation[Any]) -> Flow[Any]:
        if isinstance(operation, Describe):
            return (yield from self._describing(operation))
        if not isinstance(operation, Read | Find):
            return (yield operation)
        known = self._seen.get(operation)
        if known is None:
            known = self._seen[operation] = yield operation
        return known

    def _describing(self, operation: Describe) -> Flow[tuple[TopicInfo, ...]]:
        known = self._infos.get(operation.topics)
        if known is None:
            found: tuple[TopicInfo, ...] = yield operation
            known = self._infos[operation.topics] = tuple(map(self._after, found))
        return known

    def _after(self, info: TopicInfo) -> TopicInfo:
        if info.deleted:
            raise AddressError(f"{info.topic.partition(':')[2]!r} was deleted; send to another conversation")
        fields = self._heads.get(info.topic)
        return replace(info, head={**info.head, **fields}) if fields else info
