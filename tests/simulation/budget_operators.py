"""Budgets in a simulated world: an operator who raises those that are used up, and the audit of all usage.

Each conversation has a budget of model calls, and so has each day. The wall clock of the world jumps, by up to a day.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from magent2.bus.interface import Engine
from magent2.bus.log import Log, run_sync
from magent2.bus.operations import Write
from magent2.bus.records import NewRecord, Record
from magent2.bus.retry import retry_call
from magent2.models.address import SUBAGENT_SEPARATOR, checked_topic
from magent2.models.budgets import Budgets, Limit
from magent2.sessions.usage.budgets import BudgetName, WaitingRun, read_limits, set_limit
from magent2.sessions.usage.ledger import read_ledger, read_user_usage
from magent2.sessions.usage.report import read_users
from tests.simulation.engine_recorder import EngineRecorder
from tests.simulation.faulty_bus import FaultyBus

LIMITED = 0.6  # share of worlds with a model that have budgets
CALLS_MIN, CALLS_MAX = 1, 6  # of a conversation
DAY_CALLS_MIN, DAY_CALLS_MAX = 4, 20
LOOK_MAX_S = 4.0  # between two looks of the operator
RAISE_MAX = 4  # calls
RUNS_AT_ONCE = 4  # two workers with two slots each

Logs = Mapping[str, Sequence[Record]]


class BudgetOperators:
    """Raises each budget that a run waits for, sometimes by too little, until the world ends."""

    def __init__(self, seed: int, limited: bool, recorder: EngineRecorder, bus: Callable[[], FaultyBus]) -> None:
        self._rng = random.Random(f"budgets {seed}")
        self._recorder = recorder
        self._new_bus = bus
        self.configured = Budgets()
        self.findings: list[str] = []
        recorder.on_write = self._check_write
        if limited and self._rng.random() < LIMITED:
            recorder.counts["worlds with budgets"] += 1
            self.configured = Budgets(
                conversation=Limit(calls=self._rng.randint(CALLS_MIN, CALLS_MAX)),
                day=Limit(calls=self._rng.randint(DAY_CALLS_MIN, DAY_CALLS_MAX)),
            )

    def _check_write(self, write: Write) -> None:
        """Each answer is written with its usage; what is used and reserved is within the limit of the moment."""
        kinds = Counter(str(record.payload.get("kind")) for record in write.records)
        spent = sum(record.payload.get("kind") == "spend" for record in write.records if _is_of_user(record))
        if not kinds["compaction"] and kinds["answer"] and not kinds["start"] and spent != kinds["answer"]:
            self.findings.append(f"an append has {kinds['answer']} answers, and {spent} calls")
        reserved = [record for record in write.records if record.payload.get("kind") == "reserve"]
        for record in reserved if self.configured.conversation else ():
            kind, name = record.topic.removeprefix("usage:").split(":", 1)
            if kind not in ("conversation", "all"):
                continue
            budget = BudgetName("day") if kind == "all" else BudgetName("conversation", name)
            day = record.payload["day"] if kind == "all" else None
            limit = run_sync(self._recorder.inner, read_limits).set.get(budget, self.configured.limit(budget.kind))
            ledger = run_sync(self._recorder.inner, read_ledger, record.topic)
            calls = (ledger.used(day).total + ledger.reserved(day)).calls
            if limit.calls is not None and calls > limit.calls:
                self.findings.append(f"{calls} calls of {budget} were reserved, its limit was {limit.calls}")

    async def run(self) -> None:
        """Never ends by itself. A limit of the day is raised too: a world does not wait for its end."""
        if not self.configured.conversation:
            return
        bus = self._new_bus()
        while True:
            await asyncio.sleep(self._rng.uniform(0, LOOK_MAX_S))
            limits = await retry_call(lambda: read_limits(Log(bus)), "operator")
            for waiting in limits.waiting.values():
                await self._raise(bus, waiting)

    async def _raise(self, bus: FaultyBus, waiting: WaitingRun) -> None:
        for name in waiting.budgets:
            limits = await retry_call(lambda: read_limits(Log(bus)), "operator")
            before = limits.set.get(name, self.configured.limit(name.kind)).calls or 0
            limit = Limit(calls=before + self._rng.randint(1, RAISE_MAX))
            await retry_call(lambda name=name, limit=limit: set_limit(Log(bus), name, limit, "user:op"), "operator")  # type: ignore[misc]
            self._recorder.counts["a budget was raised"] += 1


def _is_of_user(record: NewRecord) -> bool:
    return record.topic.startswith("usage:user:")


def usage_findings(bus: Engine, kept: Sequence[str], logs: Logs, configured: Budgets) -> Iterator[str]:
    """Every recorded answer is counted once, and no budget was exceeded by more than one call of each run at once."""
    recorded = _recorded_tokens(logs)
    for name in kept:
        spent = sum(
            row.used.spent.tokens
            for user in run_sync(bus, read_users)
            for row in run_sync(bus, read_user_usage, user).rows
            if row.conversation == name
        )
        # A call for a part of a summary is counted also if the summary was never recorded.
        if spent < recorded[name]:
            yield f"the answers and summaries of {name} have {recorded[name]} tokens, the ledger has {spent}"
    limits = run_sync(bus, read_limits)
    for waiting in limits.waiting.values():
        if waiting.conversation.partition(SUBAGENT_SEPARATOR)[0] in kept:
            yield f"{waiting.run} of {waiting.conversation} still waits for {waiting.budgets}"
    names = [BudgetName("conversation", name) for name in kept]
    for budget in [*names, BudgetName("day")] if configured.conversation else ():
        limit = limits.set.get(budget, configured.limit(budget.kind)).calls or 0
        ledger = run_sync(bus, read_ledger, budget.topic)
        used = [ledger.total] if budget.kind == "conversation" else list(ledger.days.values())
        for amount in used:
            if amount.total.calls > limit + RUNS_AT_ONCE * (budget.kind == "day"):
                yield f"{budget} has {limit} calls, and {amount.total.calls} were made"


def _recorded_tokens(logs: Logs) -> Counter[str]:
    """The tokens of the recorded answers and summaries of each conversation, with its subagents."""
    tokens: Counter[str] = Counter()
    for topic, records in logs.items():
        kind, name = checked_topic(topic)
        if kind == "history":
            calls = {
                (mark["kind"], mark["run"], mark["turn"]): mark
                for mark in (record.payload for record in records)
                if mark.get("kind") in ("answer", "compaction")
            }
            usages = [mark.get("usage") or mark.get("response", {}).get("usage") or {} for mark in calls.values()]
            tokens[name.partition(SUBAGENT_SEPARATOR)[0]] += sum(usage.get("total_tokens", 0) for usage in usages)
    return tokens
