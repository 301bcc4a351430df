"""How the demo model puts the results of the example tools, as a model would: in a sentence, with its source."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def worded(result: Mapping[str, Any]) -> str | None:
    """The result as a sentence; nothing where it is not one of those known here."""
    for fields, words in _WORDS.items():
        if fields <= result.keys():
            return words(result)
    return None


def _weather(result: Mapping[str, Any]) -> str:
    return f"In {result['city']} it is {result['temperature_c']} °C with {result['sky']} ({result['source']})."


def _products(result: Mapping[str, Any]) -> str:
    found, source = result["found"], result["source"]
    if not found:
        return f"I found nothing ({source})."
    lines = [f"- **{product['title']}**, {product['price_eur']:.2f} €" for product in result["products"]]
    return "\n".join([f"I found {found} ({source}):", "", *lines])


def _refund(result: Mapping[str, Any]) -> str:
    return f"Order {result['order']} is paid back ({result['source']})."


_WORDS: dict[frozenset[str], Callable[[Mapping[str, Any]], str]] = {
    frozenset({"city", "temperature_c", "sky", "source"}): _weather,
    frozenset({"products", "found", "source"}): _products,
    frozenset({"order", "refunded", "source"}): _refund,
}
