"""The limits that a file of agents, or `MAGENT2_LIMIT_{NAME}`, may set: their names, units and ranges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from magent2.errors import SettingsError
from magent2.roster.spec import nearest
from magent2.roster.table import Table, shown
from magent2.settings import LIMIT_PREFIX

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Bound:
    """What one limit may be. A `whole` one is counted, the others are measured."""

    low: float
    high: float
    means: str
    whole: bool = True


RATES = {
    "send": "messages and tool runs",
    "write": "other requests that change something",
    "read": "requests that only read",
    "stream": "streams",
}

BOUNDS: Mapping[str, Bound] = {
    "max_turns": Bound(1, 1000, "how often a run may ask the model"),
    "history_max": Bound(0, 100_000, "how many earlier runs of a conversation the model is shown"),
    "concurrency": Bound(1, 1000, "how many conversations a worker has at work at a time"),
    "run_max_s": Bound(0.1, 86_400, "how long one attempt at a run may take", whole=False),
    "lease_s": Bound(1, 600, "how long the runs of a worker that has died wait for another", whole=False),
    "approval_max_s": Bound(1, 31_536_000, "how long a call waits for a person's approval", whole=False),
    "run_drain_s": Bound(0, 3600, "how long a stopping worker waits for its runs", whole=False),
    "body_max_bytes": Bound(1 << 10, 256 * MIB, "the largest request that a gateway takes"),
    "text_max_chars": Bound(1, 64 * MIB, "the longest message that a gateway takes"),
    "streams_max": Bound(1, 1_000_000, "how many streams a gateway holds open"),
    "streams_per_principal_max": Bound(1, 1_000_000, "how many of them one person holds open"),
    "queue_max_messages": Bound(1, 1_000_000, "how many messages wait in one conversation"),
    "connections_max": Bound(1, 1_000_000, "how many connections a gateway holds open"),
    "headers_max_s": Bound(0.1, 600, "how long the headers of a request may take", whole=False),
    "body_max_s": Bound(0.1, 3600, "how long the body of a request may take", whole=False),
    "send_max_s": Bound(0.1, 3600, "how long a client may take to accept what it is sent", whole=False),
    "keep_alive_s": Bound(0.1, 3600, "how long an idle connection is kept", whole=False),
    "heartbeat_s": Bound(0.1, 600, "how often an idle stream says that it is alive", whole=False),
    "drain_s": Bound(0, 3600, "how long a stopping gateway waits for what is under way", whole=False),
    "wait_max_s": Bound(0, 3600, "how long a request waits for the answer to a message", whole=False),
    "route_max_s": Bound(0, 600, "how long a supervisor may take to decide", whole=False),
    **{
        f"{kind}_per_s": Bound(0.001, 1e6, f"{what} of one person, in the long run", whole=False)
        for kind, what in RATES.items()
    },
    **{
        f"{kind}_burst": Bound(1, 1_000_000, f"{what} of one person at once, after a pause")
        for kind, what in RATES.items()
    },
}


def read_limits(table: Table) -> dict[str, Any]:
    """The limits of the table that are in range; each other one is a fault."""
    found: dict[str, Any] = {}
    for name in BOUNDS:
        value = table.number(name)
        if value is None:
            continue
        fault = _fault(name, value)
        if fault is not None:
            table.fault(name, fault)
        else:
            found[name] = value
    table.close()
    return found


def limits_of(texts: Mapping[str, str]) -> dict[str, Any]:
    """The limits that the environment sets, by their names; the first that cannot be used is the caller's error."""
    found: dict[str, Any] = {}
    for name, text in texts.items():
        variable = f"{LIMIT_PREFIX}{name.upper()}"
        if name not in BOUNDS:
            near = nearest(name, list(BOUNDS))
            hint = f"did you mean {LIMIT_PREFIX}{near.upper()}?" if near else f"known are: {', '.join(BOUNDS)}"
            raise SettingsError(f"{variable} is a limit that nobody knows; {hint}")
        fault = _fault(name, value) if (value := _number(text)) is not None else f"must be a number, not {shown(text)}"
        if fault is not None:
            raise SettingsError(f"{variable} {fault}")
        found[name] = value
    return found


def _number(text: str) -> int | float | None:
    try:
        return int(text) if text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        return None


def _fault(name: str, value: float) -> str | None:
    bound = BOUNDS[name]
    if bound.whole and not isinstance(value, int):
        return f"must be a whole number, not {shown(value)}"
    if not bound.low <= value <= bound.high:
        return f"must be from {bound.low:g} to {bound.high:g}, not {shown(value)}"
    return None
