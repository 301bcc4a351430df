"""The commands `usage` and `budget`: what model calls have used, and the limits on it."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

import click

from magent2.cli.options import CommandFailed, GatewayOptions, gateway_options, json_option
from magent2.cli.output import print_data, print_json, print_note, print_table
from magent2.models.budgets import (
    CALLS_LIMIT_MAX,
    COST_LIMIT_MAX_USD,
    GROUP_FIELDS,
    KINDS,
    TOKENS_LIMIT_MAX,
    BudgetKind,
)

if TYPE_CHECKING:
    from magent2.models.api.usage import BudgetInfo, UsageAmount, WaitingRunInfo

DAY = click.DateTime(formats=["%Y-%m-%d"])


@click.command(epilog="Examples: magent2 usage; magent2 usage --by model --by agent --since 2026-11-01")
@click.option("--by", multiple=True, type=click.Choice(GROUP_FIELDS), help="Add up by this; may be given again.")
@click.option("--since", metavar="DAY", type=DAY, help="First day, such as 2026-11-01. Default: 30 days.")
@click.option("--until", metavar="DAY", type=DAY, help="Last day. Default: today.")
@click.option("--user", metavar="USER", help="Only the usage of this user.")
@click.option("--conversation", metavar="ID", help="Only the usage of this conversation, with its subagents.")
@json_option
@gateway_options
def usage(
    by: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    user: str | None,
    conversation: str | None,
    as_json: bool,
    gateway: GatewayOptions,
) -> None:
    """Show what model calls have used and cost.

    The usage is your own. An administrator sees that of all users.
    """
    days = [None if day is None else day.date() for day in (since, until)]
    with gateway.connect() as client:
        report = client.usage(*(by or ("day",)), since=days[0], until=days[1], user=user, conversation=conversation)
    if as_json:
        print_json(report)
        return
    titles = [*(name.upper() for name in report.by), "CALLS", "INPUT", "OUTPUT", "COST", "LOST"]
    rows = [[*(getattr(group, name) or "-" for name in report.by), *_cells(group)] for group in report.groups]
    total = ["total", *([""] * (len(report.by) - 1)), *_cells(report.total)]
    print_table(titles, [*rows, total])
    if report.total.unpriced_calls:
        print_note(f"the price of {report.total.unpriced_calls} calls is not known; add it to [prices]")
    if report.left_out:
        print_note(f"{report.left_out} groups that used least are not shown; choose fewer days")


def _cells(amount: UsageAmount) -> list[object]:
    lost = f"{amount.lost_calls} ({amount.lost_tokens} tokens)" if amount.lost_calls else "-"
    return [amount.calls, amount.input_tokens, amount.output_tokens, _money(amount.cost_usd), lost]


def _money(cost_usd: float | None) -> str:
    return "unknown" if cost_usd is None else f"${cost_usd:.4f}"


@click.group()
def budgets() -> None:
    """Show and set the limits of usage."""


@budgets.command("ls", epilog="Examples: magent2 budgets ls; magent2 budgets ls --conversation c-1a2b")
@click.option("--conversation", metavar="ID", help="Also the budget of this conversation, and only its waiting runs.")
@click.option("--user", metavar="USER", help="The budgets of this user instead of your own.")
@json_option
@gateway_options
def list_(conversation: str | None, user: str | None, as_json: bool, gateway: GatewayOptions) -> None:
    """List budgets, and the runs that wait for more."""
    with gateway.connect() as client:
        found = client.budgets(conversation, user)
    if as_json:
        print_json(found)
        return
    if found.budgets:
        print_table(("BUDGET", "NAME", "USED", "LIMIT"), [_row(info) for info in found.budgets])
    else:
        print_note("no limit is set; set one with 'magent2 budgets set' or in [budgets] of the agents file")
    for run in found.waiting:
        print_data(waiting_text(run))


def _row(info: BudgetInfo) -> list[object]:
    return [info.budget, info.name or "-", f"{info.share:.0%}", limit_text(info)]


def limit_text(info: BudgetInfo) -> str:
    """A limit in words, with what is used of it."""
    used, limit = info.used, info.limit
    parts = []
    if limit.tokens is not None:
        parts.append(f"{used.tokens + used.lost_tokens} of {limit.tokens} tokens")
    if limit.calls is not None:
        parts.append(f"{used.calls + used.lost_calls} of {limit.calls} calls")
    if limit.cost_usd is not None:
        parts.append(f"{_money((used.cost_usd or 0) + used.lost_cost_usd)} of {_money(limit.cost_usd)}")
    return ", ".join(parts) or "none"


def waiting_text(run: WaitingRunInfo) -> str:
    """A waiting run in words, with the command that lets it go on."""
    lines = [f"{run.session_id}: {run.agent} waits ({run.run_id})"]
    for info in run.budgets:
        when = "" if info.resets_at is None else f", goes on at {info.resets_at:%Y-%m-%d %H:%M %Z}"
        name = f" {info.name}" if info.name else ""
        lines.append(f"  {info.budget}: {limit_text(info)}{when}; raise it: magent2 budgets set {info.budget}{name} …")
    return "\n".join(lines)


@budgets.command(
    "set", epilog="Examples: magent2 budgets set user_day user:ann --cost 5; magent2 budgets set day --calls 99"
)
@click.argument("kind", metavar="BUDGET", type=click.Choice(KINDS))
@click.argument("name", metavar="[NAME]", required=False, default="")
@click.option("--tokens", metavar="N", type=click.IntRange(0, TOKENS_LIMIT_MAX), help="Tokens, input and output.")
@click.option("--calls", metavar="N", type=click.IntRange(0, CALLS_LIMIT_MAX), help="Model calls.")
@click.option("--cost", metavar="USD", type=click.FloatRange(0, COST_LIMIT_MAX_USD), help="Money, in US dollars.")
@click.option("--no-limit", is_flag=True, help="Remove the limit.")
@json_option
@gateway_options
def set_(
    kind: BudgetKind,
    name: str,
    tokens: int | None,
    calls: int | None,
    cost: float | None,
    no_limit: bool,
    as_json: bool,
    gateway: GatewayOptions,
) -> None:
    """Set a limit, and let the runs go on that wait for it.

    BUDGET is run, conversation, user, user_day or day. NAME is the id of the run or conversation, or the user; day has
    none. What is not given stays as it is.
    """
    given = {"tokens": tokens, "calls": calls, "cost_usd": cost}
    limits: dict[str, float | None] = {unit: value for unit, value in given.items() if no_limit or value is not None}
    if not limits:
        raise CommandFailed("give --tokens, --calls or --cost, or --no-limit")
    with gateway.connect() as client:
        info = client.set_budget(kind, name, **limits)
    _show(info, as_json)


@budgets.command("reset", epilog="Example: magent2 budgets reset user_day user:ann")
@click.argument("kind", metavar="BUDGET", type=click.Choice(KINDS))
@click.argument("name", metavar="[NAME]", required=False, default="")
@json_option
@gateway_options
def reset(kind: BudgetKind, name: str, as_json: bool, gateway: GatewayOptions) -> None:
    """Restore the limit of the agents file."""
    with gateway.connect() as client:
        info = client.reset_budget(kind, name)
    _show(info, as_json)


def _show(info: BudgetInfo, as_json: bool) -> None:
    if as_json:
        print_json(info)
    else:
        print_data(f"{info.budget} {info.name}".strip() + f": {limit_text(info)}")
