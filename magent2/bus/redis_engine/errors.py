"""What an error of the server means for the caller, and how long the engine tries by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator

from magent2.errors import (
    BusUnavailable,
    Magent2Error,
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
_DENIED = frozenset({"NOAUTH", "WRONGPASS", "NOPERM"})


def retry_delays(for_s: float) -> Iterator[float]:
    """How long to wait before each attempt; at its end, the bounded time is over."""
    deadline = time.monotonic() + for_s
    yield 0.0
    pause = PAUSE_MIN_S
    while (left := deadline - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(pause * 2, PAUSE_MAX_S)


def is_unknown_script(text: str) -> bool:
    return text.startswith("NOSCRIPT")


def is_transient(text: str) -> bool:
    """Whether the server will think better of it by itself."""
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
    if code in _DENIED or "AUTH" in text or "invalid password" in text:
        return StorageUnwritable(
            f"Redis at {server} refuses user or password, or the user may not do this ({_short(text)});"
            " put them into the URL, redis://user:password@host;"  # pragma: allowlist secret
            " ACL LIST on the server shows what is allowed"
        )
    return StorageCorrupt(
        f"Redis at {server} answers {_short(text)!r}; has another program written under the prefix of this log?"
    )


def _short(text: str) -> str:
    return text[:200]
