"""The memory engine against the conformance suite."""

from __future__ import annotations

import pytest

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from tests.contracts.bus import BusContract
from tests.contracts.bus.driver import EngineOpener
from tests.support.engines import spoil_next_record


class TestMemoryBus(BusContract):
    @pytest.fixture
    def opener(self) -> EngineOpener:
        return lambda name: MemoryBus()

    def append_malformed(self, engine: Engine, topic: str) -> None:
        assert isinstance(engine, MemoryBus)
        spoil_next_record(engine, topic, engine._db.connection)
