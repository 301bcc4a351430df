"""Python blocks, measured: `make bench-block`. A block with held messages over its bare parts.

Prints a table and, as its last line, one JSON object. `--quick` tries everything once with small counts.
"""

from __future__ import annotations

from collections.abc import Callable

from bench.support import Benchmark, Figures, Goal, shown
from bench.support_block import FULL, QUICK, SENDS, BlockScale, figures_of

GOALS = {
    "block_ratio": Goal(2.0, at_most=True),
    "held_call_ratio": Goal(4.0, at_most=True),
    "block_memory_growth_mb": Goal(4.0, at_most=True),
}


def measure_blocks(figures: Figures, scale: BlockScale) -> None:
    found = figures_of(scale)
    parts = f"{shown(found.block_us)} µs over {shown(found.bare_us)} + {shown(found.append_us)}"
    ratio = found.block_us / (found.bare_us + found.append_us)
    figures.add("block_ratio", ratio, f"{SENDS} held messages and their commit, p50: {parts}")
    held = f"{shown(found.held_us)} µs over {shown(found.host_us)}"
    figures.add("held_call_ratio", found.held_us / found.host_us, f"over a call answered by hand: {held}")
    figures.add("block_cold_ratio", found.cold_us / (found.bare_us + found.append_us), "types not checked before")
    figures.add("block_memory_growth_mb", found.growth_mb, f"over {scale.blocks:,} blocks")


PARTS: dict[str, Callable[[Figures, BlockScale], None]] = {"sqlite": measure_blocks}

BENCHMARK = Benchmark("bench.block", __doc__, GOALS, PARTS, FULL, QUICK)


if __name__ == "__main__":
    BENCHMARK.main()
