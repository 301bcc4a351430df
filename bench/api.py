"""Measure the session API and its access checks over HTTP, compared with the plain routes: `make bench-api`.

On Redis, gateway and worker are two processes; on SQLite they share one. Prints a table and, as its last line,
one JSON object. `--quick` measures everything once with small counts.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.support.gateway.api import FULL, PAGE, QUICK, ApiScale, auth, events_per_s, message, response
from bench.support.gateway.two_gateways import GatewayPair, gateway_pair
from bench.support.processes import ECHO_AGENT, process
from bench.support.redis_server import redis_server
from bench.support.report import Benchmark, Figures, Goal, shown

GOALS = {
    f"{prefix}{name}": Goal(limit, at_most=True)
    for prefix in ("", "sqlite_")
    for name, limit in (
        ("api_events_ratio", 1.5),
        ("message_ratio", 1.3),
        ("response_ratio", 1.5),
        ("auth_ratio", 1.15),
    )
}


def measure_redis(figures: Figures, scale: ApiScale) -> None:
    from magent2.bus.redis_adapter import RedisBus

    with (
        redis_server() as url,
        gateway_pair(url, partial(RedisBus, url), worker=False) as found,
        process("magent2.worker", "--bus", url, "--agent", ECHO_AGENT),
    ):
        _measure(figures, "", found, scale)


def measure_sqlite(figures: Figures, scale: ApiScale) -> None:
    from magent2.bus.sqlite import SqliteBus

    with tempfile.TemporaryDirectory(prefix="magent2-bench-") as name:
        path = Path(name, "api.db")
        with gateway_pair(f"sqlite:///{path}", partial(SqliteBus, path), worker=True) as found:
            _measure(figures, "sqlite_", found, scale)


def _measure(figures: Figures, prefix: str, found: GatewayPair, scale: ApiScale) -> None:
    seen = events_per_s(found, scale)
    note = f"pages of {PAGE} near the end of {scale.session_large:,}; {shown(seen.raw)} of {scale.session_small:,}"
    figures.add(f"{prefix}api_events_per_s", seen.ours, note)
    figures.add(f"{prefix}api_events_ratio", 1 / seen.ratio, "a page of the long session over one of the short, time")
    for name, pair, what in (
        ("message", message(found, scale), "ms p50, POST /send and its output on /stream {raw}"),
        ("response", response(found, scale), "ms p50, POST /api/sdk/session/message {raw}"),
        ("auth", auth(found, scale), "ms of processor per POST /send with a key, {raw} without"),
    ):
        figures.add(f"{prefix}{name}_ratio", pair.ratio, f"{shown(pair.ours)} {what.format(raw=shown(pair.raw))}")
        figures.values |= {f"{prefix}{name}_ms": pair.ours, f"{prefix}{name}_raw_ms": pair.raw}


PARTS: dict[str, Callable[[Figures, ApiScale], None]] = {"redis": measure_redis, "sqlite": measure_sqlite}
BENCHMARK = Benchmark("bench.api", __doc__, GOALS, PARTS, FULL, QUICK)


if __name__ == "__main__":
    BENCHMARK.main()
