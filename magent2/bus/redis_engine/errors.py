"""What an error of the server means for the caller, and how long the engine tries by itself."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from magent2.errors import (
    BusUnavailable,
    Magent2Error,
    NoPermission,
    StorageCorrupt,
    StorageFull,
    StorageUnwritable,
    UnsupportedServer,
)

RETRY_FOR_S = 20.0  # after a connection that worked was lost
FIRST_CONTACT_S = 2.0  # before there ever was one
PAUSE_MIN_S, PAUSE_MAX_S = 0.02, 1.0

_TRANSIENT = frozenset({"BUSY", "LOADING", "TRYAGAIN", "MASTERDOWN", "NOREPLICAS"})
_NAMED: dict[str, tuple[type[Magent2Error], str]] = {
    "OOM": (StorageFull, "has reached its maxmemory; raise it, or trim topics"),
    "READONLY": (BusUnavailable, "is a read-only replica; connect to the primary"),
    "MISCONF": (StorageUnwritable, "cannot write to its disk; see its log"),
    **dict.fromkeys(
        ("MOVED", "ASK", "CLUSTERDOWN", "CROSSSLOT"),
        (UnsupportedServer, "is a Cluster, which cannot keep the promises; use a single primary"),
    ),
}
_DENIED = frozenset({"NOAUTH", "WRONGPASS"})
_NOT_PERMITTED = ("NOPERM", "The user executing the script can't", "ACL failure in script")
_NO_FUNCTIONS = re.compile(r"unknown command .?(fcall|function)", re.IGNORECASE)
NEEDED_RIGHTS = (
    "+@read +@write +@pubsub +@connection +info +time +fcall +fcall_ro +function|load +function|list +function|delete"
)


def retry_delays(for_s: float) -> Iterator[float]:
    """How long to wait before each attempt; at its end, the bounded time is over."""
    deadline = time.monotonic() + for_s
    yield 0.0
    pause = PAUSE_MIN_S
    while (left := deadline - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * 2, PAUSE_MAX_S)


def is_missing_function(text: str) -> bool:
    return text.startswith("ERR Function not found")


def is_transient(text: str) -> bool:
    """Whether the same command may succeed later without any change."""
    return text.partition(" ")[0] in _TRANSIENT


def unavailable(server: str, why: object) -> BusUnavailable:
    return BusUnavailable(
        f"Redis at {server} does not answer ({why}); check that it runs, and that address, port and TLS are right"
    )


def translate(text: str, server: str) -> Magent2Error:
    """An error reply as one of ours."""
    code = text.partition(" ")[0]
    if code in _TRANSIENT:
        return unavailable(server, text)
    if code in _NAMED:
        kind, says = _NAMED[code]
        return kind(f"Redis at {server} {says} ({_short(text)})")
    if any(part in text for part in _NOT_PERMITTED):
        return NoPermission(
            f"Redis at {server} does not permit its user to do this ({_short(text)});"
            f" give the user these rights: ACL SETUSER <user> ~<prefix>:* &<prefix>:* {NEEDED_RIGHTS}"
        )
    if _NO_FUNCTIONS.search(text):
        return UnsupportedServer(
            f"Redis at {server} has no Redis Functions ({_short(text)});"
            " use Redis or Valkey 7.0 or newer, and do not rename FCALL, FCALL_RO and FUNCTION"
        )
    if code in _DENIED or "AUTH" in text or "invalid password" in text:
        return StorageUnwritable(
            f"Redis at {server} refuses user or password ({_short(text)});"
            " put them into the URL: redis://user:password@host"  # pragma: allowlist secret
        )
    return StorageCorrupt(
        f"Redis at {server} answers {_short(text)!r}; has another program written under the prefix of this log?"
    )


def _short(text: str) -> str:
    return text[:200]
