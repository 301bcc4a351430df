"""The figures of `magent2 bench`."""

from __future__ import annotations

from magent2.cli.bench import BenchPlan, quantiles_ms


def test_percentiles_of_no_values_are_none_and_messages_are_spread_evenly() -> None:
    plan = BenchPlan("a", 10, 3, None, 1.0, False)

    assert quantiles_ms([]) == {"p50": None, "p95": None, "p99": None}
    assert quantiles_ms([n / 1000 for n in range(1, 101)]) == {"p50": 51.0, "p95": 96.0, "p99": 100.0}
    assert [plan.share(number) for number in range(3)] == [4, 3, 3]
