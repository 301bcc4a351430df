"""Friendships: users exchange messages only after both have agreed. Decisions are pure functions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from magent2.bus.log import Log
from magent2.bus.records import Record
from magent2.directory.entity import EntityKind, EntitySnapshot, change_or_create_entity, list_entities, look_up_entity
from magent2.directory.users import check_user_id
from magent2.errors import InvalidInput, NotFriends, TopicDeleted, UnknownEntity

COOL_DOWN_S = 7 * 86_400.0  # a user who was refused or removed must wait this long before the next request

FriendshipStatus: TypeAlias = Literal["pending", "friends", "apart"]
FriendshipChange: TypeAlias = Mapping[str, Any] | None


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


# --- decisions


def decide_request(now: Friendship | None, by: str, now_ms: int) -> FriendshipChange:
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


def decide_accept(now: Friendship | None, by: str) -> FriendshipChange:
    if now is not None and now.status == "friends":
        return None
    _check_asked(now, by)
    return {"event": "accepted", "by": by}


def decide_refuse(now: Friendship | None, by: str) -> FriendshipChange:
    """Refuse a request. The requester must wait before asking again."""
    pending = _check_asked(now, by)
    return {"event": "refused", "by": by, "waits": pending.asked_by, "cool_s": COOL_DOWN_S}


def decide_remove(now: Friendship | None, by: str) -> FriendshipChange:
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


# --- on the log


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
    log: Log, by: str, other: str, decide: Callable[[Friendship | None], FriendshipChange]
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


def _begin(entity: str, record: Record) -> Friendship:
    return Friendship(entity, "pending", record.payload["by"])


def _apply(friendship: Friendship, record: Record) -> Friendship:
    facts = record.payload
    if facts["event"] == "requested":
        return replace(friendship, status="pending", asked_by=facts["by"], waits=None, cool_ms=0)
    if facts["event"] == "accepted":
        return replace(friendship, status="friends")
    cool_ms = record.at_ms + int(facts["cool_s"] * 1000)
    return replace(friendship, status="apart", waits=facts["waits"], cool_ms=cool_ms)


FRIENDSHIPS = EntityKind("friendship", _begin, _apply)
