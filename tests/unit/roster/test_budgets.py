"""`[budgets]` of an agents file: its units and their ranges."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from magent2.errors import RosterError
from magent2.models.budgets import Limit
from tests.unit.roster.agents_files import AGENT, read_roster


def test_a_limit_has_one_unit_or_several_and_may_be_zero(tmp_path: Path) -> None:
    budgets = read_roster(
        tmp_path, f"{AGENT}[budgets.day]\ncalls = 0\n[budgets.run]\ntokens = 9\ncost_usd = 2\n"
    ).budgets

    assert (budgets.day, budgets.run) == (Limit(calls=0), Limit(tokens=9, cost_usd=Decimal("2.0")))


@pytest.mark.parametrize("kind", ["run", "conversation", "user", "user_day", "day"])
def test_a_limit_without_a_unit_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    with pytest.raises(RosterError, match=rf"budgets\.{kind}: must have tokens or calls or cost_usd"):
        read_roster(tmp_path, f"{AGENT}[budgets.{kind}]\n")


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "1e10", '"5"', "true"])
def test_an_amount_of_money_that_cannot_be_is_refused_by_name(tmp_path: Path, value: str) -> None:
    with pytest.raises(RosterError, match=r"budgets\.day.cost_usd: ") as refusal:
        read_roster(tmp_path, f"{AGENT}[budgets.day]\ncost_usd = {value}\n")

    assert "without one there is no limit" not in str(refusal.value)
