"""Reports of usage: the rows of one or all users, added up by day, user, agent, model or conversation."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from magent2.bus.log import Log
from magent2.models.address import usage_topic
from magent2.models.budgets import NOTHING, Amount, UsageField
from magent2.sessions.usage.ledger import UNUSED, UsageRow, Used, read_user_usage

GROUPS_MAX = 5000  # groups of a report; those that used least are left out


class UserRow(NamedTuple):
    """A row of usage, and whose it is."""

    user: str
    row: UsageRow


@dataclass(frozen=True, slots=True)
class UsageFilter:
    """What a report is about. Days are inclusive; `None` and an empty text mean all."""

    user: str | None = None
    conversation: str | None = None
    since: str = ""
    until: str = ""

    def takes(self, row: UsageRow) -> bool:
        return (
            row.day >= self.since
            and (not self.until or row.day <= self.until)
            and self.conversation in (None, row.conversation)
        )


@dataclass(frozen=True, slots=True)
class UsageGroup:
    """The usage of all calls that have these values."""

    values: tuple[str, ...]
    used: Used


@dataclass(frozen=True, slots=True)
class UsageReport:
    """Groups in the order of their values, their sum, and the estimates of the calls in progress."""

    by: tuple[UsageField, ...]
    groups: tuple[UsageGroup, ...]
    total: Used
    reserved: Amount
    left_out: int = 0


async def read_report(log: Log, wanted: UsageFilter, by: Sequence[UsageField], now_ms: int) -> UsageReport:
    """Read the usage and add it up."""
    rows: list[UserRow] = []
    reserved = NOTHING
    users = [wanted.user] if wanted.user is not None else await read_users(log)
    for user in users:
        usage = await read_user_usage(log, user, wanted.since, now_ms)
        rows += [UserRow(user, row) for row in usage.rows if wanted.takes(row)]
        reserved += usage.reserved
    groups, left_out = group_rows(rows, by)
    return UsageReport(tuple(by), groups, sum((row.used for _, row in rows), UNUSED), reserved, left_out)


async def read_users(log: Log) -> list[str]:
    """The users that have a ledger."""
    prefix = usage_topic("user")
    return [info.topic.removeprefix(prefix) async for info in log.all_topics(prefix)]


def group_rows(rows: Iterable[UserRow], by: Sequence[UsageField]) -> tuple[tuple[UsageGroup, ...], int]:
    """Add up rows by these fields. Returns the groups in the order of their values, and how many were left out."""
    sums: dict[tuple[str, ...], Used] = {}
    for user, row in rows:
        facts = {"day": row.day, "user": user, "agent": row.agent, "model": row.model, "conversation": row.conversation}
        key = tuple(facts[field] for field in by)
        sums[key] = sums.get(key, UNUSED) + row.used
    largest = sorted(sums, key=lambda key: (sums[key].total.cost_usd, sums[key].total.tokens), reverse=True)
    kept = sorted(largest[:GROUPS_MAX])
    return tuple(UsageGroup(key, sums[key]) for key in kept), max(0, len(sums) - GROUPS_MAX)
