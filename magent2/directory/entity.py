"""One topic per entity, `entity:{kind}:{id}`: its state is the fold of its records, and there is no other copy.

The first record makes the entity, on condition that there is none; every other is conditional on all before it, so a
decision is never taken on an old state. A kind says how its records fold; all else is here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from magent2.bus.log import Log
from magent2.bus.operations import OLDEST, Append, LastSeqIs
from magent2.bus.records import NewRecord, Page, Record
from magent2.bus.retry import retry_on_conflict
from magent2.errors import ConditionFailed, NameTaken, TopicDeleted, UnknownEntity
from magent2.models.address import check_name, entity_topic

PAGE = 500

E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class EntityKind(Generic[E]):
    """A sort of entity. `begin` reads its first record, `apply` every other."""

    name: str
    begin: Callable[[str, Record], E]
    apply: Callable[[E, Record], E]

    def topic(self, entity: str) -> str:
        return entity_topic(self.name, check_name(entity, f"{self.name} id"))


@dataclass(frozen=True, slots=True)
class EntitySnapshot(Generic[E]):
    """An entity as it stood at `seq`."""

    state: E
    seq: int


async def create_entity(
    log: Log, kind: EntityKind[E], entity: str, facts: Mapping[str, Any], reserving: Sequence[NewRecord] = ()
) -> E:
    """Make an entity; `NameTaken` when there is one of that id.

    `reserving` are the first records of other topics, which go with it or not at all.
    """
    topic = kind.topic(entity)
    records = (NewRecord(topic, dict(facts)), *reserving)
    try:
        await log.append(Append(records=records, conditions=tuple(LastSeqIs(record.topic, 0) for record in records)))
    except (ConditionFailed, TopicDeleted) as error:
        raise NameTaken(f"there is a {kind.name} {entity!r} already, or its name is taken; take another") from error
    found = await find_entity(log, kind, entity)
    return found.state


async def change_entity(
    log: Log, kind: EntityKind[E], entity: str, decide: Callable[[E], Mapping[str, Any] | None]
) -> E:
    """Append what `decide` makes of the state, taken anew when somebody else was quicker; `None` changes nothing."""
    await find_entity(log, kind, entity)  # what nobody has made cannot change
    return await change_or_create_entity(log, kind, entity, lambda state: None if state is None else decide(state))


async def change_or_create_entity(
    log: Log, kind: EntityKind[E], entity: str, decide: Callable[[E | None], Mapping[str, Any] | None]
) -> E:
    """The same for an entity that its first decision makes."""
    topic = kind.topic(entity)

    async def attempt() -> None:
        found = await look_up_entity(log, kind, entity)
        facts = decide(None if found is None else found.state)
        if facts is not None:
            at = LastSeqIs(topic, 0 if found is None else found.seq)
            await log.append(Append(records=(NewRecord(topic, dict(facts)),), conditions=(at,)))

    await retry_on_conflict(attempt, f"{kind.name} {entity!r}")
    return (await find_entity(log, kind, entity)).state


async def look_up_entity(log: Log, kind: EntityKind[E], entity: str) -> EntitySnapshot[E] | None:
    """The entity as it is now, if anybody has made it."""
    try:
        return await find_entity(log, kind, entity)
    except UnknownEntity:
        return None


async def find_entity(log: Log, kind: EntityKind[E], entity: str) -> EntitySnapshot[E]:
    """The entity as it is now; `UnknownEntity` when nobody has made it."""
    topic = kind.topic(entity)
    state: E | None = None
    after = OLDEST
    while True:
        page = await log.read(topic, after, PAGE)
        if page.deleted:
            raise TopicDeleted(f"{kind.name} {entity!r} was deleted")
        state = _folded(kind, entity, state, page)
        after = page.records[-1].seq if page.records else after
        if after >= page.last or not page.records:
            break
    if state is None:
        raise UnknownEntity(f"there is no {kind.name} {entity!r}")
    return EntitySnapshot(state, after)


def _folded(kind: EntityKind[E], entity: str, state: E | None, page: Page) -> E | None:
    for record in page.records:
        if not record.erased:  # what was erased is stated anew by a later one
            state = kind.begin(entity, record) if state is None else kind.apply(state, record)
    return state


async def list_entities(log: Log, kind: EntityKind[E], prefix: str = "") -> list[E]:
    """Every entity of the kind whose id begins so, by its id; one that was deleted meanwhile is left out."""
    names = await list_entity_ids(log, kind, prefix)
    states: list[E] = []
    for name in names:
        found = await look_up_entity(log, kind, name)
        if found is not None:
            states.append(found.state)
    return states


async def list_entity_ids(log: Log, kind: EntityKind[E], prefix: str = "") -> list[str]:
    """The ids that begin so, sorted."""
    start = entity_topic(kind.name, "")
    before: tuple[int, str] | None = None
    names: list[str] = []
    while True:
        page = await log.topics(start + prefix, before=before, limit=PAGE)
        names += [info.topic.removeprefix(start) for info in page.topics]
        before = page.next
        if before is None:
            return sorted(names)
