from __future__ import annotations

from typing import Any

import pytest
from jsonschema import ValidationError as JsonSchemaError  # type: ignore[import-untyped]
from jsonschema import validate

from magent2.roster.agents_file import default_roster
from magent2.roster.routing import (
    ROUTE_REASON_MAX_CHARS,
    TIMED_OUT,
    decision_from_call,
    fall_back_to_keywords,
    route_by_keywords,
    route_description,
    route_schema,
)

TEAM = default_roster().scenario()
TEXT = "What does the premium plan cost?"


def test_only_agents_that_answer_can_be_named() -> None:
    schema = route_schema(TEAM)

    for name in ("general", "sales", "support"):
        validate({"agent": name, "reason": "it fits"}, schema)
    for call in ({"agent": "supervisor", "reason": ""}, {"agent": "sales"}, {"agent": "sales", "reason": "", "x": 1}):
        with pytest.raises(JsonSchemaError):
            validate(call, schema)


def test_the_model_is_told_who_there_is_and_who_has_the_conversation() -> None:
    text = route_description(TEAM, "sales")

    assert "sales has the conversation now" in text
    assert f"- support: {TEAM.agents['support'].role}" in text
    assert "supervisor" not in text


@pytest.mark.parametrize(
    "arguments", ['{"agent": "support", "reason": "it  is\\nbroken"}', {"agent": " support ", "reason": "it is broken"}]
)
def test_the_models_choice_is_followed(arguments: Any) -> None:
    choice = decision_from_call(TEAM, TEXT, "general", arguments)

    assert (choice.agent, choice.reason, choice.changed) == ("support", "it is broken", True)
    assert (choice.by, choice.fallback) == ("supervisor", None)


def test_a_choice_of_the_current_agent_is_no_change() -> None:
    assert not decision_from_call(TEAM, TEXT, "sales", {"agent": "sales", "reason": ""}).changed
    assert not decision_from_call(TEAM, TEXT, None, {"agent": "general", "reason": ""}).changed


def test_a_reason_is_short_and_may_be_missing() -> None:
    assert (
        len(decision_from_call(TEAM, TEXT, None, {"agent": "sales", "reason": "x" * 9999}).reason)
        == ROUTE_REASON_MAX_CHARS
    )
    assert decision_from_call(TEAM, TEXT, None, {"agent": "sales"}).reason == "the supervisor gave no reason"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (None, "no_call"),
        ("{", "bad_call"),
        ("[]", "bad_call"),
        ("[" * 100_000, "bad_call"),
        ('{"agent": 3}', "bad_call"),
        ({"reason": "x"}, "bad_call"),
        ({"agent": "billing", "reason": "x"}, "unknown_target"),
        ({"agent": "supervisor", "reason": "x"}, "unknown_target"),
    ],
)
def test_a_call_that_cannot_be_followed_leaves_it_to_the_keywords(arguments: Any, why: str) -> None:
    choice = decision_from_call(TEAM, TEXT, "general", arguments)

    assert (choice.agent, choice.changed, choice.fallback) == ("sales", True, why)
    assert choice.evidence == route_by_keywords(TEAM, TEXT, "general").evidence


def test_a_supervisor_that_took_too_long_leaves_it_to_the_keywords() -> None:
    assert fall_back_to_keywords(TEAM, "hello", "support", TIMED_OUT).agent == "support"
