"""The gateway's token, the accepted Host and Origin headers, and the identity of a request."""

from __future__ import annotations

import hmac
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias
from urllib.parse import urlsplit

from starlette.types import Scope

from magent2.bus.records import TopicInfo
from magent2.errors import NotYours, SettingsError
from magent2.gateway.problems import Problem
from magent2.mail.headers import OWNER
from magent2.models.address import check_name
from magent2.models.principal import ADMIN, Principal
from magent2.settings import is_loopback
from magent2.token import TokenFile

log = logging.getLogger(__name__)

FileStat: TypeAlias = tuple[int, int, int]  # inode, time of change, size


class WatchedToken:
    """The token in a file, read again when the file has changed."""

    def __init__(self, file: TokenFile) -> None:
        self._file = file
        self._last_stat: FileStat | None = None
        self._token = ""
        self._replaced: set[str] = set()

    @property
    def label(self) -> str:
        """Where the token is, for the list of keys."""
        return self._file.label

    @property
    def token(self) -> str:
        """The current token. While the file cannot be read, it is the last one that was read."""
        try:
            stat = self._file.path.stat()
        except OSError:
            return self._token
        current = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if current != self._last_stat:
            self._read(current)
        return self._token

    def _read(self, current: FileStat) -> None:
        try:
            token = self._file.read() or self._token
            if self._token and token != self._token:
                self._replaced.add(self._token)
            self._token = token
            self._replaced.discard(token)
            self._last_stat = current
        except SettingsError as error:
            log.warning("cannot read the token file; the last token remains valid", extra={"error": str(error)})

    def was_replaced(self, text: str) -> bool:
        """Return whether this was the token before. It is invalid here at once, before the log says that it is."""
        return text in self._replaced


@dataclass(frozen=True, slots=True)
class Access:
    """Access rules of a gateway. By default every caller is an administrator.

    With `loopback`, only names of this machine are accepted as Host. `hosts` are accepted in addition; if there are
    any, all other names are refused. With `same_origin`, only pages of the gateway's own origin may call it.
    """

    fixed: str | None = field(default=None, repr=False)
    watched: WatchedToken | None = None
    loopback: bool = False
    same_origin: bool = False
    hosts: frozenset[str] = frozenset()

    @classmethod
    def by_token(cls, token: str, *, loopback: bool) -> Access:
        return cls(fixed=token, loopback=loopback, same_origin=True)

    @classmethod
    def by_file(cls, file: TokenFile, *, loopback: bool) -> Access:
        file.obtain()
        return cls(watched=WatchedToken(file), loopback=loopback, same_origin=True)

    @property
    def token(self) -> str | None:
        return self.watched.token if self.watched is not None else self.fixed

    def has_token(self, authorization: bytes) -> bool:
        """Return whether the header has the token, in constant time. Without a token every header does."""
        token = self.token
        return token is None or hmac.compare_digest(bearer(authorization), token.encode())

    def was_token(self, text: str) -> bool:
        """Return whether this was the token until the token file was replaced."""
        return self.watched is not None and self.watched.was_replaced(text)

    def accepts_host(self, host: str) -> bool:
        if not self.loopback and not self.hosts:
            return True
        name = host_name(host)
        return name in self.hosts or is_loopback(name)

    def accepts_origin(self, origin: str, host: str, own_scheme: str | None = None) -> bool:
        """Return whether the origin of a page is the gateway's own. A proxy may report the scheme as `own_scheme`."""
        if not self.same_origin:
            return True
        scheme, _, netloc = origin.partition("://")
        own = _host_and_port(host, scheme)
        return own is not None and _host_and_port(netloc, scheme) == own and own_scheme in (None, scheme)


def parse_hosts(names: Iterable[str]) -> frozenset[str]:
    """Normalize the names of allowed hosts. Raises `SettingsError` for a text that is not a name."""
    found = frozenset(name.strip().rstrip(".").lower() for name in names)
    for name in found:
        if not name or host_name(name) != name:
            raise SettingsError(
                f"an allowed host is a name such as magent2.example.org, without a port, not {name[:80]!r}"
            )
    return found


def bearer(authorization: bytes) -> bytes:
    """Return the bearer token of the header, or an empty text."""
    scheme, _, credential = authorization.partition(b" ")
    return credential.strip() if scheme.lower() == b"bearer" else b""


@lru_cache(maxsize=256)  # parsed for every request, and there are few different ones
def host_name(host: str) -> str:
    """Return the name without the port: `[::1]:80` → `::1`. Empty for a text that is not a host."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _host_and_port(netloc: str, scheme: str) -> tuple[str, int] | None:
    try:
        parts = urlsplit(f"//{netloc}")
        port = parts.port
    except ValueError:
        return None
    return (parts.hostname, port or (443 if scheme == "https" else 80)) if parts.hostname else None


IDENTITY_KEY = "magent2.identity"


@dataclass(frozen=True, slots=True)
class Identity:
    """The principal of a request, and the id of its API key. `key` is `None` for the token and on open paths."""

    principal: Principal
    key: str | None = None


TOKEN_IDENTITY = Identity(ADMIN)
ANONYMOUS = Identity(Principal(""))  # of requests on open paths


def identity_of(scope: Scope) -> Identity:
    """Return the identity of a request. Without access rules, every caller is an administrator."""
    found = scope.get(IDENTITY_KEY, TOKEN_IDENTITY)
    return found if isinstance(found, Identity) else ANONYMOUS


def principal_of(scope: Scope) -> Principal:
    return identity_of(scope).principal


def may_read(principal: Principal, info: TopicInfo) -> bool:
    """Return whether a principal may read a conversation. Raises `NotYours` if another principal owns it.

    False if the conversation does not exist yet. True for every principal if it was deleted: its owner was deleted with
    it, and the caller reports it as gone.
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
