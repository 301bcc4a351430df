"""Epochs: the check that a connection makes before anything else, and what it says about lost records (decision 54)."""

from __future__ import annotations

import logging

from magent2.bus.redis_engine.exchanges import Keyspace
from magent2.bus.redis_engine.functions import Exchange
from magent2.errors import StorageError
from magent2.models.address import EPOCH_TOPIC

log = logging.getLogger(__name__)

# Why the function `epoch` has begun a new epoch → for the log of the process.
_REASONS = {
    b"promoted": "a replica was promoted",
    b"replaced": "another server is the primary now",
    b"restarted": "the server was restarted and does not sync every write",
    b"lost": "the server lacks an epoch or a record that was there",
}


def check_epoch(keyspace: Keyspace) -> Exchange[None]:
    """Learn the epoch of the log. If the server may have lost records, this begins a new one."""
    facts = int(keyspace.by_sentinel), *keyspace.epoch.seen
    reply = yield keyspace.fcall("epoch", keyspace.epoch.known, "", *facts)
    if not isinstance(reply, list):  # this is no server of ours; the handshake finds out what it is
        keyspace.epoch.forget()
        return
    if reply[1] == b"ask":
        safe = int((yield from _syncs_every_write()))
        reply = yield keyspace.fcall("epoch", keyspace.epoch.known, safe, *facts)
    found, reason = reply[0].decode(), reply[1]
    before = keyspace.epoch.known
    keyspace.epoch.note(found)
    number = found.partition(":")[0]
    if reason:
        log.warning(
            "the log has a new epoch: acknowledged records may be lost",
            extra={"epoch": number, "reason": _REASONS.get(reason, reason.decode()), "topic": EPOCH_TOPIC},
        )
    elif before not in ("", found):
        log.warning("the log has an epoch that another process has begun", extra={"epoch": number})


def _syncs_every_write() -> Exchange[bool]:
    """Whether a crash of the server loses nothing that it acknowledged; False if it does not tell."""
    try:
        reply = yield ("CONFIG", "GET", "append*")
    except StorageError:
        return False
    found = dict(zip(reply[::2], reply[1::2], strict=True))
    return found.get(b"appendonly") == b"yes" and found.get(b"appendfsync") == b"always"
