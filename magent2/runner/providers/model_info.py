"""What is known about models by name: the size of their context, and their prices (the package genai-prices).

The package is imported when it is first needed: it takes 0.4 s.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from genai_prices.types import ModelInfo, Provider


@dataclass(frozen=True, slots=True)
class TokenUsage:
    """The tokens of one model call. `cached_tokens` are part of `input_tokens`."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    @property
    def total(self) -> int:
        return self.input_tokens + self.output_tokens


def context_window(model: str) -> int | None:
    """How many tokens the model takes in one request, with its answer. `None` if the model is not known."""
    found = _find(model)
    return None if found is None else found[1].context_window


def cost_usd(model: str, usage: TokenUsage) -> Decimal | None:
    """What a call has cost, in US dollars. `None` if the model is not known."""
    from genai_prices import Usage, calc_price

    found = _find(model)
    if found is None:
        return None
    provider, info = found
    used = Usage(
        input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, cache_read_tokens=usage.cached_tokens
    )
    return calc_price(used, info.id, provider_id=provider.id).total_price


def is_loaded() -> bool:
    """Whether what is known about models can be read without loading it first."""
    return "genai_prices.data_snapshot" in sys.modules and _loaded.is_set()


def load() -> None:
    """Load what is known about models."""
    from genai_prices.data_snapshot import get_snapshot

    get_snapshot()
    _loaded.set()


_loaded = threading.Event()


@lru_cache(maxsize=256)
def _find(model: str) -> tuple[Provider, ModelInfo] | None:
    """Find a model by its name, as the agents file has it: `NAME`, `PROVIDER/NAME` or `litellm/PROVIDER/NAME`.

    A gateway such as OpenRouter has prices of its own. If it has none, those of the maker of the model are taken.
    """
    from genai_prices.data_snapshot import get_snapshot

    snapshot = get_snapshot()
    parts = model.removeprefix("litellm/").split("/")
    named = [("/".join(parts[1:]), parts[0])] if len(parts) > 1 else []
    for name, provider in (*named, *((parts[-1], maker) for maker in parts[-2:-1]), (parts[-1], None)):
        try:
            return snapshot.find_provider_model(name, None, provider, None)
        except LookupError:
            continue
    return None
