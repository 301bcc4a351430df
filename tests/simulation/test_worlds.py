"""The short form of the simulation; `test_worlds_soak.py` is the long one."""

from __future__ import annotations

import pytest

from tests.simulation.run_worlds import SEEDS, run_worlds


@pytest.mark.no_cover  # coverage would double the time
def test_every_message_is_settled_once_and_in_order() -> None:
    run_worlds(range(SEEDS))
