"""The meter of a run: reserves each model call where a budget applies, and records what the call has used.

`reserve` is awaited before a model is called, `spent` gives the records that belong to the append with its answer. So
the usage of a recorded answer is counted once, however often the run is taken over. Without a budget, `reserve` does
nothing, and `spent` gives one record: the one of the user's ledger.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from openai.types.responses import Response

from magent2.bus.log import Log
from magent2.bus.operations import Condition, LastSeqIs, SetHead
from magent2.bus.records import NewRecord
from magent2.bus.retry import retry_call
from magent2.errors import ConditionFailed
from magent2.models.address import usage_topic
from magent2.models.budgets import Amount
from magent2.models.events import BudgetEvent, BudgetUse
from magent2.runner.event_mapping import usage_of
from magent2.runner.prices import begin_loading, priced
from magent2.runner.providers.model_info import TokenUsage
from magent2.runner.tokens import estimate_tokens
from magent2.sessions.stream import stream_record
from magent2.sessions.usage.budgets import (
    Allowed,
    Budget,
    Busy,
    day_of,
    decide,
    warned_key,
)
from magent2.sessions.usage.ledger import (
    CHECKPOINT_EVERY,
    CallFacts,
    Ledger,
    checkpoint_parts,
    lost_record,
    read_conversation_usage,
    release_record,
    remove_settled,
    reserve_record,
    seed_record,
    spend_record,
    warned_record,
)

if TYPE_CHECKING:
    from magent2.runner.journal.journal import Journal

BUSY_S = 0.25  # between two looks at a budget whose rest other calls may use
BUSY_MAX_S = 5.0  # after this time the run gives its place up, which the run that has reserved the rest may need
CONFLICT_MAX_S = 0.5  # longest delay before a reservation is tried again
ESTIMATED_OUTPUT_TOKENS = 500  # of a call, if no earlier one of its run says more
WARNING = "most of the budget is used"


@dataclass(slots=True)
class _Call:
    """A model call in progress. `reservation` is set where a budget applies."""

    facts: CallFacts
    topics: tuple[str, ...] = ()
    reservation: str | None = None


class Meter:
    """The meter of one attempt at a run."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._context = journal.context
        self._root = journal.context.root
        self._state = journal.context.budgets
        self._call: _Call | None = None  # the one in progress
        self._loading: asyncio.Future[None] | None = None  # while the prices are loaded
        self._unwritten: list[str] = []  # reservations of answered calls whose records are not on the log yet
        self._ended: list[NewRecord] = []  # records of calls that failed, for the next append

    async def reserve(self, agent: str, model: str, request: object) -> None:
        """Reserve a model call where a budget applies; where it is used up, the run is paused and does not return."""
        budgets = self._state.budgets(self._root)
        self._loading = begin_loading(model, self._state.configured().prices)
        if not budgets:
            self._call = _Call(self._facts(agent, model))
            return
        await self.prices_loaded()
        log = Log(self._context.bus)
        output = self._journal.last_output_tokens or ESTIMATED_OUTPUT_TOKENS
        usage = TokenUsage(estimate_tokens(request), output)
        estimate = priced((model,), usage, self._state.configured().prices)
        delay_s, busy_s = 0.001, 0.0
        while True:
            ledgers = await retry_call(partial(self._state.ledgers, log, budgets), self._context.run_id)
            decision = decide(budgets, ledgers, self._state.now(), self._context.run_id)
            if isinstance(decision, Busy) and busy_s < BUSY_MAX_S:
                await asyncio.sleep(BUSY_S)
                busy_s += BUSY_S
            elif isinstance(decision, Allowed):
                if await self._append(agent, model, estimate, budgets, ledgers, decision):
                    return
                await asyncio.sleep(delay_s * self._state.chance())
                delay_s = min(delay_s * 2, CONFLICT_MAX_S)
            else:
                await self._context.budget_reached(decision)
            budgets = self._state.budgets(self._root)

    async def _append(
        self,
        agent: str,
        model: str,
        estimate: Amount,
        budgets: tuple[Budget, ...],
        ledgers: Mapping[str, Ledger],
        allowed: Allowed,
    ) -> bool:
        """Append the reservation to every ledger that it counts in. Return False if one of them has changed."""
        facts, own = self._facts(agent, model), usage_topic("user", self._root.user)
        topics = tuple(dict.fromkeys((own, *ledgers)))
        call = _Call(facts, topics, f"reserve-{uuid.uuid4().hex}")
        records: list[NewRecord] = []
        heads: list[SetHead] = []
        conditions: list[Condition] = [LastSeqIs(topic, ledger.last) for topic, ledger in ledgers.items()]
        moved: list[tuple[str, int]] = []
        for topic, ledger in ledgers.items():
            if topic == own:
                continue
            if not ledger.last:
                seed, seen = await self._seed(topic, facts.day)
                records += seed
                conditions += seen
            elif ledger.last - ledger.checkpoint >= CHECKPOINT_EVERY:
                checkpoint, _, head = checkpoint_parts(topic, ledger.without_old(self._state.now_ms())[0])
                records += checkpoint
                heads += head
                moved.append((topic, ledger.last))
        records += self._ended
        records += [reserve_record(topic, str(call.reservation), facts, estimate, self._unwritten) for topic in topics]
        records += [warned_record(item.name.topic, warned_key(item, facts.day)) for item in allowed.warn]
        if allowed.warn:
            uses = [budget_use(item, ledgers[item.name.topic], facts.day) for item in allowed.warn]
            event = BudgetEvent(
                conversation_id=self._context.conversation_id, status="warning", budgets=uses, message=WARNING
            )
            records.append(stream_record(self._journal.event(event, self._journal.turn, agent)))
        try:
            await self._journal.commit(*records, heads=tuple(heads), conditions=tuple(dict.fromkeys(conditions)))
        except ConditionFailed:
            return False
        self._call, self._ended = call, []
        for topic, through in moved:
            await remove_settled(Log(self._context.bus), topic, through)
        return True

    async def _seed(self, topic: str, today: str) -> tuple[list[NewRecord], list[Condition]]:
        """What was used before a limit was set on a conversation, from the ledger of its user.

        On the condition that this ledger does not change meanwhile: each call is counted once.
        """
        if topic != usage_topic("conversation", self._root.conversation):
            return [], []
        log, own = Log(self._context.bus), usage_topic("user", self._root.user)
        (info,) = await log.describe(own)
        earlier = (await read_conversation_usage(log, self._root.user, self._root.conversation)).total
        return ([seed_record(topic, earlier)] if earlier else []), [LastSeqIs(own, info.last)]

    async def prices_loaded(self) -> None:
        """Wait until the prices are loaded."""
        if self._loading is not None:
            await asyncio.shield(self._loading)
            self._loading = None

    def spent(self, response: Response, model: str) -> list[NewRecord]:
        """The records of the call that was answered, for the append with its answer."""
        call, self._call = self._call, None
        if call is None:
            return []
        used = priced((model, str(response.model or "")), _usage(response), self._state.configured().prices)
        self._state.on_spent(used)
        if call.reservation is not None:
            self._unwritten.append(call.reservation)
        facts = call.facts._replace(model=model, day=day_of(self._state.now()))
        own = usage_topic("user", self._root.user)
        topics = dict.fromkeys((own, *call.topics, *(item.name.topic for item in self._state.budgets(self._root))))
        return [spend_record(topic, facts, used, call.reservation) for topic in topics]

    def add_ended(self, records: Sequence[NewRecord]) -> None:
        """Keep the records of answered calls for a later append, because the one that they were for is not made."""
        self._ended += records

    def all_written(self) -> None:
        """Note that the records of all answered calls are on the log before the next call is reserved."""
        self._unwritten.clear()

    @contextmanager
    def failures(self, has_begun: Callable[[], bool] = lambda: False) -> Iterator[None]:
        """Note how a call ends that raises. If its answer `has_begun`, what it has used is not known."""
        try:
            yield
        except Exception:
            self._end(lost_record if has_begun() else release_record)
            raise

    def close(self) -> Sequence[NewRecord]:
        """The records of a call that was cut off, and of those that failed, for the append that ends the attempt."""
        self._end(lost_record)
        ended, self._ended = self._ended, []
        return ended

    def _end(self, made: Callable[[str, str], NewRecord]) -> None:
        call, self._call = self._call, None
        if call is not None and call.reservation is not None:
            self._ended += [made(topic, call.reservation) for topic in call.topics]

    def _facts(self, agent: str, model: str) -> CallFacts:
        root = self._root
        return CallFacts(self._context.run_id, agent, model, root.conversation, root.run, day_of(self._state.now()))


def budget_use(budget: Budget, ledger: Ledger, today: str) -> BudgetUse:
    """How much of a budget is used, as events show it."""
    used, limit = ledger.used(budget.day(today)).total, budget.limit
    return BudgetUse(
        budget=budget.name.kind,
        name=budget.name.name,
        tokens=used.tokens,
        tokens_limit=limit.tokens,
        calls=used.calls,
        calls_limit=limit.calls,
        cost_usd=float(used.cost_usd),
        cost_usd_limit=None if limit.cost_usd is None else float(limit.cost_usd),
    )


def _usage(response: Response) -> TokenUsage:
    """The tokens of a response. Servers report some counts as missing, or as numbers that mean nothing."""
    usage = getattr(response, "usage", None)
    counts = usage_of(usage) or {}

    def count(name: str) -> int:
        return max(0, counts.get(name, 0))

    cached = min(count("cached_tokens"), count("input_tokens"))
    return TokenUsage(count("input_tokens"), count("output_tokens"), cached)
