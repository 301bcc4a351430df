"""The tools that are there from the start."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import cast

import pytest

from magent2.roster.agents_file import default_roster
from magent2.tools.default_tools import CATALOGUE, echo_context, known_tools, product_search, standard_tools, weather
from magent2.tools.interface import RunFacts


def test_each_example_says_that_it_is_offline() -> None:
    facts = cast(RunFacts, SimpleNamespace(conversation_id="one", agent="Ada", run_id="run-1"))

    results = [echo_context(facts, "hi"), weather("Oslo"), product_search("lamp")]

    assert all("offline" in result["source"] for result in results)
    assert results[0]["conversation_id"] == "one"


def test_the_weather_is_the_same_for_the_same_city_and_never_snows_in_the_heat() -> None:
    assert weather("Oslo") == {**weather("  oslo "), "city": "Oslo"}
    reports = [weather(f"city {number}") for number in range(300)]
    assert all(report["temperature_c"] <= 2 for report in reports if report["sky"] == "snow")
    assert any(report["sky"] == "snow" for report in reports)


@pytest.mark.parametrize(
    ("query", "first"),
    [("red shoes", "Red running shoes"), ("lamps", "Reading lamp, brass"), ("oak CHAIR", "Oak chair")],
)
def test_products_that_fit_better_come_first(query: str, first: str) -> None:
    assert product_search(query)["products"][0]["title"] == first


def test_a_search_is_bounded_and_may_find_nothing() -> None:
    assert len(product_search("lamp chair shoe bag desk", 2)["products"]) == 2
    assert product_search("a lamp")["found"] == 2, "small words are no search"
    assert product_search("submarine") == {"products": [], "found": 0, "source": product_search("lamp")["source"]}
    assert len({key for key, _, _ in CATALOGUE}) == len(CATALOGUE)


def test_the_standard_tools_are_all_that_the_default_team_needs() -> None:
    used = {name for agent in default_roster().scenario().agents.values() for name in agent.tools}

    assert used <= known_tools()
    assert {"chat_send", "echo_context", "product_search", "run_python", "weather"} <= set(standard_tools().names())


def test_the_standard_tools_do_not_import_the_sdk() -> None:
    code = """
import sys
from magent2.tools.builtins import BuiltinTools
from magent2.tools.default_tools import standard_tools
standard_tools().schemas(), BuiltinTools.read({}).status("openai")
sys.exit("agents" in sys.modules or "openai" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
