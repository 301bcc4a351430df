"""Budgets and prices that an agents file may set: `[budgets]`, `[budgets.KIND]` and `[prices."MODEL"]`."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, ConfigDict, Field, with_config
from typing_extensions import TypedDict

from magent2.models.budgets import (
    CALLS_LIMIT_MAX,
    COST_LIMIT_MAX_USD,
    DEFAULT_TIMEZONE,
    TOKENS_LIMIT_MAX,
    Budgets,
    Limit,
    Price,
)

PRICE_MAX_USD = 1e6
PRICES_MAX = 1000


def check_timezone(name: str) -> str:
    """Return the name of a time zone of the IANA database. Raises `ValueError`."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"must be a time zone such as 'Europe/Berlin' or 'UTC', not {name[:60]!r}") from None
    return name


Money: TypeAlias = Annotated[float, Field(ge=0, le=COST_LIMIT_MAX_USD, allow_inf_nan=False)]
PerMillion: TypeAlias = Annotated[float, Field(ge=0, le=PRICE_MAX_USD, allow_inf_nan=False)]


# Strict: `true` is not 1, and 1.5 is not a number of tokens.
@with_config(ConfigDict(strict=True, extra="forbid"))
class LimitTable(TypedDict, total=False):
    """`[budgets.KIND]`: the most that may be used."""

    tokens: Annotated[int, Field(ge=0, le=TOKENS_LIMIT_MAX)]  # input and output
    calls: Annotated[int, Field(ge=0, le=CALLS_LIMIT_MAX)]  # of models
    cost_usd: Money


@with_config(ConfigDict(strict=True, extra="forbid"))
class BudgetValues(TypedDict, total=False):
    """`[budgets]`: the limits that are set. One that is absent does not exist."""

    run: LimitTable  # of each run, with its subagents
    conversation: LimitTable  # of each conversation
    user: LimitTable  # of each user
    user_day: LimitTable  # of each user on one day
    day: LimitTable  # of the whole deployment on one day
    timezone: Annotated[str, AfterValidator(check_timezone)]  # in which a day begins


@with_config(ConfigDict(strict=True, extra="forbid"))
class PriceTable(TypedDict, total=False):
    """`[prices."MODEL"]`: US dollars per million tokens."""

    input: PerMillion
    output: PerMillion
    cached_input: PerMillion  # as `input` if it is absent


BUDGET_NAMES = tuple(BudgetValues.__annotations__)
LIMIT_UNITS = tuple(LimitTable.__annotations__)
PRICE_NAMES = tuple(PriceTable.__annotations__)


def budgets_of(values: BudgetValues, prices: Mapping[str, PriceTable]) -> Budgets:
    """Return the budgets that the values describe."""
    return Budgets(
        run=_limit(values.get("run")),
        conversation=_limit(values.get("conversation")),
        user=_limit(values.get("user")),
        user_day=_limit(values.get("user_day")),
        day=_limit(values.get("day")),
        timezone=values.get("timezone", DEFAULT_TIMEZONE),
        prices={model: _price(table) for model, table in prices.items()},
    )


def _limit(table: LimitTable | None) -> Limit:
    if table is None:
        return Limit()
    cost = table.get("cost_usd")
    return Limit(table.get("tokens"), table.get("calls"), None if cost is None else Decimal(str(cost)))


def _price(table: PriceTable) -> Price:
    cached = table.get("cached_input")
    return Price(
        Decimal(str(table.get("input", 0))),
        Decimal(str(table.get("output", 0))),
        None if cached is None else Decimal(str(cached)),
    )
