"""What a model call costs: by the prices of the configuration, or else by those that are known by the model's name."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping
from decimal import Decimal

from magent2.background import log_error
from magent2.models.budgets import Amount, Price
from magent2.runner.demo.script import DEMO
from magent2.runner.providers import model_info
from magent2.runner.providers.model_info import TokenUsage, cost_usd

log = logging.getLogger(__name__)

THREAD_NAME = "magent2-prices"
PER_MILLION = Decimal(1_000_000)
COST_DIGITS = Decimal("0.000000001")  # to which the cost of a call is rounded


def begin_loading(model: str, prices: Mapping[str, Price]) -> asyncio.Future[None] | None:
    """Load the known prices on a thread; `None` if they are loaded, or not needed. It takes 0.4 s, once in a process.

    Otherwise the event loop would stand still meanwhile, and with it every other run of the worker.
    """
    if model_info.is_loaded() or model == DEMO or model in prices:
        return None
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()

    def finish() -> None:
        if not done.done():
            done.set_result(None)

    def load() -> None:
        try:
            model_info.load()
        except Exception as error:  # noqa: BLE001  the last handler of the thread
            log_error("prices cannot be loaded", error, log)
        try:
            loop.call_soon_threadsafe(finish)
        except RuntimeError:  # the loop is closed, so no task waits
            return

    threading.Thread(target=load, name=THREAD_NAME, daemon=True).start()
    return done


def priced(names: tuple[str, ...], usage: TokenUsage, prices: Mapping[str, Price]) -> Amount:
    """One call as an amount. `names` are those of the model, the most specific first; the first with a price counts."""
    cost = _cost(names, usage, prices)
    return Amount(
        usage.input_tokens,
        usage.output_tokens,
        usage.cached_tokens,
        calls=1,
        cost_usd=Decimal(0) if cost is None else cost.quantize(COST_DIGITS).normalize() + 0,
        unpriced_calls=int(cost is None),
    )


def _cost(names: tuple[str, ...], usage: TokenUsage, prices: Mapping[str, Price]) -> Decimal | None:
    for name in names:
        if (price := prices.get(name)) is not None:
            cached = price.input if price.cached_input is None else price.cached_input
            plain = usage.input_tokens - usage.cached_tokens
            spent = plain * price.input + usage.cached_tokens * cached + usage.output_tokens * price.output
            return spent / PER_MILLION
    if not model_info.is_loaded():
        return None
    return next((cost for name in names if (cost := cost_usd(name, usage)) is not None), None)
