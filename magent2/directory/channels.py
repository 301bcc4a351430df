"""Channels: members in one topic, messages in another, so that messages never conflict with changes of membership."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from magent2.bus.log import Log
from magent2.bus.records import Record
from magent2.directory.entity import (
    EntityChange,
    EntityKind,
    EntitySnapshot,
    change_entity,
    create_entity,
    find_entity,
    list_entities,
)
from magent2.directory.users import check_user_id, parse_nametag
from magent2.errors import InvalidInput, NotAMember, TopicDeleted, UnknownEntity
from magent2.models.address import channel_topic, check_name

CHANNEL_MAX_CHARS = 64
MEMBERS_MAX = 100
HISTORY_PAGE = 100
ROOM_BYTES = 8

_NAME = re.compile(rf"[a-z0-9][a-z0-9_.-]{{0,{CHANNEL_MAX_CHARS - 1}}}")


@dataclass(frozen=True, slots=True)
class ChannelMember:
    """An agent of a user, mentioned as `username`. Messages for it are delivered to the conversation `room`."""

    username: str
    user: str
    agent: str
    room: str


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel. Its leader receives every message."""

    name: str
    leader: str
    members: tuple[ChannelMember, ...]
    removed: bool = False

    def member(self, username: str) -> ChannelMember | None:
        return next((member for member in self.members if member.username == username), None)

    def speaker(self, user: str, agent: str) -> ChannelMember:
        """Return the member that this agent of this user is."""
        if self.removed:
            raise UnknownEntity(f"channel {self.name!r} was removed")
        for member in self.members:
            if (member.user, member.agent) == (user, agent):
                return member
        raise NotAMember(f"agent {agent} of user {user} is not a member of #{self.name}")


def parse_channel(text: str) -> str:
    name = text.strip().removeprefix("#").lower()
    if not _NAME.fullmatch(name):
        raise InvalidInput(f"{text[:80]!r} is not a channel name; use 1 to {CHANNEL_MAX_CHARS} of a–z, 0–9 and _ . -")
    return name


# --- decisions


def channel_recipients(channel: Channel, speaker: ChannelMember, mentions: Sequence[str]) -> tuple[ChannelMember, ...]:
    """Return who receives a message: the leader and the mentioned members, each once, without the speaker."""
    named = dict.fromkeys([channel.leader, *(parse_nametag(text) for text in mentions)])
    strangers = [name for name in named if channel.member(name) is None]
    if strangers:
        known = ", ".join(f"@{member.username}" for member in channel.members)
        raise InvalidInput(f"@{strangers[0]} is not in #{channel.name}; its members are: {known}")
    found = [channel.member(name) for name in named if name != speaker.username]
    return tuple(member for member in found if member is not None)


def decide_join(channel: Channel, member: ChannelMember) -> EntityChange:
    _check_there(channel)
    known = channel.member(member.username)
    if known is not None:
        if (known.user, known.agent) == (member.user, member.agent):
            return None
        raise InvalidInput(f"@{member.username} is another member of #{channel.name}; choose another name there")
    if any((other.user, other.agent) == (member.user, member.agent) for other in channel.members):
        raise InvalidInput(f"agent {member.agent} of {member.user} is already in #{channel.name} under another name")
    if len(channel.members) >= MEMBERS_MAX:
        raise InvalidInput(f"a channel has at most {MEMBERS_MAX} members")
    return {"event": "joined", "member": _facts(member)}


def decide_leave(channel: Channel, username: str) -> EntityChange:
    _check_there(channel)
    if channel.member(username) is None:
        return None
    if username == channel.leader:
        raise InvalidInput(f"@{username} leads #{channel.name}; make another member the leader first")
    return {"event": "left", "username": username}


def decide_leader(channel: Channel, username: str) -> EntityChange:
    _check_there(channel)
    if channel.member(username) is None:
        raise InvalidInput(f"@{username} is not in #{channel.name}; the leader must be a member")
    return None if channel.leader == username else {"event": "led", "username": username}


def _check_there(channel: Channel) -> None:
    if channel.removed:
        raise UnknownEntity(f"channel {channel.name!r} was removed")


# --- on the log


def new_member(username: str, user: str, agent: str) -> ChannelMember:
    """Return a member that can join, with a new room."""
    check_name(agent, "agent name")
    room = f"channel-{secrets.token_hex(ROOM_BYTES)}"
    return ChannelMember(parse_nametag(username), check_user_id(user), agent, room)


async def create_channel(log: Log, name: str, leader: ChannelMember) -> Channel:
    return await create_entity(log, CHANNELS, parse_channel(name), {"event": "created", "leader": _facts(leader)})


async def join_channel(log: Log, name: str, member: ChannelMember) -> Channel:
    return await _change_channel(log, name, lambda channel: decide_join(channel, member))


async def leave_channel(log: Log, name: str, username: str) -> Channel:
    tag = parse_nametag(username)
    return await _change_channel(log, name, lambda channel: decide_leave(channel, tag))


async def set_leader(log: Log, name: str, username: str) -> Channel:
    tag = parse_nametag(username)
    return await _change_channel(log, name, lambda channel: decide_leader(channel, tag))


async def remove_channel(log: Log, name: str) -> Channel:
    """Remove a channel. New messages are rejected; earlier ones are kept."""
    return await _change_channel(log, name, lambda channel: None if channel.removed else {"event": "removed"})


async def find_channel(log: Log, name: str) -> EntitySnapshot[Channel]:
    chosen = parse_channel(name)
    try:
        return await find_entity(log, CHANNELS, chosen)
    except UnknownEntity:
        raise UnknownEntity(f"there is no channel #{chosen}; create one with `magent2 channels add`") from None
    except TopicDeleted:
        raise UnknownEntity(f"channel {chosen!r} was removed") from None


async def list_channels(log: Log, user: str | None = None) -> list[Channel]:
    every = await list_entities(log, CHANNELS)
    return [
        channel
        for channel in every
        if not channel.removed and (user is None or any(member.user == user for member in channel.members))
    ]


async def read_channel(log: Log, name: str, before: int | None = None) -> tuple[Record, ...]:
    """Return the last messages of a channel, or the last ones before a seq."""
    page = await log.read(channel_topic(parse_channel(name)), None, HISTORY_PAGE, before)
    return tuple(record for record in page.records if not record.erased)


async def _change_channel(log: Log, name: str, decide: Callable[[Channel], EntityChange]) -> Channel:
    await find_channel(log, name)
    return await change_entity(log, CHANNELS, parse_channel(name), decide)


def _facts(member: ChannelMember) -> dict[str, str]:
    return {"username": member.username, "user": member.user, "agent": member.agent, "room": member.room}


def channel_snapshot(channel: Channel) -> Mapping[str, object]:
    """Return one record with the whole state of a channel, so that earlier records can be erased."""
    members = [_facts(member) for member in channel.members]
    return {"event": "restated", "leader": channel.leader, "members": members, "removed": channel.removed}


def _begin(entity: str, record: Record) -> Channel:
    facts = record.payload
    if facts["event"] == "restated":
        members = tuple(ChannelMember(**member) for member in facts["members"])
        return Channel(entity, facts["leader"], members, facts["removed"])
    leader = ChannelMember(**facts["leader"])
    return Channel(entity, leader.username, (leader,))


def _apply(channel: Channel, record: Record) -> Channel:
    facts = record.payload
    if facts["event"] == "restated":
        return _begin(channel.name, record)
    if facts["event"] == "joined":
        return replace(channel, members=(*channel.members, ChannelMember(**facts["member"])))
    if facts["event"] == "left":
        stay = tuple(member for member in channel.members if member.username != facts["username"])
        return replace(channel, members=stay)
    if facts["event"] == "led":
        return replace(channel, leader=facts["username"])
    return replace(channel, removed=True)


CHANNELS = EntityKind("channel", _begin, _apply)
