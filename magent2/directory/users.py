"""Users: the people that agents work for, each with a unique nametag."""

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
WEB = "web"  # the connector of every user: the session page
TARGET_MAX_CHARS = 400

_ID = re.compile(rf"[A-Za-z0-9._@-]{{1,{USER_ID_MAX_CHARS}}}")


@dataclass(frozen=True, slots=True)
class User:
    """A user. `agent` is their foreground agent, `home` the conversation that receives messages to them.

    `say` and `send_file` reach them through `connector` at `target`.
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
    """Return the user id of `ann` or of the principal `user:ann`."""
    entity = text.strip().removeprefix(PRINCIPAL_PREFIX)
    if not _ID.fullmatch(entity):
        raise InvalidInput(f"{text[:80]!r} is not a user id; use 1 to {USER_ID_MAX_CHARS} of A–Z, a–z, 0–9 and . _ @ -")
    return entity


async def create_user(log: Log, entity: str, nametag: str, facts: Mapping[str, Any] | None = None) -> User:
    """Create a user. Raises `NameTaken` if the id or the nametag is in use."""
    chosen, tag = check_user_id(entity), parse_nametag(nametag)
    first = {"event": "created", "nametag": tag, "home": f"home-{secrets.token_hex(HOME_BYTES)}", **_checked(facts)}
    return await create_entity(log, USERS, chosen, first, [reserve_nametag(tag, "user", chosen)])


async def change_user(log: Log, entity: str, facts: Mapping[str, Any]) -> User:
    """Change the agent, connector or target of a user."""
    checked = _checked(facts)
    return await change_entity(log, USERS, check_user_id(entity), lambda user: _changed(user, checked))


async def remove_user(log: Log, entity: str) -> User:
    """Remove a user. Messages to them are rejected.

    The nametag stays reserved, so that no other user can be mistaken for them.
    """
    return await change_entity(
        log, USERS, check_user_id(entity), lambda user: None if user.removed else {"event": "removed"}
    )


async def find_user(log: Log, entity: str) -> EntitySnapshot[User]:
    """Return the user. Raises `UnknownEntity` if there is none or they were removed."""
    chosen = check_user_id(entity)
    try:
        found = await find_entity(log, USERS, chosen)
    except UnknownEntity:
        raise UnknownEntity(f"there is no user {chosen!r}; create one with `magent2 users add`") from None
    except TopicDeleted:
        raise user_removed_error(chosen) from None
    if found.state.removed:
        raise user_removed_error(chosen)
    return found


def user_removed_error(entity: str) -> UnknownEntity:
    """The error for a user who was removed or erased."""
    return UnknownEntity(f"user {entity!r} was removed")


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
    """Validate the changeable fields of a user."""
    chosen = {name: value for name, value in (facts or {}).items() if value is not None}
    for name, what in (("agent", "agent name"), ("connector", "connector id")):
        if name in chosen:
            check_name(chosen[name], what)
    target = chosen.get("target", "")
    if len(target) > TARGET_MAX_CHARS or not target.isprintable():
        raise InvalidInput(f"a target has at most {TARGET_MAX_CHARS} printable characters")
    unknown = set(chosen) - {"agent", "connector", "target"}
    if unknown:
        raise InvalidInput(f"a user has no {', '.join(sorted(unknown))}; set agent, connector or target")
    return chosen


def _begin(entity: str, record: Record) -> User:
    facts = {name: value for name, value in record.payload.items() if name != "event"}
    return User(entity, created_ms=record.at_ms, **facts)


def _apply(user: User, record: Record) -> User:
    if record.payload["event"] == "removed":
        return replace(user, removed=True)
    return replace(user, **{name: value for name, value in record.payload.items() if name != "event"})


USERS = EntityKind("user", _begin, _apply)
