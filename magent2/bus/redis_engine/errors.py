"""Error replies of the server as errors of magent2."""

from __future__ import annotations

import re

from magent2.errors import (
    BusUnavailable,
    Magent2Error,
    NoPermission,
    StorageCorrupt,
    StorageFull,
    StorageUnwritable,
    UnsupportedServer,
)

_NOT_PRIMARY = frozenset({"READONLY", "UNBLOCKED"})  # the server has become a replica; the primary is elsewhere
_TRANSIENT = frozenset({"BUSY", "LOADING", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS"})
_NAMED: dict[str, tuple[type[Magent2Error], str]] = {
    "OOM": (StorageFull, "has reached its maxmemory; raise it, or trim topics"),
    "MISCONF": (StorageUnwritable, "cannot write to its disk; see its log"),
    **dict.fromkeys(
        ("MOVED", "ASK", "CLUSTERDOWN", "CROSSSLOT"),
        (UnsupportedServer, "is a Cluster, which cannot append to several topics at once; use a single primary"),
    ),
}
_DENIED = frozenset({"NOAUTH", "WRONGPASS"})
_NOT_PERMITTED = ("NOPERM", "The user executing the script can't", "ACL failure in script")
_NO_FUNCTIONS = re.compile(r"unknown command .?(fcall|function)", re.IGNORECASE)
NEEDED_RIGHTS = (
    "+@read +@write +@pubsub +@connection +info +time +fcall +fcall_ro +function|load +function|list +function|delete"
)


def is_missing_function(text: str) -> bool:
    return text.startswith("ERR Function not found")


def is_stale_epoch(text: str) -> bool:
    return text.startswith("STALEEPOCH ")


def is_not_primary(text: str) -> bool:
    """Whether the server is not, or no longer, the primary. Commands then belong on another connection."""
    return text.partition(" ")[0] in _NOT_PRIMARY


def is_transient(text: str) -> bool:
    """Whether the same command may succeed later without any change."""
    return text.partition(" ")[0] in _TRANSIENT


def unavailable(server: str, why: object) -> BusUnavailable:
    if "CERTIFICATE_VERIFY_FAILED" in str(why):
        return BusUnavailable(
            f"the certificate of Redis at {server} is not trusted ({why}); name the file with the certificate of its"
            " authority in SSL_CERT_FILE, or in the URL as ?ssl_ca_certs=FILE"
        )
    if is_not_primary(str(why)):
        return BusUnavailable(f"Redis at {server} is a read-only replica; connect to the primary ({_short(str(why))})")
    return BusUnavailable(
        f"Redis at {server} does not answer ({why}); check that it runs, and that address, port and TLS are right"
    )


def refused_login(server: str, text: str) -> StorageUnwritable:
    return StorageUnwritable(
        f"Redis at {server} refuses user or password ({_short(text)});"
        " put them into the URL: redis://user:password@host"  # pragma: allowlist secret
    )


def refused_permission(server: str, text: str) -> NoPermission:
    return NoPermission(
        f"Redis at {server} does not permit its user to do this ({_short(text)});"
        f" give the user these rights: ACL SETUSER <user> ~<prefix>:* &<prefix>:* {NEEDED_RIGHTS}"
    )


def translate(text: str, server: str) -> Magent2Error:
    """Translate an error reply, which begins with its code."""
    code = text.partition(" ")[0]
    if code in _TRANSIENT or code in _NOT_PRIMARY:
        return unavailable(server, text)
    if code in _NAMED:
        kind, reason = _NAMED[code]
        return kind(f"Redis at {server} {reason} ({_short(text)})")
    if any(part in text for part in _NOT_PERMITTED):
        return refused_permission(server, text)
    if _NO_FUNCTIONS.search(text):
        return UnsupportedServer(
            f"Redis at {server} has no Redis Functions ({_short(text)});"
            " use Redis or Valkey 7.0 or newer, and do not rename FCALL, FCALL_RO and FUNCTION"
        )
    if code in _DENIED:
        return refused_login(server, text)
    return StorageCorrupt(
        f"Redis at {server} answers {_short(text)!r}; has another program written under the prefix of this log?"
    )


def _short(text: str) -> str:
    return text[:200]
