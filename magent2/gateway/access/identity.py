"""Whose request it is: the guard says it once, the routes ask."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.types import Scope

from magent2.bus.records import TopicInfo
from magent2.errors import NotYours
from magent2.gateway.problems import Problem
from magent2.mail.headers import OWNER
from magent2.models.address import check_name
from magent2.models.principal import ADMIN, Principal

IDENTITY_KEY = "magent2.identity"


@dataclass(frozen=True, slots=True)
class Identity:
    """Who acts, and by which key; without one it is whoever holds the machine's token, or came through an open door."""

    principal: Principal
    key: str | None = None


TOKEN_IDENTITY = Identity(ADMIN)
ANONYMOUS = Identity(Principal(""))  # on the paths that are open to all


def identity_of(scope: Scope) -> Identity:
    """Whoever the guard found; an application without access rules is everybody's."""
    found = scope.get(IDENTITY_KEY, TOKEN_IDENTITY)
    return found if isinstance(found, Identity) else ANONYMOUS


def principal_of(scope: Scope) -> Principal:
    return identity_of(scope).principal


def may_read(principal: Principal, info: TopicInfo) -> bool:
    """Whether a conversation is there for a principal to see; `NotYours` when it is somebody else's.

    `False` while nobody has begun it. One that was deleted is told as gone to everybody: whose it was is gone too.
    """
    if info.deleted:
        return True
    if not info.last and not info.head:
        return False
    if not principal.owns(info.head.get(OWNER)):
        raise NotYours(f"there is no conversation {info.topic.partition(':')[2][:80]!r}")
    return True


def check_sender(principal: Principal, sender: str | None) -> str:
    """The sender of what a principal sends: itself, unless it is an admin, who may send for anybody."""
    if sender is None or check_name(sender, "sender") == principal.name:
        return principal.name
    if not principal.admin:
        raise Problem(
            403, "foreign_sender", f"this key sends as {principal.name!r} only; leave 'sender' out or make it that"
        )
    return sender
