"""Swarms: agents of one user that other users can write to by a nametag, and the contacts of a swarm.

The contact rule: a swarm receives messages from its owner and its guests, or from every user if it is open. It sends
messages only to users who have written to it. Its owner can block a contact in both directions.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from magent2.bus.log import Log
from magent2.bus.records import Record
from magent2.directory.entity import (
    KEY_BYTES,
    EntityChange,
    EntityKind,
    EntitySnapshot,
    change_entity,
    create_entity,
    find_entity,
    list_entities,
    look_up_entity,
)
from magent2.directory.users import check_user_id, parse_nametag, reserve_nametag, resolve_nametag
from magent2.errors import InvalidInput, NotAContact, TopicDeleted, UnknownEntity
from magent2.models.address import check_name

GUESTS_MAX = 1000

# Fields of the head of a conversation that a swarm has with a contact
SWARM, CONTACT = "swarm", "contact"


@dataclass(frozen=True, slots=True)
class Swarm:
    """A swarm. `agent` answers messages to it. `key` makes the ids of its conversations hard to guess."""

    nametag: str
    owner: str
    agent: str
    key: str
    open: bool = False
    guests: frozenset[str] = frozenset()
    removed: bool = False

    def room(self, user: str) -> str:
        """Return the conversation between the swarm and this user."""
        text = f"{self.key}\x1f{self.nametag}\x1f{user}"
        return "swarm-" + hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class Contact:
    """A user who wrote to a swarm, and the agent and conversation that answers go to."""

    id: str
    agent: str
    conversation: str
    blocked: bool = False

    @property
    def user(self) -> str:
        return self.id.partition("|")[2]


def contact_id(swarm: str, user: str) -> str:
    return f"{swarm}|{user}"


# --- decisions


def check_may_write(swarm: Swarm, user: str, contact: Contact | None) -> None:
    """Raise unless this user may write to the swarm."""
    if swarm.removed:
        raise UnknownEntity(f"the swarm @{swarm.nametag} was removed")
    if contact is not None and contact.blocked:
        raise NotAContact(f"@{swarm.nametag} does not accept messages from {user}")
    if not (swarm.open or user == swarm.owner or user in swarm.guests):
        raise NotAContact(f"@{swarm.nametag} is not open to {user}; its owner can add them as a guest")


def check_may_answer(swarm: Swarm, user: str, contact: Contact | None) -> Contact:
    """Return the contact, or raise unless the swarm may write to this user."""
    if swarm.removed:
        raise UnknownEntity(f"the swarm @{swarm.nametag} was removed")
    if contact is None:
        raise NotAContact(
            f"{user} has never written to @{swarm.nametag}; a swarm can only write to users who wrote to it"
        )
    if contact.blocked:
        raise NotAContact(f"{user} is blocked by the owner of @{swarm.nametag}")
    return contact


def contact_change(now: Contact | None, agent: str, conversation: str) -> EntityChange:
    """Return the record that notes where answers to this sender go, or `None` if it is already known."""
    if now is not None and (now.agent, now.conversation) == (agent, conversation):
        return None
    return {"event": "wrote", "agent": agent, "conversation": conversation}


# --- on the log


async def create_swarm(log: Log, nametag: str, owner: str, agent: str, *, is_open: bool = False) -> Swarm:
    tag = parse_nametag(nametag)
    facts = {
        "event": "created",
        "owner": check_user_id(owner),
        "agent": check_name(agent, "agent name"),
        "key": secrets.token_hex(KEY_BYTES),
        "open": is_open,
    }
    return await create_entity(log, SWARMS, tag, facts, [reserve_nametag(tag, "swarm", tag)])


async def set_swarm_open(log: Log, nametag: str, *, is_open: bool) -> Swarm:
    """Open a swarm to every user, or only to its guests."""
    return await _change_swarm(
        log, nametag, lambda swarm: None if swarm.open == is_open else {"event": "opened", "open": is_open}
    )


async def add_guest(log: Log, nametag: str, user: str) -> Swarm:
    guest = check_user_id(user)

    def decide(swarm: Swarm) -> EntityChange:
        if len(swarm.guests) >= GUESTS_MAX:
            raise InvalidInput(f"a swarm has at most {GUESTS_MAX} guests; open it to every user instead")
        return None if guest in swarm.guests else {"event": "let_in", "user": guest}

    return await _change_swarm(log, nametag, decide)


async def remove_guest(log: Log, nametag: str, user: str) -> Swarm:
    guest = check_user_id(user)
    return await _change_swarm(
        log, nametag, lambda swarm: {"event": "put_out", "user": guest} if guest in swarm.guests else None
    )


async def remove_swarm(log: Log, nametag: str) -> Swarm:
    return await _change_swarm(log, nametag, lambda swarm: None if swarm.removed else {"event": "removed"})


async def set_contact_blocked(log: Log, nametag: str, user: str, *, blocked: bool) -> Contact:
    """Block or unblock a contact of a swarm."""
    entity = contact_id(parse_nametag(nametag), check_user_id(user))
    facts = {"event": "blocked" if blocked else "unblocked"}
    return await change_entity(log, CONTACTS, entity, lambda contact: None if contact.blocked == blocked else facts)


async def find_swarm(log: Log, nametag: str) -> EntitySnapshot[Swarm]:
    tag = await resolve_nametag(log, nametag, "swarm")
    return await find_entity(log, SWARMS, tag)


async def find_contact(log: Log, swarm: str, user: str) -> EntitySnapshot[Contact] | None:
    """Return the contact, or `None` if the user never wrote to the swarm or was erased."""
    try:
        return await look_up_entity(log, CONTACTS, contact_id(swarm, user))
    except TopicDeleted:
        return None


async def list_swarms(log: Log, owner: str | None = None) -> list[Swarm]:
    every = await list_entities(log, SWARMS)
    return [swarm for swarm in every if not swarm.removed and (owner is None or swarm.owner == owner)]


async def list_contacts(log: Log, nametag: str) -> list[Contact]:
    return await list_entities(log, CONTACTS, contact_id(parse_nametag(nametag), ""))


async def _change_swarm(log: Log, nametag: str, decide: Callable[[Swarm], EntityChange]) -> Swarm:
    found = await find_swarm(log, nametag)
    return await change_entity(log, SWARMS, found.state.nametag, decide)


def _begin(entity: str, record: Record) -> Swarm:
    facts = record.payload
    return Swarm(entity, facts["owner"], facts["agent"], facts["key"], facts["open"])


def _apply(swarm: Swarm, record: Record) -> Swarm:
    facts = record.payload
    if facts["event"] == "opened":
        return replace(swarm, open=facts["open"])
    if facts["event"] == "let_in":
        return replace(swarm, guests=swarm.guests | {facts["user"]})
    if facts["event"] == "put_out":
        return replace(swarm, guests=swarm.guests - {facts["user"]})
    return replace(swarm, removed=True)


def _begin_contact(entity: str, record: Record) -> Contact:
    return Contact(entity, record.payload["agent"], record.payload["conversation"])


def _apply_contact(contact: Contact, record: Record) -> Contact:
    facts = record.payload
    if facts["event"] == "wrote":
        return replace(contact, agent=facts["agent"], conversation=facts["conversation"])
    return replace(contact, blocked=facts["event"] == "blocked")


SWARMS = EntityKind("swarm", _begin, _apply)
CONTACTS = EntityKind("contact", _begin_contact, _apply_contact)
