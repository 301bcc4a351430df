"""Kinds of simulated worlds. The seed decides which agents a world has."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulation.calls import SUBAGENT
from tests.simulation.directory_fixture import SENDER

PLAIN_AGENTS, SDK_AGENTS = ("Ada", "Bob"), (SENDER, SUBAGENT)
SDK_SHARE = 0.15  # share of worlds with agents that run on the SDK, and a directory
DIRECTORY_SHARE = 0.1  # share of worlds with a directory and no such agents


@dataclass(frozen=True)
class WorldKind:
    """The agents of a world, and whether it has a directory of users, channels and connectors."""

    agents: tuple[str, ...]
    with_directory: bool

    @classmethod
    def of(cls, seed: int) -> WorldKind:
        fallen = random.Random(f"kind {seed}").random()
        return cls(PLAIN_AGENTS + (SDK_AGENTS if fallen < SDK_SHARE else ()), fallen < SDK_SHARE + DIRECTORY_SHARE)

    @property
    def written_to(self) -> tuple[str, ...]:
        """The agents that clients write to; the one with a model is chosen more often."""
        return (*PLAIN_AGENTS, SENDER, SENDER) if SENDER in self.agents else PLAIN_AGENTS
