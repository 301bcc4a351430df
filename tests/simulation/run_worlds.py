"""Runs many worlds, one per seed, and checks that enough events happened in them.

The message of a failure has the command that runs the failing seed alone. It fails again in the same way.
"""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

from tests.simulation.world import Breakage, SimulationResult, simulate
from tests.support.audit import assert_clean

SEEDS, SEEDS_SOAK = 300, 20_000
SEED = "SIM_SEED"
REPEATED_BY = "tests/simulation/test_worlds.py"

# Minimum number of each event per world, about half of the usual number.
EVENTS_PER_WORLD: Mapping[str, float] = {
    "crash": 0.8,
    "freeze": 0.4,
    "taken over": 1.2,
    "fenced": 0.3,
    "retried": 1.7,
    "repeated": 3.0,
    "lost": 6.0,
    "reply was lost": 0.6,
    # errors that no part raises on purpose
    "an engine raised a bug": 0.4,
    "a tool raised a bug": 0.012,
    "a connector raised a bug": 0.04,
    # stops
    "stopped": 0.75,
    "stopped before a word": 0.3,
    "stopped after takeover": 0.4,
    "stop came too late": 0.4,
    # what messages do to a busy conversation
    "interrupted": 0.15,
    "refused as busy": 0.15,
    "accepted by an idle conversation": 0.2,
    # wall clock
    "clock set forward": 0.3,
    "clock set back": 0.25,
    # mail that kills
    "buried after crashes": 0.03,
    "postponed": 0.02,
    # circuits of model providers
    "deferred": 0.002,
    # deletion
    "deleted under way": 0.05,
    "sent too late": 0.1,
    # workers that drain
    "drained": 0.35,
    "given back": 0.07,
    # agents with two models
    "the next model was asked": 0.12,
    "a model broke off": 0.01,
    # runs on the SDK
    "worlds with a model": 0.07,
    "an answer was asked for": 0.7,
    "an answer was replayed": 0.14,
    "a call was asked for": 0.25,
    # steers
    "steer sent": 0.15,
    "a steer was shown": 0.35,
    "a steer was seen": 0.1,
    # blocks that send
    "a block has sent": 0.03,
    "a block has failed": 0.08,
    # outboxes
    "worlds with a directory": 0.12,
    "arrived outside": 0.3,
    "arrived again": 0.025,
    "a relay took over": 0.035,
    "outbox: sent": 0.25,
    "outbox: failed": 0.16,
    "outbox: unknown": 0.05,
    "outbox: dead": 0.02,
    "outbox: retried": 0.04,
    "outbox: dropped": 0.02,
    "an operator came too late": 0.025,
    # histories
    "a snapshot was written": 1.5,
    "a snapshot left runs out": 0.04,
    # compactions
    "a summary was asked for": 0.12,
    # approvals
    "paused": 0.06,
    "approved": 0.02,
    "rejected": 0.02,
    "expired": 0.015,
    "decided already": 0.02,
    "decided elsewhere": 0.02,
    # budgets
    "worlds with budgets": 0.04,
    "a budget was raised": 0.15,
    # tools of clients
    "a client's output was shown": 0.03,
    # sweeps
    "worlds with sweeps": 0.3,
    "sweeps": 1.0,
    "drafts swept": 1.0,
    "mail swept": 0.3,
    "a sweep was taken over": 0.05,
    # subagents
    "a subagent's result was shown": 0.018,
}


@contextmanager
def _freeze_imported_objects() -> Iterator[None]:
    """Exclude imported objects from garbage collection; scanning them took a sixth of the time of the worlds.

    Unfreezing would also concern what was frozen before: the collected tests, over which a collection takes a second.
    """
    frozen = gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if not frozen:
            gc.unfreeze()


@_freeze_imported_objects()
def run_worlds(seeds: Iterable[int], breakage: Breakage | None = None) -> None:
    """Simulate the worlds of these seeds; fail on any finding, and if too few events happened."""
    chosen = os.environ.get(SEED)
    happened: Counter[str] = Counter()
    worlds = 0
    for seed in seeds if chosen is None else [int(chosen)]:
        result = _simulate(seed, breakage)
        happened += result.counts
        worlds += 1
        if chosen is not None:
            print("\n".join(result.trace))
        assert_clean(result.findings, f"in the world of seed {seed}; repeat it: {_repeat_command(seed)}")
    print(f"{worlds} worlds: {dict(happened.most_common())}")
    if chosen is None:
        check_event_counts(happened, worlds)


def _simulate(seed: int, breakage: Breakage | None) -> SimulationResult:
    try:
        return simulate(seed, breakage)
    except Exception as error:
        error.add_note(f"in the world of seed {seed}; repeat it: {_repeat_command(seed)}")
        raise


def _repeat_command(seed: int) -> str:
    return f'{SEED}={seed} make test ARGS="-s {REPEATED_BY}"'


def check_event_counts(happened: Mapping[str, int], worlds: int) -> None:
    """Fail if an event happened too rarely, because such worlds prove nothing."""
    rare = {
        what: happened.get(what, 0)
        for what, share in EVENTS_PER_WORLD.items()
        if happened.get(what, 0) < share * worlds
    }
    assert not rare, f"too rare in {worlds} worlds: {rare}"
