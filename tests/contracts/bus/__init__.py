"""Conformance suite of the bus port, which every engine has to pass.

Each test states one promise. The modules of this package hold the tests by subject; `model` and `state_machine` compare
an engine with a reference model over random histories.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from zlib import crc32

import pytest

from magent2.bus.interface import Engine
from magent2.bus.operations import Operation
from tests.contracts.bus.append import AppendTests
from tests.contracts.bus.atomicity import AtomicityTests
from tests.contracts.bus.claim import ClaimTests
from tests.contracts.bus.claim_turns import ClaimTurnsTests
from tests.contracts.bus.concurrency import ConcurrencyTests
from tests.contracts.bus.delete import DeleteTests
from tests.contracts.bus.driver import AsyncDriver, BusDriver, EngineOpener, SyncDriver
from tests.contracts.bus.fencing import FencingTests
from tests.contracts.bus.follow import FollowTests
from tests.contracts.bus.heads import HeadTests
from tests.contracts.bus.read import ReadTests
from tests.contracts.bus.retention import RetentionTests
from tests.contracts.bus.settle import SettleTests
from tests.contracts.bus.transfer import TransferTests
from tests.contracts.bus.validation import ValidationTests

DRIVERS = {"sync": SyncDriver, "async": AsyncDriver}
# Suites in which several threads or tasks meet.
MEETINGS = {suite.__module__ for suite in (AppendTests, AtomicityTests, FollowTests, ConcurrencyTests)}


class BusContract(
    AppendTests,
    AtomicityTests,
    ValidationTests,
    ReadTests,
    FollowTests,
    ConcurrencyTests,
    HeadTests,
    RetentionTests,
    DeleteTests,
    ClaimTests,
    ClaimTurnsTests,
    FencingTests,
    SettleTests,
    TransferTests,
):
    """The promises of every engine. The test class of an engine only defines how to open one:

        class TestMyBus(BusContract):
            persistent = True

            @pytest.fixture
            def opener(self, tmp_path: Path) -> EngineOpener:
                return lambda name: MyBus(tmp_path / name)

    `opener` opens the log of a name, which is empty at first. The suite closes every engine that it opens.

    Capabilities are off by default. A test that needs one that is off is skipped and names it:

    `persistent`        a log that was closed and is opened again under its name has the same content.
    `shared`            two engines can have the same log open. Each sees the appends of the other and is woken by them.
    `append_malformed`  a method that writes a record around the engine, one that the engine cannot decode, so that the
                        suite can test how the engine handles it.
    `count_work`        a method that runs an operation and returns how much the store had to do for it, in any unit
                        but time.
    `jump_clock`        a method that sets the wall clock of the log `main` forward or back by some seconds.

    Each test runs through both drivers: `sync` (`engine.call`) and `async` (`engine.acall` on one event loop). With
    `one_driver`, a test runs through one of them, except where several threads or tasks meet. That is enough for an
    engine whose two interfaces differ only in how the caller waits.
    """

    schema = 3  # of a log that this release creates
    persistent = False
    shared = False
    one_driver = False

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        if "bus" not in metafunc.fixturenames:
            return
        drivers = list(DRIVERS)
        if self.one_driver and metafunc.function.__module__ not in MEETINGS:
            drivers = [drivers[crc32(metafunc.function.__name__.encode()) % len(drivers)]]
        metafunc.parametrize("bus", drivers, indirect=True)

    @pytest.fixture
    def opener(self) -> EngineOpener:
        raise NotImplementedError("define the fixture `opener`: see the docstring of BusContract")

    def append_malformed(self, engine: Engine, topic: str) -> None:
        pytest.skip("the test class does not define append_malformed")

    def count_work(self, engine: Engine, operation: Operation[Any]) -> int:
        pytest.skip("the test class does not define count_work")

    def jump_clock(self, seconds: float) -> None:
        pytest.skip("the test class does not define jump_clock")

    @pytest.fixture
    def bus(self, request: pytest.FixtureRequest, opener: EngineOpener) -> Iterator[BusDriver]:
        driver = DRIVERS[request.param](opener("main"))
        yield driver
        driver.close()
