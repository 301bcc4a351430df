"""Nametags (`@ann`): one namespace for users and swarms. The first record of a nametag's topic reserves it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from magent2.bus.log import Log
from magent2.bus.records import NewRecord, Record
from magent2.directory.entity import EntityKind, find_entity
from magent2.errors import InvalidInput, TopicDeleted, UnknownEntity

NAMETAG_MIN_CHARS, NAMETAG_MAX_CHARS = 2, 32

Holder: TypeAlias = Literal["user", "swarm"]

_TAG = re.compile(rf"[a-z0-9_]{{{NAMETAG_MIN_CHARS},{NAMETAG_MAX_CHARS}}}")


@dataclass(frozen=True, slots=True)
class Nametag:
    """The user or swarm that a nametag refers to."""

    tag: str
    holder: Holder
    id: str


def parse_nametag(text: str) -> str:
    """Return the nametag without `@`, in lower case: `@Ann` and `ann` are the same."""
    tag = text.strip().removeprefix("@").lower()
    if not _TAG.fullmatch(tag):
        raise InvalidInput(
            f"{text[:80]!r} is not a nametag; use {NAMETAG_MIN_CHARS} to {NAMETAG_MAX_CHARS} of a–z, 0–9 and _"
        )
    return tag


def reserve_nametag(tag: str, holder: Holder, entity: str) -> NewRecord:
    """Return the record that reserves a nametag."""
    return NewRecord(NAMETAGS.topic(tag), {"event": "reserved", "holder": holder, "id": entity})


async def resolve_nametag(log: Log, text: str, holder: Holder) -> str:
    """Return the id of the user or swarm with this nametag."""
    tag = parse_nametag(text)
    try:
        found = await find_entity(log, NAMETAGS, tag)
    except (UnknownEntity, TopicDeleted):
        raise UnknownEntity(f"unknown nametag @{tag}") from None
    if found.state.holder != holder:
        raise UnknownEntity(f"@{tag} is a {found.state.holder}, not a {holder}")
    return found.state.id


def _begin(entity: str, record: Record) -> Nametag:
    return Nametag(entity, record.payload["holder"], record.payload["id"])


NAMETAGS: EntityKind[Nametag] = EntityKind("nametag", _begin, lambda tag, _: tag)
