"""Table of the functions that run each operation, shared by the SQLite engine and the memory engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from magent2.bus import operations as op
from magent2.bus.operations import AnyOperation
from magent2.bus.sqlite_engine import append, lanes, maintenance, reads, transfer
from magent2.bus.sqlite_engine.connection import ReadConnection, WriteConnection
from magent2.errors import Magent2Error

WRITES: dict[type[AnyOperation], Callable[[WriteConnection, Any], object]] = {
    op.Append: append.append,
    op.OwnedAppend: lanes.owned_append,
    op.Settle: lanes.settle,
    op.Later: lanes.later,
    op.Claim: lanes.claim,
    op.Renew: lanes.renew,
    op.Leave: lanes.leave,
    lanes.EndProcess: lanes.end_process,
    op.Trim: maintenance.trim,
    op.Compact: maintenance.compact,
    op.Erase: maintenance.erase,
    op.Delete: maintenance.delete,
    op.Expire: maintenance.expire,
    op.Scrub: maintenance.scrub,
    op.PutBlob: maintenance.put_blob,
    op.SweepBlobs: maintenance.sweep_blobs,
    op.Load: transfer.load,
}

READS: dict[type[AnyOperation], Callable[[ReadConnection, Any], object]] = {
    op.Read: reads.read,
    op.Find: reads.find,
    op.Describe: reads.describe,
    op.Topics: reads.topics,
    op.Pending: reads.pending,
    op.Lanes: reads.lanes,
    op.Workers: reads.workers,
    op.GetBlob: reads.get_blob,
    op.Info: reads.info,
    op.Dump: transfer.dump,
}

LONG_READS = frozenset((op.GetBlob, op.Dump))  # always megabytes: an event loop does not even try them


def run_group(db: WriteConnection, operations: Sequence[AnyOperation]) -> list[object]:
    """Run write operations in the transaction that the caller has begun; return the result or refusal of each.

    A refused operation must not fail the group, whose other operations belong to other callers. So every operation
    makes all its checks before its first write: a `Magent2Error` means that it has written nothing, and the group goes
    on. Any other error may come in the middle of a write; then the caller has to roll the transaction back.
    """
    db.begin_group(operations)
    outcomes: list[object] = []
    for operation in operations:
        try:
            outcomes.append(WRITES[type(operation)](db, operation))
        except Magent2Error as refusal:
            outcomes.append(refusal)
    db.flush()
    return outcomes
