from __future__ import annotations

from dataclasses import replace

import pytest

from magent2.errors import RosterError, UnknownAgent, UnknownScenario
from magent2.roster.agents_file import DEFAULT_TOOLS, default_roster
from magent2.roster.registry import EnvironmentOverride
from magent2.roster.spec import McpServer, Roster
from magent2.tools.default_tools import known_tools


def test_an_unknown_scenario_lists_those_that_there_are() -> None:
    with pytest.raises(UnknownScenario, match=r"unknown scenario 'defualt'; known: 'default'.*did you mean 'default'"):
        default_roster().scenario("defualt")


def test_an_unknown_agent_lists_those_that_there_are() -> None:
    with pytest.raises(UnknownAgent, match="no agent 'Sales'; known: 'supervisor', 'general', 'sales', 'support'"):
        default_roster().agent("default", "Sales")


def test_no_scenario_named_is_the_default_one() -> None:
    roster = default_roster()

    assert roster.scenario().id == "default"
    assert roster.agent(None, "sales") is roster.scenarios["default"].agents["sales"]


def test_the_default_team_is_supervisor_general_sales_and_support() -> None:
    scenario = default_roster().scenario()

    assert list(scenario.agents) == ["supervisor", "general", "sales", "support"]
    assert (scenario.root, scenario.supervisor) == ("general", "supervisor")
    assert list(scenario.route_targets) == ["general", "sales", "support"]


def test_the_default_team_has_its_documented_tools() -> None:
    agents = default_roster().scenario().agents

    assert agents["general"].tools == ("WebSearchTool", "echo_context", "weather", "chat_send", "run_python", "refund")
    assert agents["sales"].tools == ("product_search", "echo_context")
    assert agents["support"].tools == ("echo_context", "refund")
    assert agents["general"].voice
    assert {tool for agent in agents.values() for tool in agent.tools} == set(DEFAULT_TOOLS) <= known_tools()


def test_everyone_in_the_default_team_can_hand_over_to_everyone_who_answers() -> None:
    scenario = default_roster().scenario()

    for name, agent in scenario.agents.items():
        assert set(agent.handoffs) == set(scenario.route_targets) - {name}


def test_the_environment_alone_is_a_team_of_one() -> None:
    roster = Roster.of_environment("Dev", model="m", instructions="Be brief.", tools=["chat_send"])

    agent = roster.agent(None, "Dev")
    assert (agent.model, agent.instructions, agent.tools) == ("m", "Be brief.", ("chat_send",))
    assert roster.scenario().root == "Dev"
    assert roster.agent_names() == ("Dev",)


def test_the_environment_goes_over_the_file_for_the_agent_that_it_names() -> None:
    roster = EnvironmentOverride("sales", model="m", tools=()).apply(default_roster())

    before = default_roster().agent(None, "sales")
    assert roster.agent(None, "sales") == replace(before, model="m", tools=())
    assert roster.agent(None, "support") is default_roster().agent(None, "support")


def test_without_a_name_the_environment_applies_to_the_root() -> None:
    roster = EnvironmentOverride(instructions="Only rhyme.").apply(default_roster())

    assert roster.agent(None, "general").instructions == "Only rhyme."


def test_an_empty_environment_changes_nothing() -> None:
    assert EnvironmentOverride().apply(default_roster()) is default_roster()


def test_a_name_that_the_file_does_not_have_is_refused() -> None:
    with pytest.raises(
        RosterError, match="AGENT_NAME cannot be used: the team has no agent 'sale'; did you mean 'sales'"
    ):
        EnvironmentOverride("sale").apply(default_roster())


def test_an_agent_is_replaced_in_every_scenario_that_has_it() -> None:
    one = default_roster()
    both = replace(one, scenarios={**one.scenarios, "night": replace(one.scenario(), id="night")})

    changed = both.with_agent(replace(one.agent(None, "support"), model="m"))

    assert changed.agent("night", "support") is changed.agent("default", "support")
    assert changed.agent("night", "support").model == "m"


def test_secrets_of_a_server_are_not_in_its_repr() -> None:
    server = McpServer("files", url="https://x", headers={"Authorization": "Bearer hush"}, env={"TOKEN": "hush"})

    assert "hush" not in repr(server)
