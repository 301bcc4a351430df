"""Shared parts of all benchmarks: sizes, envelopes, paired measurements, and the table of results."""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import os
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Generic, TypeVar

from magent2.bus.base import EngineBase
from magent2.loop import tune_garbage_collection

R = TypeVar("R")
S = TypeVar("S")

Envelope = dict[str, Any]
Connect = Callable[[], EngineBase]
Measure = Callable[[], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is done per measurement."""

    rounds: int
    publishes: int
    sync_publishes: int
    wakes: int
    followed: int
    seek_small: int
    seek_large: int
    seeks: int
    lanes: int
    sized_records: int
    conversations: int


FULL = Scale(
    rounds=5,
    publishes=20_000,
    sync_publishes=3_000,
    wakes=200,
    followed=2_000,
    seek_small=1_000,
    seek_large=1_000_000,
    seeks=200,
    lanes=4_000,
    sized_records=10_000,
    conversations=2_000,
)
QUICK = Scale(
    rounds=2,
    publishes=600,
    sync_publishes=100,
    wakes=10,
    followed=50,
    seek_small=1_000,
    seek_large=4_000,
    seeks=20,
    lanes=150,
    sized_records=500,
    conversations=50,
)


def run(main: Coroutine[Any, Any, R]) -> R:
    """Run on uvloop where it is installed; both sides of a ratio share the loop."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def skipped(what: str) -> bool:
    """Whether `SKIP=redis,…` leaves this out on purpose."""
    return what in os.environ.get("SKIP", "").split(",")


# --- messages ----------------------------------------------------------------------------------------------------

SENTENCE = "Please compare the three offers, name the cheapest one that ships this week, and say what it leaves out. "


def envelope(conversation: str, recipient: str | None = None) -> Envelope:
    """A typical message: about 500 bytes of JSON."""
    return {
        "id": str(uuid.uuid4()),
        "conversation_id": conversation,
        "sender": "user:ada",
        "recipient": recipient or f"chat:{conversation}",
        "type": "message",
        "content": SENTENCE * 2,
        "metadata": {"client": "web", "locale": "en-GB", "client_message_id": str(uuid.uuid4())},
        "created_at": "2026-11-15T10:00:00.000000Z",
    }


def envelopes(conversation: str, count: int) -> list[Envelope]:
    return [envelope(conversation) for _ in range(count)]


# --- measuring ---------------------------------------------------------------------------------------------------


class Stopwatch:
    """Seconds spent inside the `with`."""

    def __enter__(self) -> Stopwatch:
        gc.collect()
        self._begun = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._begun


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sides measured in turns; `ratio` is the median over the turns, so that a slow minute hits both."""

    ours: float
    raw: float
    ratio: float


def paired(turns: Iterable[tuple[float, float]]) -> Pair:
    """Turns of (ours, raw)."""
    kept = list(turns)
    return Pair(
        ours=median(ours for ours, _ in kept),
        raw=median(raw for _, raw in kept),
        ratio=median(ours / raw for ours, raw in kept),
    )


async def compare(raw: Measure, ours: Measure, rounds: int) -> Pair:
    """One turn to warm up, then raw, ours, raw, ours, …"""
    await raw(), await ours()
    turns = []
    for _ in range(rounds):
        raw_figure = await raw()
        turns.append((await ours(), raw_figure))
    return paired(turns)


# --- showing -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Goal:
    """The target of a figure."""

    limit: float
    at_most: bool = False

    def met(self, value: float) -> bool:
        return value <= self.limit if self.at_most else value >= self.limit

    def __str__(self) -> str:
        return f"{'≤' if self.at_most else '≥'} {self.limit:,g}"


@dataclass(slots=True)
class Figures:
    """Figures by name, with both sides of each ratio."""

    goals: dict[str, Goal]
    values: dict[str, float | None] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)

    def add(self, name: str, value: float, note: str = "") -> None:
        self.values[name] = value
        self.notes[name] = note

    def add_pair(self, name: str, pair: Pair, unit: str) -> None:
        """The ratio, and both sides of it under their own names."""
        stem = name.replace("_ratio", "")
        self.add(name, pair.ratio, f"{shown(pair.ours)} {unit}, raw {shown(pair.raw)}")
        suffix = unit.replace("/", "per_")
        self.values[f"{stem}_{suffix}"] = pair.ours
        self.values[f"{stem}_raw_{suffix}"] = pair.raw

    def table(self) -> str:
        rows = [("figure", "value", "goal", "", "")]
        rows += [self._row(name) for name in self.values if name in self.notes]
        widths = [max(len(row[column]) for row in rows) for column in range(5)]
        return "\n".join(_line(row, widths) for row in rows)

    def _row(self, name: str) -> tuple[str, str, str, str, str]:
        value, goal = self.values[name], self.goals.get(name)
        if value is None:
            return name, "—", "", "", self.notes[name]
        verdict = "" if goal is None else "ok" if goal.met(value) else "missed"
        return name, shown(value), "" if goal is None else str(goal), verdict, self.notes[name]

    def json(self) -> str:
        return json.dumps({name: rounded(value) for name, value in self.values.items()})


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    name, value, goal, verdict, note = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
    return f"{name}  {row[1].rjust(len(value))}  {goal}  {verdict}  {note}".rstrip()


def shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


# --- the command -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Benchmark(Generic[S]):
    """Figures of one subject, engine by engine."""

    name: str  # of the module
    about: str
    goals: dict[str, Goal]
    parts: Mapping[str, Callable[[Figures, S], None]]
    full: S
    quick: S

    def main(self) -> None:
        """Measure what was asked for, then print the table and, last, one line of JSON."""
        chosen = self._parser().parse_args()
        logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
        tune_garbage_collection()  # as every command that serves does
        figures = Figures(self.goals)
        for name, measure in self.parts.items():
            if chosen.only in (None, name) and not skipped(name):
                print(f"bench: {name}", file=sys.stderr)
                measure(figures, self.quick if chosen.quick else self.full)
        print(figures.table())
        print(figures.json())

    def _parser(self) -> argparse.ArgumentParser:
        parser = argparse.ArgumentParser(prog=f"python -m {self.name}", description=self.about)
        parser.add_argument("--quick", action="store_true", help="small counts: does it all work?")
        parser.add_argument("--only", choices=sorted(self.parts), help="measure one engine")
        return parser
