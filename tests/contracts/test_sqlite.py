"""The SQLite engine against the conformance suite."""

from __future__ import annotations

from pathlib import Path

import pytest

from magent2.bus.sqlite import SqliteBus
from tests.contracts.bus import BusContract
from tests.contracts.opening import Opener


class TestSqliteBus(BusContract):
    persistent = True
    shared = True

    @pytest.fixture
    def opener(self, tmp_path: Path) -> Opener:
        return lambda name: SqliteBus(tmp_path / f"{name}.db")
