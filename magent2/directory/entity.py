"""Entities of the directory: one topic per entity, `entity:{kind}:{id}`, whose records fold into its state.

The first record creates the entity on condition that the topic is empty. Every later record is conditional on the last
seq, so no decision is based on an old state. An `EntityKind` defines how records fold.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from magent2.bus.log import Log
from magent2.bus.operations import OLDEST, Append, LastSeqIs
from magent2.bus.records import NewRecord, Page, Record
from magent2.bus.retry import retry_on_conflict
from magent2.errors import ConditionFailed, NameTaken, TopicDeleted, UnknownEntity
from magent2.models.address import check_name, entity_topic

PAGE = 500
IDS_PAGE = 2000  # a page of ids costs as much as all ids with the prefix: few large pages
KEY_BYTES = 16  # of the key that makes the names of an entity's lanes or conversations hard to guess

E = TypeVar("E")

# The record to append to an entity: the name of the `event` and its fields. `None` means no change.
EntityChange: TypeAlias = Mapping[str, object] | None


@dataclass(frozen=True, slots=True)
class EntityKind(Generic[E]):
    """A kind of entity. `begin` folds its first record, `apply` every later one."""

    name: str
    begin: Callable[[str, Record], E]
    apply: Callable[[E, Record], E]

    def topic(self, entity: str) -> str:
        return entity_topic(self.name, check_name(entity, f"{self.name} id"))


@dataclass(frozen=True, slots=True)
class EntitySnapshot(Generic[E]):
    """The state of an entity at `seq`."""

    state: E
    seq: int


async def create_entity(
    log: Log, kind: EntityKind[E], entity: str, facts: Mapping[str, object], reserving: Sequence[NewRecord] = ()
) -> E:
    """Create an entity. Raises `NameTaken` if the id exists.

    `reserving` are the first records of other topics. They are written in the same append, on the same condition.
    """
    topic = kind.topic(entity)
    records = (NewRecord(topic, dict(facts)), *reserving)
    try:
        await log.append(Append(records=records, conditions=tuple(LastSeqIs(record.topic, 0) for record in records)))
    except (ConditionFailed, TopicDeleted) as error:
        raise NameTaken(f"{kind.name} {entity!r} exists, or its name is taken; choose another") from error
    found = await find_entity(log, kind, entity)
    return found.state


async def change_entity(log: Log, kind: EntityKind[E], entity: str, decide: Callable[[E], EntityChange]) -> E:
    """Append what `decide` returns for the current state, retrying on conflict."""
    await find_entity(log, kind, entity)  # raises `UnknownEntity`
    return await change_or_create_entity(log, kind, entity, lambda state: None if state is None else decide(state))


async def change_or_create_entity(
    log: Log, kind: EntityKind[E], entity: str, decide: Callable[[E | None], EntityChange]
) -> E:
    """Like `change_entity`, but `decide` gets `None` and creates the entity if it does not exist."""
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
    """Return the entity as it is now, or `None` if it does not exist."""
    try:
        return await find_entity(log, kind, entity)
    except UnknownEntity:
        return None


async def find_entity(log: Log, kind: EntityKind[E], entity: str) -> EntitySnapshot[E]:
    """Return the entity as it is now. Raises `UnknownEntity` if it does not exist, `TopicDeleted` if it was deleted."""
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
        if not record.erased:  # a later record repeats what an erased one said
            state = kind.begin(entity, record) if state is None else kind.apply(state, record)
    return state


async def list_entities(log: Log, kind: EntityKind[E], prefix: str = "") -> list[E]:
    """Return the entities whose id starts with `prefix`, sorted by id, without deleted ones."""
    names = await list_entity_ids(log, kind, prefix)
    states: list[E] = []
    for name in names:
        found = await look_up_entity(log, kind, name)
        if found is not None:
            states.append(found.state)
    return states


async def list_entity_ids(log: Log, kind: EntityKind[E], prefix: str = "") -> list[str]:
    """Return the ids that start with `prefix`, sorted."""
    start = entity_topic(kind.name, "")
    before: tuple[int, str] | None = None
    names: list[str] = []
    while True:
        page = await log.topics(start + prefix, before=before, limit=IDS_PAGE)
        names += [info.topic.removeprefix(start) for info in page.topics]
        before = page.next
        if before is None:
            return sorted(names)
