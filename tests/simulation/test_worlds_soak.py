"""The soak test of the simulation: many more worlds."""

from __future__ import annotations

import pytest

from tests.simulation.run_worlds import SEEDS_SOAK, run_worlds


@pytest.mark.soak
@pytest.mark.no_cover
def test_every_message_of_20000_worlds_is_settled_once_and_in_order() -> None:
    run_worlds(range(SEEDS_SOAK))
