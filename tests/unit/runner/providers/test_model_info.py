"""What is known about models by name."""

from __future__ import annotations

from decimal import Decimal

import pytest

from magent2.runner.providers.model_info import TokenUsage, context_window, cost_usd


@pytest.mark.parametrize(
    ("model", "window"),
    [
        ("gpt-5-mini", 400_000),
        ("claude-sonnet-4-5", 200_000),
        ("anthropic/claude-sonnet-4-5", 200_000),
        ("litellm/anthropic/claude-sonnet-4-5", 200_000),
        ("openrouter/openai/gpt-5", 400_000),
        ("my-own-model", None),
        ("ollama/my-own-model", None),
        ("", None),
    ],
)
def test_the_size_of_the_context_is_found_by_name(model: str, window: int | None) -> None:
    assert context_window(model) == window


def test_the_cost_of_a_call_counts_cached_input_at_its_own_price() -> None:
    usage = TokenUsage(input_tokens=1_000_000, output_tokens=100_000, cached_tokens=500_000)

    assert cost_usd("gpt-5-mini", usage) == Decimal("0.125") + Decimal("0.0125") + Decimal("0.2")
    assert cost_usd("litellm/openai/gpt-5-mini", usage) == cost_usd("gpt-5-mini", usage)
    assert cost_usd("my-own-model", usage) is None
