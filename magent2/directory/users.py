"""Users, the people that agents work for: their nametags, and the friendships that let them exchange messages."""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from magent2.bus.log import Log
from magent2.bus.records import NewRecord, Record
from magent2.directory.entity import (
    EntityChange,
    EntityKind,
    EntitySnapshot,
    change_entity,
    change_or_create_entity,
    create_entity,
    find_entity,
    list_entities,
    look_up_entity,
)
from magent2.errors import InvalidInput, NotFriends, TopicDeleted, UnknownEntity
from magent2.models.address import check_name

# --- Nametags (`@ann`): one namespace for users and swarms. The first record of a nametag's topic reserves it.

NAMETAG_MIN_CHARS, NAMETAG_MAX_CHARS = 2, 32

Holder: TypeAlias = Literal["user", "swarm"]

_NAMETAG = re.compile(rf"[a-z0-9_]{{{NAMETAG_MIN_CHARS},{NAMETAG_MAX_CHARS}}}")


@dataclass(frozen=True, slots=True)
class Nametag:
    """The user or swarm that a nametag refers to."""

    tag: str
    holder: Holder
    id: str


def parse_nametag(text: str) -> str:
    """Return the nametag without `@`, in lower case: `@Ann` and `ann` are the same."""
    tag = text.strip().removeprefix("@").lower()
    if not _NAMETAG.fullmatch(tag):
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


NAMETAGS: EntityKind[Nametag] = EntityKind(
    "nametag",
    begin=lambda tag, record: Nametag(tag, record.payload["holder"], record.payload["id"]),
    apply=lambda nametag, _: nametag,
)


# --- Users

USER_ID_MAX_CHARS = 80
PRINCIPAL_PREFIX = "user:"
HOME_BYTES = 8
WEB = "web"  # the connector of every user: the session page
TARGET_MAX_CHARS = 400

_USER_ID = re.compile(rf"[A-Za-z0-9._@-]{{1,{USER_ID_MAX_CHARS}}}")


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
    if not _USER_ID.fullmatch(entity):
        raise InvalidInput(f"{text[:80]!r} is not a user id; use 1 to {USER_ID_MAX_CHARS} of A–Z, a–z, 0–9 and . _ @ -")
    return entity


async def create_user(log: Log, entity: str, nametag: str, facts: Mapping[str, str | None] | None = None) -> User:
    """Create a user. Raises `NameTaken` if the id or the nametag is in use."""
    chosen, tag = check_user_id(entity), parse_nametag(nametag)
    first = {"event": "created", "nametag": tag, "home": f"home-{secrets.token_hex(HOME_BYTES)}", **_checked(facts)}
    return await create_entity(log, USERS, chosen, first, [reserve_nametag(tag, "user", chosen)])


async def change_user(log: Log, entity: str, facts: Mapping[str, str | None]) -> User:
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


def _changed(user: User, facts: Mapping[str, str]) -> EntityChange:
    if user.removed:
        raise user_removed_error(user.id)
    changes = any(getattr(user, name) != value for name, value in facts.items())
    return {"event": "changed", **facts} if changes else None


def _checked(facts: Mapping[str, str | None] | None) -> dict[str, str]:
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


def _begin_user(entity: str, record: Record) -> User:
    facts = {name: value for name, value in record.payload.items() if name != "event"}
    return User(entity, created_ms=record.at_ms, **facts)


def _apply_user(user: User, record: Record) -> User:
    if record.payload["event"] == "removed":
        return replace(user, removed=True)
    return replace(user, **{name: value for name, value in record.payload.items() if name != "event"})


USERS = EntityKind("user", _begin_user, _apply_user)


# --- Friendships: users exchange messages only after both have agreed. Decisions are pure functions.

COOL_DOWN_S = 7 * 86_400.0  # a user who was refused or removed must wait this long before the next request

FriendshipStatus: TypeAlias = Literal["pending", "friends", "apart"]


@dataclass(frozen=True, slots=True)
class Friendship:
    """The state between two users. `asked_by` made the last request; `waits` may not ask again before `cool_ms`."""

    id: str
    status: FriendshipStatus
    asked_by: str
    waits: str | None = None
    cool_ms: int = 0

    @property
    def users(self) -> tuple[str, str]:
        low, _, high = self.id.partition("|")
        return low, high

    def other(self, user: str) -> str:
        low, high = self.users
        return high if user == low else low


def friendship_id(one: str, other: str) -> str:
    low, high = sorted((check_user_id(one), check_user_id(other)))
    if low == high:
        raise InvalidInput("a user cannot be their own friend; name two users")
    return f"{low}|{high}"


# --- Decisions on friendships


def decide_request(now: Friendship | None, by: str, now_ms: int) -> EntityChange:
    """Request a friendship. A request that meets one from the other user accepts it."""
    if now is None:
        return {"event": "requested", "by": by}
    if now.status == "friends":
        raise InvalidInput(f"{by} and {now.other(by)} are friends already")
    if now.status == "pending":
        return None if now.asked_by == by else {"event": "accepted", "by": by}
    if now.waits == by and now_ms < now.cool_ms:
        raise InvalidInput(f"{by} may ask {now.other(by)} again in {_shown_wait(now.cool_ms - now_ms)}")
    return {"event": "requested", "by": by}


def decide_accept(now: Friendship | None, by: str) -> EntityChange:
    if now is not None and now.status == "friends":
        return None
    _check_asked(now, by)
    return {"event": "accepted", "by": by}


def decide_refuse(now: Friendship | None, by: str) -> EntityChange:
    """Refuse a request. The requester must wait before asking again."""
    pending = _check_asked(now, by)
    return {"event": "refused", "by": by, "waits": pending.asked_by, "cool_s": COOL_DOWN_S}


def decide_remove(now: Friendship | None, by: str) -> EntityChange:
    """End a friendship, or withdraw a request.

    After the end of a friendship the other user must wait before asking; after a withdrawal the requester must.
    """
    if now is None:
        raise NotFriends(f"{by} is not a friend of that user")
    if now.status == "apart":
        return None
    if now.status == "pending" and now.asked_by != by:
        return decide_refuse(now, by)
    waits = by if now.status == "pending" else now.other(by)
    return {"event": "removed", "by": by, "waits": waits, "cool_s": COOL_DOWN_S}


def _check_asked(now: Friendship | None, by: str) -> Friendship:
    if now is None or now.status != "pending" or now.asked_by == by:
        raise InvalidInput(f"there is no request for {by} to answer; send a request instead")
    return now


def _shown_wait(wait_ms: int) -> str:
    hours = -(-wait_ms // 3_600_000)
    return f"{hours} h" if hours < 48 else f"{-(-hours // 24)} days"


# --- Friendships on the log


async def request_friendship(log: Log, by: str, other: str, now_ms: int | None = None) -> Friendship:
    moment = int(time.time() * 1000) if now_ms is None else now_ms
    return await _change_friendship(log, by, other, lambda now: decide_request(now, by, moment))


async def accept_friendship(log: Log, by: str, other: str) -> Friendship:
    return await _change_friendship(log, by, other, lambda now: decide_accept(now, by))


async def refuse_friendship(log: Log, by: str, other: str) -> Friendship:
    return await _change_friendship(log, by, other, lambda now: decide_refuse(now, by))


async def remove_friendship(log: Log, by: str, other: str) -> Friendship:
    return await _change_friendship(log, by, other, lambda now: decide_remove(now, by))


async def _change_friendship(
    log: Log, by: str, other: str, decide: Callable[[Friendship | None], EntityChange]
) -> Friendship:
    try:
        return await change_or_create_entity(log, FRIENDSHIPS, friendship_id(by, other), decide)
    except TopicDeleted:
        raise UnknownEntity(f"one of {by!r} and {other!r} was erased; erased users cannot be friends") from None


async def find_friendship(log: Log, one: str, other: str) -> EntitySnapshot[Friendship]:
    """Return the friendship of two users. Raises `NotFriends` unless both have agreed and neither has ended it."""
    try:
        found = await look_up_entity(log, FRIENDSHIPS, friendship_id(one, other))
    except TopicDeleted:  # one of them was erased
        found = None
    if found is None or found.state.status != "friends":
        raise NotFriends("not friends")
    return found


async def list_friendships(log: Log, user: str | None = None) -> list[Friendship]:
    every = await list_entities(log, FRIENDSHIPS)
    return [friendship for friendship in every if user is None or user in friendship.users]


def _begin_friendship(entity: str, record: Record) -> Friendship:
    return Friendship(entity, "pending", record.payload["by"])


def _apply_friendship(friendship: Friendship, record: Record) -> Friendship:
    facts = record.payload
    if facts["event"] == "requested":
        return replace(friendship, status="pending", asked_by=facts["by"], waits=None, cool_ms=0)
    if facts["event"] == "accepted":
        return replace(friendship, status="friends")
    cool_ms = record.at_ms + int(facts["cool_s"] * 1000)
    return replace(friendship, status="apart", waits=facts["waits"], cool_ms=cool_ms)


FRIENDSHIPS = EntityKind("friendship", _begin_friendship, _apply_friendship)
