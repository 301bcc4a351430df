"""The long form: more worlds than a day's work has time for."""

from __future__ import annotations

import pytest

from tests.simulation.worlds import SEEDS_SOAK, live_through


@pytest.mark.soak
@pytest.mark.no_cover
def test_every_message_of_20000_worlds_is_settled_once_and_in_order() -> None:
    live_through(range(SEEDS_SOAK))
