"""Settings of a model, as the SDK takes them."""

from __future__ import annotations

from agents import ModelSettings
from openai.types.shared import Reasoning

from magent2.roster.spec import ModelSettingsValues


def sdk_settings(values: ModelSettingsValues) -> ModelSettings:
    """The settings of an agent. What is absent is not sent."""
    return ModelSettings(
        temperature=values.get("temperature"),
        top_p=values.get("top_p"),
        frequency_penalty=values.get("frequency_penalty"),
        presence_penalty=values.get("presence_penalty"),
        max_tokens=values.get("max_tokens"),
        reasoning=Reasoning(effort=values["reasoning_effort"]) if "reasoning_effort" in values else None,
        verbosity=values.get("verbosity"),
        parallel_tool_calls=values.get("parallel_tool_calls"),
        truncation=values.get("truncation"),
        include_usage=values.get("include_usage"),
        extra_body=values.get("extra_body"),
    )
