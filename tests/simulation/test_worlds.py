"""The first half of the worlds. Two files, so that test processes can share the work."""

from __future__ import annotations

import pytest

from tests.simulation.run_worlds import SEEDS, run_worlds


@pytest.mark.no_cover  # coverage would double the time
def test_every_message_of_the_first_half_of_the_worlds_is_settled_once_and_in_order() -> None:
    run_worlds(range(SEEDS // 2))
