"""The store: which function runs which operation. Both engines that keep a log in SQLite run the same ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from magent2.bus import operations as op
from magent2.bus.sqlite_engine import append, house, lanes, reads, transfer
from magent2.bus.sqlite_engine.state import State, View
from magent2.errors import Magent2Error

AnyOperation = op.Operation[Any]

WRITES: dict[type[AnyOperation], Callable[[State, Any], Any]] = {
    op.Append: append.append,
    op.OwnedAppend: lanes.owned_append,
    op.Settle: lanes.settle,
    op.Later: lanes.later,
    op.Claim: lanes.claim,
    op.Renew: lanes.renew,
    op.Leave: lanes.leave,
    op.Trim: house.trim,
    op.Compact: house.compact,
    op.Erase: house.erase,
    op.Delete: house.delete,
    op.PutBlob: house.put_blob,
    op.SweepBlobs: house.sweep_blobs,
    op.Load: transfer.load,
}

READS: dict[type[AnyOperation], Callable[[View, Any], Any]] = {
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
