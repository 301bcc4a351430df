"""Measure Python blocks with held messages, compared with their parts alone: `make bench-block`.

Prints a table and, as its last line, one JSON object. `--quick` measures everything once with small counts.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.support.block import FULL, QUICK, SENDS, BlockScale, figures_of
from bench.support.report import Benchmark, Figures, Goal, Pair, shown

GOALS = {
    "block_ratio": Goal(1.6, at_most=True),
    "held_call_ratio": Goal(4.0, at_most=True),
    "block_memory_growth_mb": Goal(0.5, at_most=True),
}


def measure_blocks(figures: Figures, scale: BlockScale) -> None:
    found = figures_of(scale)
    parts = f"{shown(found.block_us)} µs over {shown(found.bare_us)} + {shown(found.append_us)}"
    ratio = found.block_us / (found.bare_us + found.append_us)
    figures.add("block_ratio", ratio, f"{SENDS} held messages and their commit, p50: {parts}")
    figures.add("held_call_ratio", found.held.ratio, f"over a call answered by hand: {_sides(found.held)}")
    figures.add("held_apart_ratio", found.apart.ratio, f"each message to another agent: {_sides(found.apart)}")
    figures.add("block_cold_ratio", found.cold_us / (found.bare_us + found.append_us), "types not checked before")
    figures.add("block_memory_growth_mb", found.growth_mb, f"over {scale.blocks:,} blocks")


def _sides(pair: Pair) -> str:
    return f"{shown(pair.ours)} µs over {shown(pair.raw)}"


PARTS: dict[str, Callable[[Figures, BlockScale], None]] = {"sqlite": measure_blocks}

BENCHMARK = Benchmark("bench.block", __doc__, GOALS, PARTS, FULL, QUICK)


if __name__ == "__main__":
    BENCHMARK.main()
