"""The memory engine against the conformance suite."""

from __future__ import annotations

import pytest

from magent2.bus.memory import MemoryBus
from tests.contracts.bus import BusContract
from tests.contracts.opening import Opener


class TestMemoryBus(BusContract):
    @pytest.fixture
    def opener(self) -> Opener:
        return lambda name: MemoryBus()
