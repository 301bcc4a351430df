"""Usage of models and its limits, as values: tokens, model calls and money."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from decimal import Decimal
from typing import Literal, TypeAlias, get_args

BudgetKind: TypeAlias = Literal["run", "conversation", "user", "user_day", "day"]

KINDS: tuple[BudgetKind, ...] = get_args(BudgetKind)
DAILY: frozenset[BudgetKind] = frozenset({"user_day", "day"})
UNITS = ("tokens", "calls", "cost_usd")
DEFAULT_TIMEZONE = "UTC"
TOKENS_LIMIT_MAX = 10**15
CALLS_LIMIT_MAX = 10**12
COST_LIMIT_MAX_USD = 1e9
SHARE_MAX = 1e6  # a larger share of a limit is shown as this one: JSON has no infinity

UsageField: TypeAlias = Literal["day", "user", "agent", "model", "conversation"]  # what usage is added up by
GROUP_FIELDS: tuple[UsageField, ...] = get_args(UsageField)


@dataclass(frozen=True, slots=True)
class Amount:
    """What model calls have used. `cached_tokens` are part of `input_tokens`.

    The price of `unpriced_calls` is not known: their tokens count, but no money.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    calls: int = 0
    cost_usd: Decimal = Decimal(0)
    unpriced_calls: int = 0

    @property
    def tokens(self) -> int:
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
            self.calls + other.calls,
            self.cost_usd + other.cost_usd,
            self.unpriced_calls + other.unpriced_calls,
        )

    def __sub__(self, other: Amount) -> Amount:
        return Amount(
            self.input_tokens - other.input_tokens,
            self.output_tokens - other.output_tokens,
            self.cached_tokens - other.cached_tokens,
            self.calls - other.calls,
            self.cost_usd - other.cost_usd,
            self.unpriced_calls - other.unpriced_calls,
        )

    def __bool__(self) -> bool:
        return self != NOTHING

    def as_json(self) -> dict[str, object]:
        """The amount as it is stored. Money is text, so that sums are exact. Zeros are left out."""
        values = {item.name: getattr(self, item.name) for item in fields(self)}
        return {name: str(value) if name == "cost_usd" else value for name, value in values.items() if value}

    @classmethod
    def of_json(cls, stored: Mapping[str, object]) -> Amount:
        counts = {
            item.name: value
            for item in fields(cls)
            if item.name != "cost_usd" and isinstance(value := stored.get(item.name), int)
        }
        return cls(**counts, cost_usd=Decimal(str(stored.get("cost_usd") or 0)))


NOTHING = Amount()


@dataclass(frozen=True, slots=True)
class Limit:
    """The most that may be used. A unit that is `None` has no limit."""

    tokens: int | None = None
    calls: int | None = None
    cost_usd: Decimal | None = None

    def __bool__(self) -> bool:
        return self.tokens is not None or self.calls is not None or self.cost_usd is not None

    def share(self, used: Amount) -> float:
        """How much of the limit is used, from 0 to `SHARE_MAX`, in the unit of which most is used. 1 is all of it."""
        shares = [
            1.0 if limit <= 0 else float(used_of / limit)
            for limit, used_of in ((self.tokens, used.tokens), (self.calls, used.calls), (self.cost_usd, used.cost_usd))
            if limit is not None
        ]
        return min(SHARE_MAX, max(shares, default=0.0))

    def as_json(self) -> dict[str, object]:
        values = {"tokens": self.tokens, "calls": self.calls, "cost_usd": self.cost_usd}
        return {n: str(v) if isinstance(v, Decimal) else v for n, v in values.items() if v is not None}

    @classmethod
    def of_json(cls, stored: Mapping[str, object]) -> Limit:
        tokens, calls, cost = (stored.get(unit) for unit in UNITS)
        return cls(
            tokens if isinstance(tokens, int) else None,
            calls if isinstance(calls, int) else None,
            None if cost is None else Decimal(str(cost)),
        )


NO_BUDGET = Limit()


@dataclass(frozen=True, slots=True)
class Price:
    """What a model costs, in US dollars per million tokens."""

    input: Decimal
    output: Decimal
    cached_input: Decimal | None = None  # as `input` if not given


@dataclass(frozen=True, slots=True)
class Budgets:
    """The limits of the configuration, for each run, conversation, user, user and day, and for the whole day."""

    run: Limit = NO_BUDGET
    conversation: Limit = NO_BUDGET
    user: Limit = NO_BUDGET
    user_day: Limit = NO_BUDGET
    day: Limit = NO_BUDGET
    timezone: str = DEFAULT_TIMEZONE  # in which a day begins at midnight
    prices: Mapping[str, Price] = field(default_factory=dict)

    def limit(self, kind: BudgetKind) -> Limit:
        limit: Limit = getattr(self, kind)
        return limit
