"""The store: which function runs which operation. Both engines that keep a log in SQLite run the same ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from magent2.bus import operations as op
from magent2.bus import sqlite_append, sqlite_house, sqlite_lanes, sqlite_reads, sqlite_transfer
from magent2.bus.sqlite_state import State, View
from magent2.errors import Magent2Error

AnyOperation = op.Operation[Any]

WRITES: dict[type[AnyOperation], Callable[[State, Any], Any]] = {
    op.Append: sqlite_append.append,
    op.OwnedAppend: sqlite_lanes.owned_append,
    op.Settle: sqlite_lanes.settle,
    op.Later: sqlite_lanes.later,
    op.Claim: sqlite_lanes.claim,
    op.Renew: sqlite_lanes.renew,
    op.Leave: sqlite_lanes.leave,
    op.Trim: sqlite_house.trim,
    op.Compact: sqlite_house.compact,
    op.Erase: sqlite_house.erase,
    op.Delete: sqlite_house.delete,
    op.PutBlob: sqlite_house.put_blob,
    op.SweepBlobs: sqlite_house.sweep_blobs,
    op.Load: sqlite_transfer.load,
}

READS: dict[type[AnyOperation], Callable[[View, Any], Any]] = {
    op.Read: sqlite_reads.read,
    op.Find: sqlite_reads.find,
    op.Describe: sqlite_reads.describe,
    op.Topics: sqlite_reads.topics,
    op.Pending: sqlite_reads.pending,
    op.Lanes: sqlite_reads.lanes,
    op.Workers: sqlite_reads.workers,
    op.GetBlob: sqlite_reads.get_blob,
    op.Info: sqlite_reads.info,
    op.Dump: sqlite_transfer.dump,
}


def run_group(state: State, operations: Sequence[AnyOperation]) -> list[Any]:
    """The outcome of each, in order: what it returns, or the refusal. In a transaction that the caller has begun.

    A refused operation has written nothing, so the others go on; after any other error the caller has to roll back.
    """
    state.begin(operations)
    outcomes = []
    for operation in operations:
        try:
            outcomes.append(WRITES[type(operation)](state, operation))
        except Magent2Error as refusal:
            outcomes.append(refusal)
    state.flush()
    return outcomes
