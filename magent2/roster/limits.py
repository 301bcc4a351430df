"""The limits that a file of agents may set: their names, units and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magent2.roster.table import Table, shown

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Bound:
    """What one limit may be. A `whole` one is counted, the others are measured."""

    low: float
    high: float
    means: str
    whole: bool = True


BOUNDS: Mapping[str, Bound] = {
    "max_turns": Bound(1, 1000, "how often a run may ask the model"),
    "history_max": Bound(0, 100_000, "how many earlier runs of a conversation the model is shown"),
    "body_max_bytes": Bound(1 << 10, 256 * MIB, "the largest request that a gateway takes"),
    "text_max_chars": Bound(1, 64 * MIB, "the longest message that a gateway takes"),
    "streams_max": Bound(1, 1_000_000, "how many streams a gateway holds open"),
    "connections_max": Bound(1, 1_000_000, "how many connections a gateway holds open"),
    "headers_max_s": Bound(0.1, 600, "how long the headers of a request may take", whole=False),
    "body_max_s": Bound(0.1, 3600, "how long the body of a request may take", whole=False),
    "send_max_s": Bound(0.1, 3600, "how long a client may take to accept what it is sent", whole=False),
    "keep_alive_s": Bound(0.1, 3600, "how long an idle connection is kept", whole=False),
    "heartbeat_s": Bound(0.1, 600, "how often an idle stream says that it is alive", whole=False),
    "drain_s": Bound(0, 3600, "how long a stopping gateway waits for what is under way", whole=False),
}


def read_limits(table: Table) -> dict[str, Any]:
    """The limits of the table that are in range; each other one is a fault."""
    found: dict[str, Any] = {}
    for name, bound in BOUNDS.items():
        value = table.number(name)
        if value is None:
            continue
        if bound.whole and not isinstance(value, int):
            table.fault(name, f"must be a whole number, not {shown(value)}")
        elif not bound.low <= value <= bound.high:
            table.fault(name, f"must be from {bound.low:g} to {bound.high:g}, not {shown(value)}")
        else:
            found[name] = value
    table.close()
    return found
