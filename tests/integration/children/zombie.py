"""A process that claims one lane and at each `go` tries every owner operation, even after it has lost the lane.

Settings: `url`, `agent`, `trail`, `lease_s`.
"""

from __future__ import annotations

from magent2.bus.connect import connect
from magent2.bus.interface import Engine
from magent2.bus.operations import Claim, Operation, Pending, Renew
from magent2.errors import Magent2Error
from tests.support.audited_lane import hand_back_append, settle_append, start_append
from tests.support.processes import await_line, report, settings

WORKER = "zombie"


def main() -> None:
    given = settings()
    engine = connect(given["url"])
    claim = Claim(worker=WORKER, agents=(given["agent"],), limit=1, lease_s=given["lease_s"])
    (lane,) = engine.call(claim).lanes
    report(token=lane.owner.token)
    while await_line() == "go":
        report(
            renewed=engine.call(Renew(WORKER, given["lease_s"])),
            append=_outcome(engine, start_append(given["trail"], lane)),
            pending=_outcome(engine, Pending(lane.owner)),
            later=_outcome(engine, hand_back_append(given["trail"], lane, 2, 0.0)),
            settle=_outcome(engine, settle_append(given["trail"], lane, 2)),
        )


def _outcome(engine: Engine, operation: Operation[object]) -> str:
    try:
        engine.call(operation)
    except Magent2Error as error:
        return type(error).__name__
    return "done"


if __name__ == "__main__":
    main()
