"""Measure the service over HTTP, compared with hand-written code: `make bench-run`.

On Redis and PostgreSQL, gateway and worker are two processes; on SQLite they share one. Prints a table and, as its last
line, one JSON object. `--quick` measures everything once with small counts.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench.support.gateway.idle import idle
from bench.support.gateway.latency import Latency, postgres_latency, redis_latency, sqlite_latency
from bench.support.gateway.resume import resume
from bench.support.gateway.send import send, send_answered
from bench.support.gateway.service_scale import FULL, QUICK, ServiceScale, Site
from bench.support.gateway.tokens import postgres_tokens, redis_tokens, sdk_tokens, sqlite_tokens
from bench.support.postgres_server import postgres_server
from bench.support.processes import echo_server, gateway_and_worker, gateway_with_worker, is_told, process
from bench.support.redis_server import redis_server
from bench.support.report import Benchmark, Figures, Goal, Pair, shown

ON_REDIS = {
    "send_ratio": Goal(0.85),
    "latency_ratio": Goal(1.8, at_most=True),
    "tokens_ratio": Goal(0.7),
    "idle_cpu_percent": Goal(1.0, at_most=True),
    "resume_ratio": Goal(1.5, at_most=True),
    "sdk_http_ratio": Goal(0.75),
}
ON_SQLITE = {
    "sqlite_send_ratio": Goal(0.7),
    "sqlite_latency_ratio": Goal(3.5, at_most=True),
    "sqlite_tokens_ratio": Goal(0.35),
    "sqlite_idle_cpu_percent": Goal(1.0, at_most=True),
    "sqlite_resume_ratio": Goal(1.5, at_most=True),
    "sqlite_sdk_http_ratio": Goal(0.65),
}
# The embedded default must not be slower than Redis.
BESIDE_REDIS = {
    "send_per_s": Goal(1.0),
    "latency_p50_ms": Goal(1.0, at_most=True),
    "tokens_per_s": Goal(1.0),
    "sdk_http_tokens_per_s": Goal(1.0),
}
GOALS = {
    **ON_REDIS,
    **ON_SQLITE,
    **{f"sqlite_over_redis_{name}": goal for name, goal in BESIDE_REDIS.items()},
}


def measure_redis(figures: Figures, scale: ServiceScale) -> None:
    from magent2.bus.redis_adapter import RedisBus

    with redis_server() as url, echo_server() as echo, gateway_and_worker(url) as gateway:
        site = Site(gateway, echo, partial(RedisBus, url))
        record = Record(figures, "", scale)
        record.idle(site)
        record.sends(site)
        record.latency(redis_latency(url, site, scale))
        record.tokens(redis_tokens(url, site, scale))
        with process("bench.support.gateway.service_process", "--bus", url, "--tokens", str(scale.sdk_tokens)):
            record.sdk(sdk_tokens(site, scale))
        record.resume(site)


def measure_postgres(figures: Figures, scale: ServiceScale) -> None:
    from magent2.bus.postgres import PostgresBus

    with postgres_server() as store, echo_server() as echo, gateway_and_worker(store.url) as gateway:
        url = store.url
        site = Site(gateway, echo, partial(PostgresBus, url))
        record = Record(figures, "postgres_", scale)
        record.idle(site)
        record.sends(site)
        record.latency(postgres_latency(url, site, scale))
        record.tokens(postgres_tokens(url, site, scale))
        with process("bench.support.gateway.service_process", "--bus", url, "--tokens", str(scale.sdk_tokens)):
            record.sdk(sdk_tokens(site, scale))
        record.resume(site)


def measure_sqlite(figures: Figures, scale: ServiceScale) -> None:
    from magent2.bus.sqlite import SqliteBus

    with tempfile.TemporaryDirectory(prefix="magent2-bench-") as name:
        path = Path(name, "house.db")
        with echo_server() as echo, gateway_with_worker(f"sqlite:///{path}", scale.sdk_tokens) as gateway:
            site = Site(gateway, echo, partial(SqliteBus, path))
            record = Record(figures, "sqlite_", scale)
            record.idle(site)
            record.sends(site)
            record.latency(sqlite_latency(site, scale))
            record.tokens(sqlite_tokens(Path(name, "raw.db"), site, scale))
            record.sdk(sdk_tokens(site, scale))
            record.resume(site)
    _compare_engines(figures)


class Record:
    """Records figures under names with the prefix of their engine."""

    def __init__(self, figures: Figures, prefix: str, scale: ServiceScale) -> None:
        self._figures = figures
        self._prefix = prefix
        self._scale = scale
        self._begun = time.monotonic()

    def _add(self, name: str, value: float, note: str = "") -> None:
        self._figures.add(f"{self._prefix}{name}", value, note)

    def _keep(self, **values: float) -> None:
        """Add figures to the JSON only, not to the table."""
        self._figures.values |= {f"{self._prefix}{name}": value for name, value in values.items()}
        print(f"bench: {', '.join(values)} after {time.monotonic() - self._begun:.0f} s", file=sys.stderr)

    def idle(self, site: Site) -> None:
        if not is_told():
            return
        seen = idle(site.gateway, self._scale)
        note = f"{self._scale.idle:,} clients; {shown(seen.alone_percent)} without"
        self._add("idle_cpu_percent", seen.cpu_percent, note)
        self._add("rss_per_client_kb", seen.rss_per_client_kb)
        self._keep(idle_alone_cpu_percent=seen.alone_percent)

    def sends(self, site: Site) -> None:
        for name, pair in (("send", send(site, self._scale)), ("send_answered", send_answered(site, self._scale))):
            who = "to an agent without a worker" if name == "send" else "while the worker answers"
            self._add(f"{name}_ratio", pair.ratio, f"{shown(pair.ours)}/s {who}, plain echo route {shown(pair.raw)}")
            self._keep(**{f"{name}_per_s": pair.ours, f"{name}_raw_per_s": pair.raw})

    def latency(self, seen: Latency) -> None:
        pair = seen.pair
        note = f"p50 {shown(pair.ours)} ms, plain POST and two wake-ups {shown(pair.raw)}"
        self._add("latency_ratio", pair.ratio, note)
        for percent in (50, 95, 99):
            self._add(f"latency_p{percent}_ms", seen.percentile_ms(percent))
        self._keep(latency_raw_ms=pair.raw)

    def tokens(self, pair: Pair) -> None:
        note = f"{self._scale.talks} clients × {self._scale.words:,} tokens, none lost; raw append {shown(pair.raw)}"
        self._add("tokens_per_s", pair.ours, note)
        self._add("tokens_ratio", pair.ratio)
        self._keep(tokens_raw_per_s=pair.raw)

    def resume(self, site: Site) -> None:
        pair, scale = resume(site, self._scale), self._scale
        note = f"{pair.ours:.3g} ms at {scale.resume_large:,} events, {pair.raw:.3g} ms at {scale.resume_small:,}"
        self._add("resume_ratio", pair.ratio, note)
        self._keep(resume_large_ms=pair.ours, resume_small_ms=pair.raw)

    def sdk(self, pair: Pair) -> None:
        note = f"{self._scale.talks} runs × {self._scale.sdk_tokens} tokens at a time; the SDK alone {shown(pair.raw)}"
        self._add("sdk_http_tokens_per_s", pair.ours, note)
        self._add("sdk_http_ratio", pair.ratio)
        self._keep(sdk_http_raw_tokens_per_s=pair.raw)


def _compare_engines(figures: Figures) -> None:
    for name in BESIDE_REDIS:
        embedded, served = figures.values.get(f"sqlite_{name}"), figures.values.get(name)
        if embedded is not None and served is not None:
            figures.add(f"sqlite_over_redis_{name}", embedded / served)


PARTS: dict[str, Callable[[Figures, ServiceScale], None]] = {
    "redis": measure_redis,
    "postgres": measure_postgres,
    "sqlite": measure_sqlite,
}
BENCHMARK = Benchmark("bench.run", __doc__, GOALS, PARTS, FULL, QUICK)


if __name__ == "__main__":
    BENCHMARK.main()
