"""A supervisor routes by a call of the function `route`: what the model is shown, and what its call means. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from magent2.roster.routing import Choice, choose, is_change
from magent2.roster.spec import Scenario

ROUTE = "route"
REASON_MAX_CHARS = 300

# Why the keywords decided after all.
NO_CALL, BAD_CALL, UNKNOWN_TARGET, TIMED_OUT = "no_call", "bad_call", "unknown_target", "timed_out"


def route_schema(scenario: Scenario) -> dict[str, Any]:
    """The parameters of `route`, as JSON Schema: only agents that answer can be named."""
    return {
        "type": "object",
        "properties": {
            "agent": {"type": "string", "enum": list(scenario.answering), "description": "Who answers."},
            "reason": {"type": "string", "description": "Why, in one short sentence."},
        },
        "required": ["agent", "reason"],
        "additionalProperties": False,
    }


def route_description(scenario: Scenario, current: str | None) -> str:
    """What `route` does and who there is, in words for the model."""
    lines = [f"- {name}: {agent.role or 'no role given'}" for name, agent in scenario.answering.items()]
    kept = f" {current} has the conversation now: keep it there unless another fits better." if current else ""
    return "\n".join([f"Say which agent answers the person's last message.{kept}", *lines])


def choice_of_call(
    scenario: Scenario, text: str, current: str | None, arguments: str | Mapping[str, Any] | None
) -> Choice:
    """What a model's call of `route` means, None being no call. One that cannot be followed is left to the keywords."""
    if arguments is None:
        return fall_back(scenario, text, current, NO_CALL)
    call = _call(arguments)
    if call is None:
        return fall_back(scenario, text, current, BAD_CALL)
    target, reason = call
    if target not in scenario.answering:
        return fall_back(scenario, text, current, UNKNOWN_TARGET)
    return Choice(target, reason, is_change(scenario, current, target), by="supervisor")


def fall_back(scenario: Scenario, text: str, current: str | None, why: str) -> Choice:
    """The keywords' choice, in place of a supervisor that did not decide."""
    return replace(choose(scenario, text, current), fallback=why)


def _call(arguments: str | Mapping[str, Any]) -> tuple[str, str] | None:
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, Mapping) or not isinstance(value.get("agent"), str):
        return None
    reason = value.get("reason")
    words = " ".join(reason.split()) if isinstance(reason, str) else ""
    return value["agent"].strip(), words[:REASON_MAX_CHARS] or "the supervisor gave no reason"
