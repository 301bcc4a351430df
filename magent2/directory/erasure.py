"""What the directory knows of a person, taken out of it: their entry, friendships, swarms, contacts and memberships.

Names are not given to anybody else: the tombstones of the logs keep them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from magent2.bus.flow import Flow
from magent2.bus.operations import OLDEST, RECORDS_PER_APPEND_MAX, Append, Delete, LastSeqIs, Read, Topics
from magent2.bus.records import NewRecord, Page, Record, TopicList
from magent2.bus.retention import forgetting_records
from magent2.directory.channels import CHANNELS, Channel, restated
from magent2.directory.entity import PAGE, TRIES_MAX, finding, looking, naming
from magent2.directory.friends import FRIENDSHIPS
from magent2.directory.keys import KEYS, listing_keys, revoking_key
from magent2.directory.nametags import NAMETAGS
from magent2.directory.swarms import CONTACTS, SWARMS, contact_id, removing_swarm
from magent2.directory.users import PRINCIPAL_PREFIX, USERS, check_user_id, removing_user
from magent2.errors import ConditionFailed, InvalidInput, TopicDeleted, UnknownEntity
from magent2.models.address import channel_topic, check_name, checked_topic
from magent2.sessions.store import deleting


def ending_user(user: str) -> Flow[None]:
    """Nobody can send anything to them, or for them, from now on: what waits for its block is refused as well."""
    try:
        yield from removing_user(user)
    except (UnknownEntity, TopicDeleted):
        return


def forgetting_user(user: str) -> Flow[list[str]]:
    """Delete what is theirs; the logs that were. The entry goes last, so that what was cut short can be begun again."""
    logs = yield from _swarms_of(user)
    friendships = yield from naming(FRIENDSHIPS)
    logs += [FRIENDSHIPS.topic(pair) for pair in friendships if user in pair.split("|")]
    contacts = yield from naming(CONTACTS)
    logs += [CONTACTS.topic(contact) for contact in contacts if contact.partition("|")[2] == user]
    logs += yield from _leaving_channels(user)
    yield from _deleting(logs)
    own = yield from _entry_of(user)
    yield from _deleting(own)
    return [*logs, *own]


def _entry_of(user: str) -> Flow[list[str]]:
    try:
        found = yield from looking(USERS, user)
    except TopicDeleted:
        return []
    return [] if found is None else [NAMETAGS.topic(found.state.nametag), USERS.topic(user)]


def _swarms_of(user: str) -> Flow[list[str]]:
    logs: list[str] = []
    for nametag in (yield from naming(SWARMS)):
        found = yield from looking(SWARMS, nametag)
        if found is None or found.state.owner != user:
            continue
        yield from removing_swarm(nametag)
        contacts = yield from naming(CONTACTS, contact_id(nametag, ""))
        logs += [*map(CONTACTS.topic, contacts), NAMETAGS.topic(nametag), SWARMS.topic(nametag)]
    return logs


def _deleting(logs: Sequence[str]) -> Flow[None]:
    for start in range(0, len(logs), RECORDS_PER_APPEND_MAX):
        yield Delete(tuple(logs[start : start + RECORDS_PER_APPEND_MAX]))


# --- channels


def _leaving_channels(user: str) -> Flow[list[str]]:
    """The logs of channels in which nobody else was; of the others what they said and that they were there goes."""
    empty: list[str] = []
    for name in (yield from naming(CHANNELS)):
        records = yield from _reading(CHANNELS.topic(name))
        names = {member["username"] for record in records for member in _members_in(record) if member["user"] == user}
        if not names:
            continue
        yield from _unsaying(name, names)
        if not (yield from _restating(name, user)):
            empty += [CHANNELS.topic(name), channel_topic(name)]
    return empty


def _members_in(record: Record) -> list[dict[str, Any]]:
    """Whom a record of a channel tells of."""
    facts = record.payload
    found = [facts.get("leader"), facts.get("member"), *facts.get("members", ())]
    return [member for member in found if isinstance(member, dict)]


def _unsaying(name: str, usernames: set[str]) -> Flow[None]:
    topic = channel_topic(name)
    said = yield from _reading(topic)
    yield from forgetting_records(topic, [record.seq for record in said if record.payload.get("from") in usernames])


def _restating(name: str, user: str) -> Flow[bool]:
    """State what the channel is without them, then erase how it came to be; whether anybody is left in it."""
    topic = CHANNELS.topic(name)
    for _ in range(TRIES_MAX):
        found = yield from finding(CHANNELS, name)
        rest = _without(found.state, user)
        if not rest.members:
            return False
        try:
            yield Append(records=(NewRecord(topic, dict(restated(rest))),), conditions=(LastSeqIs(topic, found.seq),))
        except ConditionFailed:
            continue
        yield from forgetting_records(topic, range(1, found.seq + 1))
        return True
    raise ConditionFailed(f"channel {name!r} keeps changing; try again")


def _without(channel: Channel, user: str) -> Channel:
    """Whoever is longest in it leads, where they did."""
    members = tuple(member for member in channel.members if member.user != user)
    led = any(member.username == channel.leader for member in members)
    return replace(channel, members=members, leader=channel.leader if led or not members else members[0].username)


def _reading(topic: str) -> Flow[list[Record]]:
    records: list[Record] = []
    after = OLDEST
    while True:
        page: Page = yield Read(topic, after, PAGE)
        records += [record for record in page.records if not record.erased]
        if not page.records or page.records[-1].seq >= page.last:
            return records
        after = page.records[-1].seq


# --- Erasing a person: their keys, all conversations that are theirs, and what the directory knows of them.

SESSIONS_PAGE = 100


@dataclass(frozen=True, slots=True)
class Erased:
    """What there was."""

    keys: tuple[str, ...] = ()
    conversations: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()  # of the directory, by their logs

    def __bool__(self) -> bool:
        return bool(self.keys or self.conversations or self.entries)


def erasing_user(name: str) -> Flow[Erased]:
    """Erase a user. Keys end first, so that nothing new is begun; an erasure that was cut short just starts again."""
    check_name(name, "user")
    user = _known_as(name)
    keys = [key.id for key in (yield from listing_keys()) if name in key.scopes]
    for key in keys:
        yield from revoking_key(key)
    if user is not None:
        yield from ending_user(user)
    conversations: list[str] = []
    while page := (yield from _owned(name)):
        for conversation in page:
            yield from deleting(conversation)
        conversations += page
    if keys:
        yield Delete(tuple(map(KEYS.topic, keys)))
    entries = [] if user is None else (yield from forgetting_user(user))
    return Erased(tuple(keys), tuple(conversations), tuple(entries))


def _known_as(name: str) -> str | None:
    """The user's id in the directory; `None` for a name that nobody can have there."""
    try:
        return check_user_id(name) if name.startswith(PRINCIPAL_PREFIX) else None
    except InvalidInput:
        return None


def _owned(name: str) -> Flow[list[str]]:
    found: TopicList = yield Topics("stream:", owner=name, limit=SESSIONS_PAGE)
    return [checked_topic(info.topic)[1] for info in found.topics]
