"""The conformance suite of the bus: one suite, many engines.

Each promise is a test that reads as a sentence. The suites by subject stand beside this file, `bus_*.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magent2.bus.interface import Engine
from tests.contracts.bus_appending import Appending
from tests.contracts.bus_atomicity import Atomicity
from tests.contracts.bus_claiming import Claiming
from tests.contracts.bus_deleting import Deleting
from tests.contracts.bus_faces import Faces
from tests.contracts.bus_fencing import Fencing
from tests.contracts.bus_following import Following
from tests.contracts.bus_heads import Heads
from tests.contracts.bus_keeping import Keeping
from tests.contracts.bus_moving import Moving
from tests.contracts.bus_reading import Reading
from tests.contracts.bus_refusing import Refusing
from tests.contracts.bus_settling import Settling
from tests.contracts.opening import Opener
from tests.support.faces import AsyncFace, Face, SyncFace

FACES = {"sync": SyncFace, "async": AsyncFace}


class BusContract(
    Appending,
    Atomicity,
    Refusing,
    Reading,
    Following,
    Faces,
    Heads,
    Keeping,
    Deleting,
    Claiming,
    Fencing,
    Settling,
    Moving,
):
    """What every engine has to promise. A test class of your engine says how to open one, and nothing else:

        class TestMyBus(BusContract):
            persistent = True

            @pytest.fixture
            def opener(self, tmp_path: Path) -> Opener:
                return lambda name: MyBus(tmp_path / name)

    `opener` opens the log of a name: an empty one at first. The suite closes what it opens.

    Capabilities, all off unless you say so; a test of one that is off is skipped and says why:

    `persistent`  a log that was closed and is opened again by its name is the same log.
    `shared`      two engines that have the same log open at once see each other's appends, and are woken by them.
    `scribble`    a method that appends a record to a topic behind the engine's back, one that the engine cannot read,
                  so that the suite can look at what becomes of it.

    Each test runs on both faces: `sync` (`engine.call`) and `async` (`engine.acall` on one event loop).
    """

    persistent = False
    shared = False

    @pytest.fixture
    def opener(self) -> Opener:
        raise NotImplementedError("say how to open your engine: see the docstring of BusContract")

    def scribble(self, engine: Engine, topic: str) -> None:
        pytest.skip("this engine's tests do not say how to write a record that it cannot read")

    @pytest.fixture(params=list(FACES))
    def bus(self, request: pytest.FixtureRequest, opener: Opener) -> Iterator[Face]:
        face = FACES[request.param](opener("main"))
        yield face
        face.close()
