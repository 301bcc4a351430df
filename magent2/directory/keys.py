"""API keys: credentials for a gateway, and the principal that each stands for.

Only the sha256 of the secret is on the log. The secret has 32 random bytes, so a slow hash would add no security.
The token in a gateway's token file is registered as a key with the scope `admin`, so that every gateway of the log
accepts it. Its id is made of the token, because the text of a token names no key.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from magent2.bus.log import Log
from magent2.bus.records import Record
from magent2.directory.entity import (
    EntityKind,
    change_entity,
    change_or_create_entity,
    create_entity,
    list_entities,
    look_up_entity,
)
from magent2.errors import InvalidInput
from magent2.models.address import check_name
from magent2.models.principal import ADMIN, ADMIN_SCOPE, Principal
from magent2.token import is_token

KEY_PREFIX = "mk"
ID_BYTES = 6
SECRET_BYTES = 32
SECRET_CHARS = 43  # of 32 bytes in URL-safe base64
LABEL_MAX_CHARS = 200
USER_PREFIX = "user:"
_TEXT = re.compile(rf"{KEY_PREFIX}_([0-9a-f]{{{2 * ID_BYTES}}})_(.{{{SECRET_CHARS}}})")


@dataclass(frozen=True, slots=True)
class ApiKey:
    """A key, without its secret."""

    id: str
    digest: str = field(repr=False)
    scopes: tuple[str, ...]
    label: str
    created_ms: int
    revoked_ms: int | None = None

    @property
    def created_at(self) -> datetime:
        return datetime.fromtimestamp(self.created_ms / 1000, UTC)

    @property
    def revoked_at(self) -> datetime | None:
        return None if self.revoked_ms is None else datetime.fromtimestamp(self.revoked_ms / 1000, UTC)

    @property
    def principal(self) -> Principal:
        """The user that the key names, or the administrator for an admin key without a user."""
        user = next((scope for scope in self.scopes if scope.startswith(USER_PREFIX)), ADMIN.name)
        return Principal(user, admin=ADMIN_SCOPE in self.scopes)

    def opens(self, secret: str) -> bool:
        """Return whether `secret` is that of this key and the key is not revoked, comparing in constant time."""
        return hmac.compare_digest(digest_of(secret), self.digest) and self.revoked_ms is None


@dataclass(frozen=True, slots=True)
class NewApiKey:
    """A new key and its text, which cannot be read again later."""

    key: ApiKey
    text: str = field(repr=False)


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def split_key(text: str) -> tuple[str, str] | None:
    """Return id and secret of a key's text, or `None` if it is not a key."""
    found = _TEXT.fullmatch(text)
    return (found[1], found[2]) if found is not None else None


def split_credential(text: str) -> tuple[str, str] | None:
    """Return the id of the key that a credential stands for, and its secret. A credential is a key or a token."""
    parts = split_key(text)
    return parts if parts is not None or not is_token(text) else (token_key_id(text), text)


def token_key_id(token: str) -> str:
    """Return the id under which a token is registered. It tells nothing about the stored hash of the token."""
    return hashlib.sha256(b"key id of " + token.encode()).hexdigest()[: 2 * ID_BYTES]


def check_scopes(scopes: Sequence[str]) -> tuple[str, ...]:
    """Validate scopes: `admin`, `user:{name}`, or both."""
    chosen = tuple(dict.fromkeys(scopes))
    users = [scope for scope in chosen if scope.startswith(USER_PREFIX)]
    for scope in chosen:
        if scope != ADMIN_SCOPE and (scope not in users or scope == USER_PREFIX):
            raise InvalidInput(f"{scope[:80]!r} is not a scope; use 'admin' or 'user:NAME'")
        check_name(scope, "scope")
    if not chosen or len(users) > 1:
        raise InvalidInput("a key needs a scope, and at most one user; give 'admin' or one 'user:NAME'")
    if users == [ADMIN.name] and ADMIN_SCOPE not in chosen:
        raise InvalidInput(f"{ADMIN.name!r} is the name of the administrator; choose another")
    return chosen


async def create_key(log: Log, scopes: Sequence[str], label: str = "") -> NewApiKey:
    """Create a key. Only the result contains its text."""
    chosen = check_scopes(scopes)
    if len(label) > LABEL_MAX_CHARS or not label.isprintable():
        raise InvalidInput(f"a label has at most {LABEL_MAX_CHARS} printable characters")
    entity, secret = secrets.token_hex(ID_BYTES), secrets.token_urlsafe(SECRET_BYTES)
    facts = {"event": "created", "sha256": digest_of(secret), "scopes": list(chosen), "label": label}
    key = await create_entity(log, KEYS, entity, facts)
    return NewApiKey(key, f"{KEY_PREFIX}_{entity}_{secret}")


async def revoke_key(log: Log, entity: str) -> ApiKey:
    """Revoke a key. Gateways that have cached it are notified."""
    return await change_entity(log, KEYS, entity, lambda key: {"event": "revoked"} if key.revoked_ms is None else None)


async def register_token(log: Log, token: str, label: str) -> ApiKey:
    """Make every gateway of the log accept a token. A token that is registered already stays as it is, also revoked."""
    facts = {"event": "created", "sha256": digest_of(token), "scopes": [ADMIN_SCOPE], "label": label[:LABEL_MAX_CHARS]}
    return await change_or_create_entity(log, KEYS, token_key_id(token), lambda known: facts if known is None else None)


async def find_token(log: Log, token: str) -> ApiKey | None:
    """Return the key as which a token is registered."""
    found = await look_up_entity(log, KEYS, token_key_id(token))
    return None if found is None else found.state


async def replace_token(log: Log, old: str | None, new: str, label: str) -> None:
    """Register a token and revoke the one that it replaces."""
    await register_token(log, new, label)
    if old is not None and old != new and await find_token(log, old) is not None:
        await revoke_key(log, token_key_id(old))


async def list_keys(log: Log) -> list[ApiKey]:
    """Return all keys, oldest first, including revoked ones."""
    keys = await list_entities(log, KEYS)
    return sorted(keys, key=lambda key: (key.created_ms, key.id))


def _begin(entity: str, record: Record) -> ApiKey:
    facts = record.payload
    return ApiKey(entity, facts["sha256"], tuple(facts["scopes"]), facts.get("label", ""), record.at_ms)


def _apply(key: ApiKey, record: Record) -> ApiKey:
    return replace(key, revoked_ms=record.at_ms) if record.payload.get("event") == "revoked" else key


KEYS = EntityKind("key", _begin, _apply)
