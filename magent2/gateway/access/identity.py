"""The identity of a request: set by the access middleware, read by the routes."""

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
    """The principal of a request, and the id of its API key. Without a key it is the token, or an open route."""

    principal: Principal
    key: str | None = None


TOKEN_IDENTITY = Identity(ADMIN)
ANONYMOUS = Identity(Principal(""))  # on paths that need no credential


def identity_of(scope: Scope) -> Identity:
    """Return the identity of a request. Without access rules, every caller is an administrator."""
    found = scope.get(IDENTITY_KEY, TOKEN_IDENTITY)
    return found if isinstance(found, Identity) else ANONYMOUS


def principal_of(scope: Scope) -> Principal:
    return identity_of(scope).principal


def may_read(principal: Principal, info: TopicInfo) -> bool:
    """Return whether a principal may read a conversation that exists. Raises `NotYours` if another principal owns it.

    A conversation that does not exist yet returns false. A deleted one returns true for every principal, because its
    owner was deleted with it; the caller then reports it as gone.
    """
    if info.deleted:
        return True
    if not info.last and not info.head:
        return False
    if not principal.owns(info.head.get(OWNER)):
        raise NotYours(f"there is no conversation {info.topic.partition(':')[2][:80]!r}")
    return True


def check_sender(principal: Principal, sender: str | None) -> str:
    """Return the sender of a principal's message. Only an administrator may name another sender than itself."""
    if sender is None or check_name(sender, "sender") == principal.name:
        return principal.name
    if not principal.admin:
        raise Problem(
            403, "foreign_sender", f"this key sends as {principal.name!r} only; omit 'sender' or set it to that"
        )
    return sender
