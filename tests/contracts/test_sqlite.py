"""The SQLite engine against the conformance suite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.operations import Operation
from magent2.bus.sqlite import SqliteBus
from tests.contracts.bus import BusContract
from tests.contracts.bus.driver import EngineOpener
from tests.support.engines import count_instructions, spoil_next_record
from tests.support.manual_clock import JumpingClock


class TestSqliteBus(BusContract):
    persistent = True
    shared = True

    @pytest.fixture
    def opener(self, tmp_path: Path) -> EngineOpener:
        self.clock = JumpingClock()
        return lambda name: SqliteBus(tmp_path / f"{name}.db", clock=self.clock)

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self.file = tmp_path / "main.db"

    def append_malformed(self, engine: Engine, topic: str) -> None:
        with closing(sqlite3.connect(self.file)) as connection:
            spoil_next_record(engine, topic, connection)

    def count_work(self, engine: Engine, operation: Operation[Any]) -> int:
        with closing(sqlite3.connect(self.file)) as connection:
            return count_instructions(connection, operation)

    def jump_clock(self, seconds: float) -> None:
        self.clock.jump_s(seconds)
