"""Compare magent2 with what people would use instead: `make bench-peers`.

Every contestant does the same work with the same scripted model, in turns, in one run. Each has an environment of its
own in `.cache/peers/`. Prints tables and, as its last line, one JSON object. `--quick` does everything once with small
counts. `bench/peers/README.md` says how each contestant is used.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median

from bench.peers.contestant import Contestant, Site, Unavailable, new_port
from bench.peers.contestants import CONTESTANTS
from bench.peers.environments import ROOT, ensure, versions
from bench.peers.http_client import HttpClient
from bench.peers.processes import DidNotStart, Process
from bench.peers.rows import FULL, QUICK, ROWS, Match, RowFailed, Scale
from bench.support import report

BY_NAME = {contestant.name: contestant for contestant in CONTESTANTS}
SPEED = (
    ("tokens_per_s", "tokens/s"),
    ("stream_cpu_ms", "cpu ms/answer"),
    ("runs_per_s", "runs/s"),
    ("turn_p50_ms", "turn p50 ms"),
    ("turn_p95_ms", "p95 ms"),
    ("single_turn_p50_ms", "one run: p50 ms"),
    ("cpu_ms", "cpu ms/run"),
    ("resident_mb", "resident MB"),
)
AFTER_KILL = (
    ("killed_runs", "runs"),
    ("finished_before", "before the kill"),
    ("finished_alone", "finished by itself"),
    ("finished", "after asking again"),
    ("tool_calls_twice", "tool calls twice"),
    ("model_calls_twice", "model calls twice"),
    ("messages_lost", "messages lost"),
    ("recovery_s", "recovery s"),
)
SUMMED = {name for name, _ in AFTER_KILL if name != "recovery_s"}


@dataclass(slots=True)
class Result:
    """The figures of one contestant, turn by turn, and what it could not do."""

    contestant: type[Contestant]
    seen: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)  # by row
    versions: dict[str, str] = field(default_factory=dict)

    def add(self, figures: dict[str, float]) -> None:
        for name, value in figures.items():
            self.seen.setdefault(name, []).append(value)

    def value(self, name: str) -> float | None:
        """The median of the turns; of counts after a kill, the sum."""
        values = [value for value in self.seen.get(name, []) if not math.isnan(value)]
        if not values or (name == "recovery_s" and len(values) < len(self.seen[name])):
            return None
        return sum(values) if name in SUMMED else median(values)


async def compare(chosen: list[type[Contestant]], scale: Scale) -> list[Result]:
    """Install what is missing, then give each contestant its turn in every round."""
    results = [Result(contestant) for contestant in chosen]
    environments: dict[str, Path] = {}
    for result in results:
        try:
            environments[result.contestant.name] = ensure(result.contestant)
            result.versions = versions(result.contestant, environments[result.contestant.name])
        except Unavailable as error:
            result.failures["install"] = str(error)
    with tempfile.TemporaryDirectory(prefix="magent2-peers-") as name:
        async with model_server(Path(name)) as counter:
            for number in range(scale.rounds):
                for result in results:
                    environment = environments.get(result.contestant.name)
                    if environment is not None:
                        folder = Path(name, f"{result.contestant.name}-{number}")
                        folder.mkdir()
                        site = Site(folder, environment, counter.port, new_port())
                        await turn(result, site, counter, number, scale)
    return results


@asynccontextmanager
async def model_server(folder: Path) -> AsyncIterator[HttpClient]:
    client = HttpClient(new_port())
    command = (sys.executable, "-m", "bench.peers.model_server", "--port", str(client.port))
    server = Process(command, ROOT, folder / "model.log")
    server.start()
    try:
        await server.ready(client, "/sums?-")
        yield client
    finally:
        server.stop()


async def turn(result: Result, site: Site, counter: HttpClient, number: int, scale: Scale) -> None:
    """All rows of one contestant. What fails is recorded, and the comparison goes on."""
    contestant = result.contestant(site)
    begun = time.monotonic()
    match = Match(contestant, counter, f"{contestant.name}-r{number}", scale)
    row = "start"
    try:
        await contestant.start()
        await match.warm_up()
        for row, measure in ROWS.items():
            if row in result.failures:
                continue
            since = time.monotonic()
            try:
                result.add(await measure(match))
            except RowFailed as error:
                result.failures[row] = str(error)
            print(f"bench: {contestant.name}, row {row}: {time.monotonic() - since:.0f} s", file=sys.stderr)
    except (DidNotStart, Unavailable, RowFailed) as error:
        result.failures[row] = str(error)
    except Exception as error:  # noqa: BLE001 -- foreign servers answer in foreign ways; the others still have their turns
        result.failures[row] = f"{type(error).__name__}: {error}"
    finally:
        contestant.stop()
    load = os.getloadavg()[0]
    said = f"{contestant.name}, round {number + 1}: {time.monotonic() - begun:.0f} s, load {load:.1f}"
    print(f"bench: {said} {result.failures or ''}", file=sys.stderr)


def table(results: list[Result], columns: tuple[tuple[str, str], ...]) -> str:
    rows = [["", *(title for _, title in columns)]]
    for result in results:
        values = [result.value(name) for name, _ in columns]
        rows.append([result.contestant.title, *("—" if value is None else report.shown(value) for value in values)])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [[cell.rjust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return "\n".join(
        f"{row[0].ljust(widths[0])}  {'  '.join(cells[1:])}" for row, cells in zip(rows, lines, strict=True)
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.peers", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small counts: does it all work?")
    parser.add_argument("--only", action="append", choices=sorted(BY_NAME), help="compare these; can be repeated")
    parser.add_argument("--rounds", type=int, help="turns of each contestant")
    arguments = parser.parse_args()
    scale = QUICK if arguments.quick else FULL
    scale = scale if arguments.rounds is None else replace(scale, rounds=arguments.rounds)
    chosen = [contestant for contestant in CONTESTANTS if contestant.name in (arguments.only or BY_NAME)]
    results = asyncio.run(compare(chosen, scale))
    print(table(results, SPEED), "", table(results, AFTER_KILL), "", sep="\n")
    figures = report.Figures({})
    for result in results:
        named = " ".join(f"{package} {version}" for package, version in result.versions.items())
        print(f"{result.contestant.title}: {named}")
        if not result.contestant.streams:
            print(f"{result.contestant.title}: a: whole answers; it does not stream them to a client")
        for row, reason in result.failures.items():
            print(f"{result.contestant.title}: {row}: {reason}")
        for name, _ in (*SPEED, *AFTER_KILL):
            figures.values[f"{result.contestant.name.replace('-', '_')}_{name}"] = result.value(name)
    print(figures.json())


if __name__ == "__main__":
    main()
