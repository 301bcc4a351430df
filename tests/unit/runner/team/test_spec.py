"""The specification of a team run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magent2.errors import UnknownAgent
from magent2.roster.agents_file import default_roster
from magent2.runner.team.spec import TeamSpec, reachable, resolve, scenario_of
from magent2.sessions.history import RecordedSettings
from tests.support.team import CHIEF, DESK, SHOP, roster

NO_SETTINGS = RecordedSettings()


def test_it_is_the_same_after_a_round_trip_through_the_log() -> None:
    spec = resolve(roster(), "desk", {"scenario_id": "house", "overlay": "Be kind."}, model="m")

    assert TeamSpec.from_payload(spec.payload()) == spec
    assert spec.digest == TeamSpec.from_payload(spec.payload()).digest


def test_it_has_exactly_the_agents_that_can_be_reached() -> None:
    lonely = replace(SHOP, handoffs=())

    assert reachable(roster().scenario(), "chief") == ("chief", "desk", "shop")
    assert list(resolve(roster(), "desk", NO_SETTINGS).members) == ["desk", "shop"]
    assert list(resolve(roster(CHIEF, DESK, lonely), "shop", NO_SETTINGS).members) == ["shop"]
    assert list(resolve(roster(), "desk", NO_SETTINGS, kind="tool").members) == ["desk"]


def test_a_model_of_the_session_overrides_the_rosters_and_that_the_runners() -> None:
    settings: RecordedSettings = {"scenario_id": "house", "agents": {"desk": {"model": "mine"}}}

    members = resolve(roster(), "desk", settings, model="fallback").members
    assert (members["desk"].model, members["shop"].model) == ("mine", "shop-model")
    assert resolve(roster(), "desk", NO_SETTINGS, model="fallback").members["desk"].model == "fallback"


def test_an_overlay_is_a_separate_paragraph_for_every_agent() -> None:
    spec = resolve(roster(replace(DESK, instructions=""), SHOP), "desk", {"overlay": " Be kind. "})

    assert spec.instructions_of("desk") == "Be kind."
    assert spec.instructions_of("shop") == "You are the shop.\n\nBe kind."
    assert TeamSpec("house", spec.members).instructions_of("desk") is None


def test_the_scenario_is_the_sessions_if_the_agent_is_in_it() -> None:
    both = roster()

    assert scenario_of(both, "desk", "house").id == "house"
    assert scenario_of(both, "stranger", "house").id == "away"
    assert scenario_of(both, "desk", "burnt down").id == "house"
    with pytest.raises(UnknownAgent, match="no agent 'nobody'; known: 'chief', 'desk', 'shop'"):
        scenario_of(both, "nobody", None)


def test_a_changed_spec_has_another_digest() -> None:
    one, other = (resolve(roster(), "desk", {"overlay": text}).digest for text in ("a", "b"))

    assert one != other


def test_the_default_team_is_small_on_the_log() -> None:
    spec = resolve(default_roster(), "general", NO_SETTINGS)

    assert set(spec.members) == {"general", "sales", "support"}
    assert len(str(spec.payload())) < 4000
