"""Schemas of usage and budgets."""

from __future__ import annotations

from typing import Annotated

from pydantic import AwareDatetime, Field

from magent2.models.address import NAME_MAX_CHARS
from magent2.models.api.base import ApiModel, StrictRequest, example
from magent2.models.budgets import CALLS_LIMIT_MAX, COST_LIMIT_MAX_USD, TOKENS_LIMIT_MAX, BudgetKind
from magent2.models.json_types import JsonObject

USAGE_EXAMPLE: JsonObject = {
    "calls": 12, "input_tokens": 9100, "output_tokens": 2300, "cached_tokens": 4000, "tokens": 11400,
    "cost_usd": 0.0418, "unpriced_calls": 0, "lost_calls": 0, "lost_tokens": 0, "lost_cost_usd": 0.0,
}  # fmt: skip


class UsageAmount(ApiModel):
    """What model calls have used. `cached_tokens` are part of `input_tokens`.

    `cost_usd` is absent if no price is known, and leaves out `unpriced_calls`. The `lost_` fields are the estimates of
    calls that were lost with their worker, or cut off: they are not part of the other fields, but count in budgets.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    tokens: int = 0
    cost_usd: float | None = None
    unpriced_calls: int = 0
    lost_calls: int = 0
    lost_tokens: int = 0
    lost_cost_usd: float = 0.0


class UsageGroupInfo(UsageAmount):
    """The usage of one day, user, agent, model or conversation: the fields that the report is by."""

    day: str | None = None
    user: str | None = None
    agent: str | None = None
    model: str | None = None
    conversation: str | None = None


class UsageReportInfo(ApiModel):
    """The usage in a time, added up by the fields `by`. `reserved_tokens` are estimates of calls in progress."""

    model_config = example(
        since="2026-11-01", until="2026-11-17", timezone="UTC", by=["day"],
        groups=[{"day": "2026-11-17", **USAGE_EXAMPLE}], total=USAGE_EXAMPLE, reserved_calls=0, reserved_tokens=0,
        left_out=0,
    )  # fmt: skip

    since: str
    until: str
    timezone: str
    by: list[str]
    groups: list[UsageGroupInfo]
    total: UsageAmount
    reserved_calls: int = 0
    reserved_tokens: int = 0
    left_out: int = Field(default=0, description="groups that used least and are not listed")


class LimitInfo(ApiModel):
    """The most that may be used; a unit that is absent has no limit."""

    tokens: int | None = None
    calls: int | None = None
    cost_usd: float | None = None


BUDGET_EXAMPLE: JsonObject = {
    "budget": "user_day", "name": "user:ann", "limit": {"cost_usd": 5.0}, "set": True, "used": USAGE_EXAMPLE,
    "share": 0.01, "resets_at": "2026-11-18T00:00:00Z",
}  # fmt: skip


class BudgetInfo(ApiModel):
    """A budget: its limit, and how much is used. `name` is the run, conversation or user that it is for.

    `set`: the limit was set at run time, in place of that of the configuration. `resets_at`: a new day begins.
    """

    model_config = example(**BUDGET_EXAMPLE)

    budget: BudgetKind
    name: str
    limit: LimitInfo
    set: bool
    used: UsageAmount
    share: float = Field(description="of the limit that is used, from 0 to a million; at 1 runs pause")
    resets_at: AwareDatetime | None = None


class WaitingRunInfo(ApiModel):
    """A run that is paused until one of these budgets is raised."""

    run_id: str
    agent: str
    session_id: str
    budgets: list[BudgetInfo]


class BudgetList(ApiModel):
    """Budgets, and the runs that wait for more."""

    model_config = example(
        budgets=[BUDGET_EXAMPLE],
        waiting=[{"run_id": "run-5f1c", "agent": "general", "session_id": "c-1a2b", "budgets": [BUDGET_EXAMPLE]}],
    )

    budgets: list[BudgetInfo]
    waiting: list[WaitingRunInfo]


class BudgetRequest(StrictRequest):
    """Set a limit. A unit that is left out stays as it is, `null` removes its limit.

    `reset` restores the limit of the configuration, and takes no unit. `name` is the run, conversation or user. `day`
    has none.
    """

    model_config = example(budget="run", name="run-5f1c", tokens=200000)

    budget: BudgetKind
    name: Annotated[str, Field(max_length=NAME_MAX_CHARS)] = ""
    tokens: Annotated[int, Field(strict=True, ge=0, le=TOKENS_LIMIT_MAX)] | None = None
    calls: Annotated[int, Field(strict=True, ge=0, le=CALLS_LIMIT_MAX)] | None = None
    cost_usd: Annotated[float, Field(strict=True, ge=0, le=COST_LIMIT_MAX_USD, allow_inf_nan=False)] | None = None
    reset: Annotated[bool, Field(strict=True)] = False
