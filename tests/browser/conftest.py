"""One browser per module, and one gateway per place that it is to be found at: it takes a while to start."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser

from tests.support import browser as support
from tests.support.browser import House, Visitor, visiting
from tests.support.processes import Crew


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    support.skip_if_left_out()
    with support.browser() as launched:
        yield launched


@pytest.fixture(scope="session")
def houses(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], House]]:
    """Gateways by the path they are found under, each started when it is first asked for."""
    known: dict[str, House] = {}
    with Crew() as crew:

        def house(root_path: str) -> House:
            if root_path not in known:
                known[root_path] = House(crew, tmp_path_factory.mktemp("house"), root_path)
            return known[root_path]

        yield house


@pytest.fixture(scope="module")
def house(request: pytest.FixtureRequest, houses: Callable[[str], House]) -> House:
    """A module that says `ROOT_PATH` has it there, as behind a proxy."""
    support.skip_if_left_out()
    return houses(getattr(request.module, "ROOT_PATH", ""))


@pytest.fixture
def visitor(chromium: Browser, house: House) -> Iterator[Visitor]:
    """Somebody who has come in, with a model that is held where it is told to."""
    house.close_gate()
    with visiting(chromium, house) as visitor:
        yield visitor.enter()
