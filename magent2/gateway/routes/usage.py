"""`/api/usage` and `/api/budgets`: what model calls have used, and the limits on it.

Users see their own usage and budgets, administrators those of all. A user may raise the limits of own runs and
conversations: those protect against runs that do not end. The limits of users and days are for administrators.
"""

from __future__ import annotations

from datetime import date, timedelta
from decimal import Decimal
from typing import Annotated, cast

from fastapi import APIRouter, Query, Request

from magent2.bus.log import Log
from magent2.gateway.instrumentation import add_audit_ids
from magent2.gateway.openapi import problems
from magent2.gateway.problems import Problem
from magent2.gateway.routes.dependencies import (
    ACCESS_ERRORS,
    API,
    BODY_ERRORS,
    SESSION_ERRORS,
    caller,
    get_session,
    json_body,
    parse_body,
)
from magent2.gateway.services import Services, services_of
from magent2.mail.headers import OWNER
from magent2.models.address import NAME_MAX_CHARS, check_name, stream_topic
from magent2.models.api.usage import (
    BudgetInfo,
    BudgetList,
    BudgetRequest,
    LimitInfo,
    UsageAmount,
    UsageGroupInfo,
    UsageReportInfo,
    WaitingRunInfo,
)
from magent2.models.budgets import DAILY, GROUP_FIELDS, UNITS, Budgets, Limit, UsageField
from magent2.models.principal import Principal
from magent2.sessions.approvals import now_ms
from magent2.sessions.usage.budgets import (
    Budget,
    BudgetName,
    Limits,
    WaitingRun,
    day_of,
    local_time,
    next_day,
    read_limits,
    set_limit,
)
from magent2.sessions.usage.ledger import Used, read_conversation_usage, read_ledger
from magent2.sessions.usage.report import UsageFilter, read_report

DAYS_DEFAULT = 30  # of a report that names no time
REPORT_DAYS_MAX = 3660
WAITING_MAX = 200  # waiting runs in one response
OWN_KINDS = ("run", "conversation")  # budgets that their owner may change

Day = Annotated[date | None, Query(description="a day such as 2026-11-17, inclusive")]
By = Annotated[str, Query(max_length=100, description="fields of the groups, separated by commas")]
OptionalName = Annotated[str | None, Query(max_length=NAME_MAX_CHARS)]


router = APIRouter(prefix=API, tags=["usage"])


@router.get("/usage", operation_id="report_usage", responses=problems(*ACCESS_ERRORS, 422))
async def usage(
    request: Request,
    by: By = "day",
    since: Day = None,
    until: Day = None,
    user: OptionalName = None,
    conversation: OptionalName = None,
) -> UsageReportInfo:
    """Report what model calls have used, added up by day, user, agent, model or conversation.

    Without `since`, the last 30 days. Users get their own usage; administrators that of all, or of one `user`.
    """
    services = services_of(request)
    configured = services.catalogue.roster.budgets
    today = local_time(now_ms(), configured.timezone).date()
    last = until or today
    first = since or last - timedelta(days=DAYS_DEFAULT - 1)
    if first > last or (last - first).days > REPORT_DAYS_MAX:
        detail = f"since must be at most {REPORT_DAYS_MAX} days before until; give other days"
        raise Problem(422, "bad_days", detail)
    fields = _fields(by)
    wanted = UsageFilter(_user(caller(request), user), conversation, first.isoformat(), last.isoformat())
    report = await read_report(Log(services.bus), wanted, fields, now_ms())
    return UsageReportInfo(
        since=wanted.since,
        until=wanted.until,
        timezone=configured.timezone,
        by=list(fields),
        groups=[
            UsageGroupInfo.model_validate(
                {**dict(zip(fields, group.values, strict=True)), **_amount(group.used).model_dump()}
            )
            for group in report.groups
        ],
        total=_amount(report.total),
        reserved_calls=report.reserved.calls,
        reserved_tokens=report.reserved.tokens,
        left_out=report.left_out,
    )


def _fields(by: str) -> tuple[UsageField, ...]:
    names = [name.strip() for name in by.split(",")]
    for name in names:
        if name not in GROUP_FIELDS:
            raise Problem(
                422, "bad_by", f"by must name {', '.join(GROUP_FIELDS)}, separated by commas, not {name[:60]!r}"
            )
    return tuple(field for field in dict.fromkeys(cast("list[UsageField]", names)))


def _user(principal: Principal, wanted: str | None) -> str | None:
    """Whose usage a caller may see: the own, or any as an administrator."""
    if principal.admin:
        return wanted
    if wanted not in (None, principal.name):
        raise Problem.admins_only()
    return principal.name


def _amount(used: Used) -> UsageAmount:
    spent, lost = used.spent, used.lost
    unknown = spent.calls > 0 and spent.unpriced_calls == spent.calls
    return UsageAmount(
        calls=spent.calls,
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        cached_tokens=spent.cached_tokens,
        tokens=spent.tokens,
        cost_usd=None if unknown else float(spent.cost_usd),
        unpriced_calls=spent.unpriced_calls,
        lost_calls=lost.calls,
        lost_tokens=lost.tokens,
        lost_cost_usd=float(lost.cost_usd),
    )


@router.get("/budgets", operation_id="list_budgets", responses=problems(*ACCESS_ERRORS, *SESSION_ERRORS, 422))
async def budgets(request: Request, conversation: OptionalName = None, user: OptionalName = None) -> BudgetList:
    """List budgets: those of the caller, those of one conversation or user, and the runs that wait for more.

    Administrators get the limit of the day, and every limit that was set at run time.
    """
    services = services_of(request)
    principal, log = caller(request), Log(services.bus)
    limits = await read_limits(log)
    names = _listed(principal, limits, _user(principal, user))
    waiting = list(limits.waiting.values())
    if conversation is not None:
        await get_session(services, conversation, principal)
        names = [*names, BudgetName("conversation", conversation)]
        waiting = [run for run in waiting if _is_in(run, conversation)]
    shown = [run for run in waiting if principal.admin or await _owner(log, run) == principal.name]
    view = _BudgetView(log, limits, services.catalogue.roster.budgets)
    return BudgetList(
        budgets=[await view.info(name) for name in dict.fromkeys(names) if view.limit(name)],
        waiting=[await view.waiting(run) for run in shown[:WAITING_MAX]],
    )


@router.put(
    "/budgets",
    operation_id="set_budget",
    responses=problems(*ACCESS_ERRORS, *BODY_ERRORS, *SESSION_ERRORS, 409, 507),
    openapi_extra=json_body(BudgetRequest),
)
async def change(request: Request) -> BudgetInfo:
    """Set a limit, and let the runs go on that wait for it."""
    services = services_of(request)
    body = await parse_body(request, services, BudgetRequest)
    principal, log = caller(request), Log(services.bus)
    name = BudgetName(body.budget, _checked_name(body))
    add_audit_ids(request.scope, budget=str(name))
    limits = await read_limits(log)
    await _check_right(services, principal, limits, name, reset=body.reset)
    configured = services.catalogue.roster.budgets
    view = _BudgetView(log, limits, configured)
    limit = None if body.reset else _changed(view.limit(name), body)
    changed = _BudgetView(log, await set_limit(log, name, limit, principal.name), configured)
    return await changed.info(name)


def _checked_name(body: BudgetRequest) -> str:
    units = body.model_fields_set.intersection(UNITS)
    if not body.reset and not units:
        raise Problem(422, "no_limit", "give 'tokens', 'calls' or 'cost_usd', or 'reset'")
    if body.reset and units:
        raise Problem(422, "reset_and_limit", f"give either 'reset' or {min(units)!r}, not both")
    if body.budget == "day":
        if body.name:
            raise Problem(422, "bad_name", "the budget of the day is for the whole deployment; leave 'name' out")
        return ""
    if not body.name:
        what = body.budget.removesuffix("_day")
        raise Problem(422, "bad_name", f"the budget of a {what} needs its name; give it in 'name'")
    return check_name(body.name, "name")


async def _check_right(
    services: Services, principal: Principal, limits: Limits, name: BudgetName, *, reset: bool
) -> None:
    """Raise a problem unless the caller may set this limit.

    A conversation must exist. An administrator may remove the limit of one that does not.
    """
    if name.kind == "conversation" and not (principal.admin and reset):
        await get_session(services, name.name, principal)
    elif principal.admin:
        return
    elif name.kind == "run":
        log = Log(services.bus)
        owners = [await _owner(log, run) for run in limits.waiting_for(name)]
        if principal.name not in owners:
            raise Problem(404, "unknown_run", "no run of yours with this id waits for more budget")
    else:
        raise Problem.admins_only()


def _changed(before: Limit, body: BudgetRequest) -> Limit:
    given = body.model_fields_set
    cost = None if body.cost_usd is None else Decimal(str(body.cost_usd))
    return Limit(
        body.tokens if "tokens" in given else before.tokens,
        body.calls if "calls" in given else before.calls,
        cost if "cost_usd" in given else before.cost_usd,
    )


def _listed(principal: Principal, limits: Limits, user: str | None) -> list[BudgetName]:
    own = principal.name if user is None else user
    names = [BudgetName("user", own), BudgetName("user_day", own)]
    if principal.admin and user is None:
        return [*names, BudgetName("day"), *limits.set]
    return names


def _is_in(run: WaitingRun, conversation: str) -> bool:
    """Whether a run waits in a conversation, or in one of its subagents."""
    return run.conversation == conversation or run.conversation.startswith(f"{conversation}~")


async def _owner(log: Log, run: WaitingRun) -> object:
    (stream,) = await log.describe(stream_topic(run.conversation))
    return stream.head.get(OWNER)


class _BudgetView:
    """Budgets as the API shows them, from the limits that were read."""

    def __init__(self, log: Log, limits: Limits, configured: Budgets) -> None:
        self._log = log
        self._limits = limits
        self._configured = configured

    def limit(self, name: BudgetName) -> Limit:
        return self._limits.set.get(name, self._configured.limit(name.kind))

    async def info(self, name: BudgetName) -> BudgetInfo:
        limit, now = self.limit(name), local_time(now_ms(), self._configured.timezone)
        ledger = await read_ledger(self._log, name.topic)
        used = ledger.used(Budget(name, limit).day(day_of(now)))
        if name.kind == "conversation" and not ledger.last:  # its ledger begins with the next call
            (stream,) = await self._log.describe(stream_topic(name.name))
            used = await read_conversation_usage(self._log, stream.head.get(OWNER) or "", name.name)
        return BudgetInfo(
            budget=name.kind,
            name=name.name,
            limit=LimitInfo(
                tokens=limit.tokens,
                calls=limit.calls,
                cost_usd=None if limit.cost_usd is None else float(limit.cost_usd),
            ),
            set=name in self._limits.set,
            used=_amount(used),
            share=round(limit.share(used.total), 6),
            resets_at=next_day(now) if name.kind in DAILY else None,
        )

    async def waiting(self, run: WaitingRun) -> WaitingRunInfo:
        budgets = [await self.info(name) for name in run.budgets]
        return WaitingRunInfo(run_id=run.run, agent=run.agent, session_id=run.conversation, budgets=budgets)
