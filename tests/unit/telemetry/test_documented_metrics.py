"""The tables of metrics in `docs/observability.md` name the metrics of the code, with their labels."""

from __future__ import annotations

import re

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from magent2.telemetry.metrics import Metrics, RunMetrics
from magent2.telemetry.observation import ABANDONED
from magent2.worker.settlement import Outcome
from tests.support.forked_processes import ROOT

PAGE = "docs/observability.md"
LABEL_VALUES = re.compile(r":[^`]*")  # `outcome`: accepted, repeated


def documented(title: str) -> dict[str, set[str]]:
    """The labels of each metric in the table under a title."""
    table = (ROOT / PAGE).read_text().partition(f"{title}:\n\n")[2].partition("\n\n")[0]
    found: dict[str, set[str]] = {}
    for row in table.splitlines()[2:]:
        names, labels = row.strip("|").split("|")[:2]
        for name in re.findall(r"`(\w+)`", names):
            found[name] = set(re.findall(r"`(\w+)`", LABEL_VALUES.sub("", labels)))
    return found


def registered(registry: CollectorRegistry) -> dict[str, set[str]]:
    """The labels of each metric of magent2 in a registry."""
    collectors = [one for one in registry._collector_to_names if isinstance(one, MetricWrapperBase)]
    return {
        name + ("_total" if one._type == "counter" else ""): set(one._labelnames)
        for one in collectors
        for name in [one._name]
    }


@pytest.mark.parametrize(("title", "metrics"), [("Metrics of a gateway", Metrics), ("Metrics of a worker", RunMetrics)])
def test_the_tables_of_the_page_are_those_of_the_code(title: str, metrics: type[Metrics | RunMetrics]) -> None:
    assert documented(title) == registered(metrics().registry)


def test_the_outcomes_of_an_attempt_are_documented() -> None:
    text = (ROOT / PAGE).read_text()
    listed = text.partition("The outcomes of an [attempt](glossary.md#attempt) are: ")[2].partition(".\n")[0]
    plain = re.sub(r"\([^()]*\)", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", listed))
    # There is no attempt at a run when a lane has nothing to answer.
    of_code = {outcome.value for outcome in Outcome if outcome is not Outcome.CLEARED} | {ABANDONED}

    assert {" ".join(name.split()) for name in plain.split(",")} == of_code


def test_every_metric_that_the_documentation_mentions_exists() -> None:
    """Also in alerts and on other pages. A histogram has the series `_bucket`, `_count` and `_sum`."""
    known = {*registered(Metrics().registry), *registered(RunMetrics().registry)}
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    mentioned = {
        re.sub(r"_(bucket|count|sum)$", "", name)
        for page in pages
        for name in re.findall(r"\bmagent2_\w+", page.read_text())
        if name != "magent2_runtime"  # a part of the name of the wheel
    }

    assert mentioned <= known
