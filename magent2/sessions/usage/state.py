"""What one worker knows of budgets: the limits that hold, and the ledgers that it has read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from datetime import datetime

from magent2.bus.log import Log
from magent2.errors import BudgetUsedUp
from magent2.models.budgets import Amount, Budgets
from magent2.sessions.approvals import now_ms
from magent2.sessions.usage.budgets import (
    Budget,
    BudgetDecision,
    Busy,
    CallRoot,
    Limits,
    Reached,
    decide,
    local_time,
    read_limits,
)
from magent2.sessions.usage.ledger import Ledger, read_ledger

LEDGERS_MAX = 2000  # in the memory of a worker


class BudgetState:
    """What one worker knows of limits and ledgers. All its runs share it.

    `limits` are those that were set at run time, as far as the worker has followed them.
    """

    def __init__(self, configured: Callable[[], Budgets] = Budgets) -> None:
        self.configured = configured
        self.limits = Limits()
        self.now_ms: Callable[[], int] = now_ms  # the wall clock: a day is one of the calendar
        self.chance: Callable[[], float] = random.random  # spreads writers of one ledger that met
        self.on_spent: Callable[[Amount], object] = lambda _: None  # for metrics
        self.on_reached: Callable[[Sequence[str]], object] = lambda _: None
        self._ledgers: dict[str, Ledger] = {}
        self._refreshing = asyncio.Lock()

    def budgets(self, root: CallRoot) -> tuple[Budget, ...]:
        return self.limits.budgets(root, self.configured())

    async def refresh(self, log: Log) -> None:
        """Read the limits that were set since."""
        async with self._refreshing:
            self.limits = await read_limits(log, self.limits)

    async def ledgers(self, log: Log, budgets: tuple[Budget, ...]) -> dict[str, Ledger]:
        """Read the ledgers of these budgets, from where this worker has read them last."""
        found: dict[str, Ledger] = {}
        for topic in dict.fromkeys(budget.name.topic for budget in budgets):
            found[topic] = await read_ledger(log, topic, self._ledgers.pop(topic, None))
            self._ledgers[topic] = found[topic]
        while len(self._ledgers) > LEDGERS_MAX:
            del self._ledgers[next(iter(self._ledgers))]
        return found

    async def decide(self, log: Log, root: CallRoot, run: str) -> BudgetDecision:
        """Read the ledgers and decide whether a run may call a model."""
        budgets = self.budgets(root)
        ledgers = await self.ledgers(log, budgets)
        return decide(budgets, ledgers, self.now(), run)

    def now(self) -> datetime:
        return local_time(self.now_ms(), self.configured().timezone)


async def refuse(reached: Reached | Busy) -> None:
    """End a run that cannot be paused, because it has no lane."""
    names = ", ".join(str(budget.name) for budget in reached.budgets)
    raise BudgetUsedUp(f"the budget is used up ({names}); raise it and send the message again")
