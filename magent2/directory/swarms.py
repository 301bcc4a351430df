"""Swarms: agents of one user that others may write to by a nametag, and the contacts that came of it.

The contact rule: a swarm takes messages from its owner, from those whom it is opened to, or from everybody, if it is
open; it sends messages to those who have written to it, and to nobody else. Its owner can block a contact both ways.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from magent2.bus.flow import Flow
from magent2.bus.records import Record
from magent2.directory.entity import Found, Kind, changing, creating, finding, listing, looking
from magent2.directory.nametags import parse_nametag, reserved, resolving
from magent2.directory.users import check_user_id
from magent2.errors import InvalidInput, NotAContact, TopicDeleted, UnknownEntity
from magent2.models.address import check_name

KEY_BYTES = 16
GUESTS_MAX = 1000

# Fields of the head of a conversation that a swarm has with a contact
SWARM, CONTACT = "swarm", "contact"


@dataclass(frozen=True, slots=True)
class Swarm:
    """A swarm as the log tells it. `agent` answers what is sent to it. `key` makes its rooms hard to guess."""

    nametag: str
    owner: str
    agent: str
    key: str
    open: bool = False
    guests: frozenset[str] = frozenset()
    removed: bool = False

    def room(self, user: str) -> str:
        """The conversation that the swarm has with this user."""
        text = f"{self.key}\x1f{self.nametag}\x1f{user}"
        return "swarm-" + hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


@dataclass(frozen=True, slots=True)
class Contact:
    """Somebody who wrote to a swarm, and the agent and conversation where an answer reaches them."""

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
    """The rule for what goes to a swarm."""
    if swarm.removed:
        raise UnknownEntity(f"the swarm @{swarm.nametag} is gone")
    if contact is not None and contact.blocked:
        raise NotAContact(f"@{swarm.nametag} takes no messages from {user}")
    if not (swarm.open or user == swarm.owner or user in swarm.guests):
        raise NotAContact(f"@{swarm.nametag} is not open to {user}; its owner can let them in")


def check_may_answer(swarm: Swarm, user: str, contact: Contact | None) -> Contact:
    """The rule for what a swarm sends."""
    if swarm.removed:
        raise UnknownEntity(f"the swarm @{swarm.nametag} is gone")
    if contact is None:
        raise NotAContact(f"{user} has never written to @{swarm.nametag}; a swarm only answers")
    if contact.blocked:
        raise NotAContact(f"{user} is blocked by the owner of @{swarm.nametag}")
    return contact


def contact_change(now: Contact | None, agent: str, conversation: str) -> Mapping[str, Any] | None:
    """What a message to a swarm adds to what is known of its sender."""
    if now is not None and (now.agent, now.conversation) == (agent, conversation):
        return None
    return {"event": "wrote", "agent": agent, "conversation": conversation}


# --- on the log


def making_swarm(nametag: str, owner: str, agent: str, *, is_open: bool = False) -> Flow[Swarm]:
    tag = parse_nametag(nametag)
    facts = {
        "event": "created",
        "owner": check_user_id(owner),
        "agent": check_name(agent, "agent name"),
        "key": secrets.token_hex(KEY_BYTES),
        "open": is_open,
    }
    return (yield from creating(SWARMS, tag, facts, [reserved(tag, "swarm", tag)]))


def opening_swarm(nametag: str, *, is_open: bool) -> Flow[Swarm]:
    """To everybody, or only to those who were let in."""
    return (
        yield from _deciding(
            nametag, lambda swarm: None if swarm.open == is_open else {"event": "opened", "open": is_open}
        )
    )


def letting_in(nametag: str, user: str) -> Flow[Swarm]:
    guest = check_user_id(user)

    def decide(swarm: Swarm) -> Mapping[str, Any] | None:
        if len(swarm.guests) >= GUESTS_MAX:
            raise InvalidInput(f"a swarm is opened to at most {GUESTS_MAX} users by name; open it to everybody")
        return None if guest in swarm.guests else {"event": "let_in", "user": guest}

    return (yield from _deciding(nametag, decide))


def putting_out(nametag: str, user: str) -> Flow[Swarm]:
    guest = check_user_id(user)
    return (
        yield from _deciding(
            nametag, lambda swarm: {"event": "put_out", "user": guest} if guest in swarm.guests else None
        )
    )


def removing_swarm(nametag: str) -> Flow[Swarm]:
    return (yield from _deciding(nametag, lambda swarm: None if swarm.removed else {"event": "removed"}))


def blocking(nametag: str, user: str, *, blocked: bool) -> Flow[Contact]:
    """End, or take up again, what goes between a swarm and a contact."""
    entity = contact_id(parse_nametag(nametag), check_user_id(user))
    facts = {"event": "blocked" if blocked else "unblocked"}
    return (yield from changing(CONTACTS, entity, lambda contact: None if contact.blocked == blocked else facts))


def finding_swarm(nametag: str) -> Flow[Found[Swarm]]:
    tag = yield from resolving(nametag, "swarm")
    return (yield from finding(SWARMS, tag))


def finding_contact(swarm: str, user: str) -> Flow[Found[Contact] | None]:
    """Who has written to the swarm; nobody of whom was erased."""
    try:
        return (yield from looking(CONTACTS, contact_id(swarm, user)))
    except TopicDeleted:
        return None


def listing_swarms(owner: str | None = None) -> Flow[list[Swarm]]:
    every = yield from listing(SWARMS)
    return [swarm for swarm in every if not swarm.removed and (owner is None or swarm.owner == owner)]


def listing_contacts(nametag: str) -> Flow[list[Contact]]:
    return (yield from listing(CONTACTS, contact_id(parse_nametag(nametag), "")))


def _deciding(nametag: str, decide: Callable[[Swarm], Mapping[str, Any] | None]) -> Flow[Swarm]:
    found = yield from finding_swarm(nametag)
    return (yield from changing(SWARMS, found.state.nametag, decide))


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


SWARMS = Kind("swarm", _begin, _apply)
CONTACTS = Kind("contact", _begin_contact, _apply_contact)
