"""Kinds of simulated worlds: the seed decides who lives in one."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulation.calls import SUBAGENT
from tests.simulation.directory_fixture import SENDER

PLAIN_AGENTS, SDK_AGENTS = ("Ada", "Bob"), (SENDER, SUBAGENT)
SDK_SHARE = 0.15  # how often there are agents that run on the SDK, in a town
DIRECTORY_SHARE = 0.1  # how often there is a town without them


@dataclass(frozen=True)
class WorldKind:
    """Who lives in a world, and whether there is a town around them."""

    agents: tuple[str, ...]
    with_directory: bool

    @classmethod
    def of(cls, seed: int) -> WorldKind:
        fallen = random.Random(f"kind {seed}").random()
        return cls(PLAIN_AGENTS + (SDK_AGENTS if fallen < SDK_SHARE else ()), fallen < SDK_SHARE + DIRECTORY_SHARE)

    @property
    def written_to(self) -> tuple[str, ...]:
        """Whom people write to; more often to one that has a model."""
        return (*PLAIN_AGENTS, SENDER, SENDER) if SENDER in self.agents else PLAIN_AGENTS
