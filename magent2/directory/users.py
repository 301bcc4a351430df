"""Users: people whom agents work for, each with a nametag that nobody else has."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from magent2.bus.log import Log
from magent2.bus.records import Record
from magent2.directory.entity import (
    EntityKind,
    EntitySnapshot,
    change_entity,
    create_entity,
    find_entity,
    list_entities,
)
from magent2.directory.nametags import parse_nametag, reserve_nametag, resolve_nametag
from magent2.errors import InvalidInput, TopicDeleted, UnknownEntity
from magent2.models.address import check_name

USER_ID_MAX_CHARS = 80
PRINCIPAL_PREFIX = "user:"
HOME_BYTES = 8
WEB = "web"  # the connector that everybody has: the session page
TARGET_MAX_CHARS = 400

_ID = re.compile(rf"[A-Za-z0-9._@-]{{1,{USER_ID_MAX_CHARS}}}")


@dataclass(frozen=True, slots=True)
class User:
    """A user as the log tells it. `agent` answers for them in the foreground, `home` is where messages to them go.

    `connector` and `target` say where `say` and `send_file` reach them.
    """

    id: str
    nametag: str
    home: str
    agent: str | None = None
    connector: str = WEB
    target: str = ""
    created_ms: int = 0
    removed: bool = False

    @property
    def principal(self) -> str:
        return f"{PRINCIPAL_PREFIX}{self.id}"


def check_user_id(text: str) -> str:
    """`ann`, or `user:ann`, as the principal of ann's key is called."""
    entity = text.strip().removeprefix(PRINCIPAL_PREFIX)
    if not _ID.fullmatch(entity):
        raise InvalidInput(f"{text[:80]!r} is no user: take 1 to {USER_ID_MAX_CHARS} of A–Z, a–z, 0–9 and . _ @ -")
    return entity


async def create_user(log: Log, entity: str, nametag: str, facts: Mapping[str, Any] | None = None) -> User:
    """A new user; `NameTaken` when the id or the nametag is somebody's."""
    chosen, tag = check_user_id(entity), parse_nametag(nametag)
    first = {"event": "created", "nametag": tag, "home": f"home-{secrets.token_hex(HOME_BYTES)}", **_checked(facts)}
    return await create_entity(log, USERS, chosen, first, [reserve_nametag(tag, "user", chosen)])


async def change_user(log: Log, entity: str, facts: Mapping[str, Any]) -> User:
    """Another agent, connector or target."""
    checked = _checked(facts)
    return await change_entity(log, USERS, check_user_id(entity), lambda user: _changed(user, checked))


async def remove_user(log: Log, entity: str) -> User:
    """Nobody can write to a user that is gone. The nametag stays theirs: a second bearer would be taken for them."""
    return await change_entity(
        log, USERS, check_user_id(entity), lambda user: None if user.removed else {"event": "removed"}
    )


async def find_user(log: Log, entity: str) -> EntitySnapshot[User]:
    """The user, if there still is one."""
    chosen = check_user_id(entity)
    try:
        found = await find_entity(log, USERS, chosen)
    except UnknownEntity:
        raise UnknownEntity(f"there is no user {chosen!r}; `magent2 users add` makes one") from None
    except TopicDeleted:
        raise user_removed_error(chosen) from None
    if found.state.removed:
        raise user_removed_error(chosen)
    return found


def user_removed_error(entity: str) -> UnknownEntity:
    """Of one who was removed, or erased."""
    return UnknownEntity(f"user {entity!r} is gone")


async def find_user_by_nametag(log: Log, nametag: str) -> EntitySnapshot[User]:
    entity = await resolve_nametag(log, nametag, "user")
    return await find_user(log, entity)


async def list_users(log: Log) -> list[User]:
    return await list_entities(log, USERS)


def _changed(user: User, facts: Mapping[str, Any]) -> Mapping[str, Any] | None:
    if user.removed:
        raise user_removed_error(user.id)
    changes = any(getattr(user, name) != value for name, value in facts.items())
    return {"event": "changed", **facts} if changes else None


def _checked(facts: Mapping[str, Any] | None) -> dict[str, Any]:
    """What may be said of a user, in words that can be used."""
    chosen = {name: value for name, value in (facts or {}).items() if value is not None}
    for name, what in (("agent", "agent name"), ("connector", "connector id")):
        if name in chosen:
            check_name(chosen[name], what)
    target = chosen.get("target", "")
    if len(target) > TARGET_MAX_CHARS or not target.isprintable():
        raise InvalidInput(f"a target has at most {TARGET_MAX_CHARS} printable characters")
    unknown = set(chosen) - {"agent", "connector", "target"}
    if unknown:
        raise InvalidInput(f"a user has no {', '.join(sorted(unknown))}; give agent, connector or target")
    return chosen


def _begin(entity: str, record: Record) -> User:
    facts = {name: value for name, value in record.payload.items() if name != "event"}
    return User(entity, created_ms=record.at_ms, **facts)


def _apply(user: User, record: Record) -> User:
    if record.payload["event"] == "removed":
        return replace(user, removed=True)
    return replace(user, **{name: value for name, value in record.payload.items() if name != "event"})


USERS = EntityKind("user", _begin, _apply)
