"""Kinds of simulated worlds: the seed decides who lives in one."""

from __future__ import annotations

import random
from dataclasses import dataclass

from tests.simulation.calls import CHILD
from tests.simulation.town import SENDER

PLAIN, JOURNALLED = ("Ada", "Bob"), (SENDER, CHILD)
MINDFUL = 0.15  # how often there are agents that run on the SDK, in a town
TOWN = 0.1  # how often there is a town without them


@dataclass(frozen=True)
class Kind:
    """Who lives in a world, and whether there is a town around them."""

    agents: tuple[str, ...]
    town: bool

    @classmethod
    def of(cls, seed: int) -> Kind:
        fallen = random.Random(f"kind {seed}").random()
        return cls(PLAIN + (JOURNALLED if fallen < MINDFUL else ()), fallen < MINDFUL + TOWN)

    @property
    def written_to(self) -> tuple[str, ...]:
        """Whom people write to; more often to one that has a model."""
        return (*PLAIN, SENDER, SENDER) if SENDER in self.agents else PLAIN
