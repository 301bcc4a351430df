"""The memory engine against the conformance suite."""

from __future__ import annotations

from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Operation
from tests.contracts.bus import BusContract
from tests.contracts.bus.driver import EngineOpener
from tests.support.engines import count_instructions, spoil_next_record
from tests.support.manual_clock import JumpingClock


class TestMemoryBus(BusContract):
    @pytest.fixture
    def opener(self) -> EngineOpener:
        self.clock = JumpingClock()
        return lambda name: MemoryBus(clock=self.clock)

    def append_malformed(self, engine: Engine, topic: str) -> None:
        assert isinstance(engine, MemoryBus)
        spoil_next_record(engine, topic, engine._db.connection)

    def count_work(self, engine: Engine, operation: Operation[Any]) -> int:
        assert isinstance(engine, MemoryBus)
        return count_instructions(engine._db.connection, operation)

    def jump_clock(self, seconds: float) -> None:
        self.clock.jump_s(seconds)
