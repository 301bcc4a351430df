"""Erasing a user: keys, webhooks, conversations, files, schedules, usage, and directory entries that name the user.

Deleted topics leave tombstones, so the id and the nametags cannot be taken by another user.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

from magent2.bus.log import Log
from magent2.bus.operations import OLDEST, RECORDS_PER_APPEND_MAX, Append, Delete, LastSeqIs
from magent2.bus.records import NewRecord, Record
from magent2.bus.retention import forget_records
from magent2.bus.retry import retry_on_conflict
from magent2.directory.channels import CHANNELS, Channel, channel_snapshot
from magent2.directory.entity import PAGE, find_entity, list_entity_ids, look_up_entity
from magent2.directory.keys import KEYS, list_keys, revoke_key
from magent2.directory.swarms import CONTACTS, SWARMS, contact_id, remove_swarm
from magent2.directory.users import FRIENDSHIPS, NAMETAGS, PRINCIPAL_PREFIX, USERS, check_user_id, remove_user
from magent2.directory.webhooks import delete_webhooks_of
from magent2.errors import InvalidInput, TopicDeleted, UnknownEntity
from magent2.models.address import channel_topic, check_name, checked_topic
from magent2.models.json_types import JsonObject
from magent2.sessions.files import delete_files_of
from magent2.sessions.schedules.store import delete_schedules_of
from magent2.sessions.store import delete_session
from magent2.sessions.usage.budgets import erase_limits
from magent2.sessions.usage.ledger import erase_usage


async def disable_user(log: Log, user: str) -> None:
    """Reject all further messages to or from a user, including held ones."""
    try:
        await remove_user(log, user)
    except (UnknownEntity, TopicDeleted):
        return


async def delete_directory_entries(log: Log, user: str) -> list[str]:
    """Delete the topics of a user and return them.

    The entry goes last, so that an interrupted erasure can be repeated.
    """
    logs = await _remove_swarms(log, user)
    friendships = await list_entity_ids(log, FRIENDSHIPS)
    logs += [FRIENDSHIPS.topic(pair) for pair in friendships if user in pair.split("|")]
    contacts = await list_entity_ids(log, CONTACTS)
    logs += [CONTACTS.topic(contact) for contact in contacts if contact.partition("|")[2] == user]
    logs += await _leave_channels(log, user)
    await _delete_logs(log, logs)
    own = await _entry_logs(log, user)
    await _delete_logs(log, own)
    return [*logs, *own]


async def _entry_logs(log: Log, user: str) -> list[str]:
    try:
        found = await look_up_entity(log, USERS, user)
    except TopicDeleted:
        return []
    return [] if found is None else [NAMETAGS.topic(found.state.nametag), USERS.topic(user)]


async def _remove_swarms(log: Log, user: str) -> list[str]:
    logs: list[str] = []
    for nametag in await list_entity_ids(log, SWARMS):
        found = await look_up_entity(log, SWARMS, nametag)
        if found is None or found.state.owner != user:
            continue
        await remove_swarm(log, nametag)
        contacts = await list_entity_ids(log, CONTACTS, contact_id(nametag, ""))
        logs += [*map(CONTACTS.topic, contacts), NAMETAGS.topic(nametag), SWARMS.topic(nametag)]
    return logs


async def _delete_logs(log: Log, logs: Sequence[str]) -> None:
    for start in range(0, len(logs), RECORDS_PER_APPEND_MAX):
        await log.run(Delete(tuple(logs[start : start + RECORDS_PER_APPEND_MAX])))


# --- channels


async def _leave_channels(log: Log, user: str) -> list[str]:
    """Erase the user's messages and membership, and return the topics of channels that have no other member."""
    empty: list[str] = []
    for name in await list_entity_ids(log, CHANNELS):
        records = await _read_all(log, CHANNELS.topic(name))
        names = {member["username"] for record in records for member in _members_in(record) if member["user"] == user}
        if not names:
            continue
        topic = channel_topic(name)
        messages = [record.seq for record in await _read_all(log, topic) if record.payload.get("from") in names]
        await forget_records(log, topic, messages)
        if not (await _rewrite_membership(log, name, user)):
            empty += [CHANNELS.topic(name), topic]
    return empty


def _members_in(record: Record) -> list[JsonObject]:
    """Return the members that a record of a channel names."""
    facts = record.payload
    found = [facts.get("leader"), facts.get("member"), *facts.get("members", ())]
    return [member for member in found if isinstance(member, dict)]


async def _rewrite_membership(log: Log, name: str, user: str) -> bool:
    """Write the channel's state without the user and erase all earlier records. Return whether members are left."""
    topic = CHANNELS.topic(name)

    async def restate() -> int | None:
        found = await find_entity(log, CHANNELS, name)
        rest = _without(found.state, user)
        if not rest.members:
            return None
        record = NewRecord(topic, dict(channel_snapshot(rest)))
        await log.append(Append(records=(record,), conditions=(LastSeqIs(topic, found.seq),)))
        return found.seq

    restated_at = await retry_on_conflict(restate, f"channel {name!r}")
    if restated_at is None:
        return False
    await forget_records(log, topic, range(1, restated_at + 1))
    return True


def _without(channel: Channel, user: str) -> Channel:
    """Return the channel without the user. If they led it, the longest-standing member does."""
    members = tuple(member for member in channel.members if member.user != user)
    led = any(member.username == channel.leader for member in members)
    return replace(channel, members=members, leader=channel.leader if led or not members else members[0].username)


async def _read_all(log: Log, topic: str) -> list[Record]:
    records: list[Record] = []
    after = OLDEST
    while True:
        page = await log.read(topic, after, PAGE)
        records += [record for record in page.records if not record.erased]
        if not page.records or page.records[-1].seq >= page.last:
            return records
        after = page.records[-1].seq


SESSIONS_PAGE = 100


@dataclass(frozen=True, slots=True)
class ErasureResult:
    """What an erasure deleted."""

    keys: tuple[str, ...] = ()
    conversations: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    schedules: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()  # topics of the directory
    webhooks: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return any(getattr(self, item.name) for item in fields(self))


async def erase_user(log: Log, name: str) -> ErasureResult:
    """Erase a user. Keys are revoked first, so that nothing new starts. An interrupted erasure can be repeated."""
    check_name(name, "user")
    user = _known_as(name)
    keys = [key.id for key in (await list_keys(log)) if name in key.scopes]
    for key in keys:
        await revoke_key(log, key)
    webhooks = await delete_webhooks_of(log, name)
    if user is not None:
        await disable_user(log, user)
    conversations: list[str] = []
    while page := (await _owned_conversations(log, name)):
        for conversation in page:
            await delete_session(log, conversation)
        conversations += page
    files = await delete_files_of(log, name)
    schedules = await delete_schedules_of(log, name)
    await erase_usage(log, name)
    await erase_limits(log, name)
    if keys:
        await log.run(Delete(tuple(map(KEYS.topic, keys))))
    entries = [] if user is None else (await delete_directory_entries(log, user))
    return ErasureResult(
        tuple(keys), tuple(conversations), tuple(files), tuple(schedules), tuple(entries), tuple(webhooks)
    )


def _known_as(name: str) -> str | None:
    """Return the id in the directory, or `None` if the name cannot be one."""
    try:
        return check_user_id(name) if name.startswith(PRINCIPAL_PREFIX) else None
    except InvalidInput:
        return None


async def _owned_conversations(log: Log, name: str) -> list[str]:
    found = await log.topics("stream:", owner=name, limit=SESSIONS_PAGE)
    return [checked_topic(info.topic)[1] for info in found.topics]
