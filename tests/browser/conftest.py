"""One browser and one gateway per module: both take a while to start."""

from __future__ import annotations

from collections.abc import Iterator

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


@pytest.fixture(scope="module")
def house(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """A module that says `ROOT_PATH` has it there, as behind a proxy."""
    support.skip_if_left_out()
    with Crew() as crew:
        yield House(crew, tmp_path_factory.mktemp("house"), getattr(request.module, "ROOT_PATH", ""))


@pytest.fixture
def visitor(chromium: Browser, house: House) -> Iterator[Visitor]:
    """Somebody who has come in, with a model that is held where it is told to."""
    house.close_gate()
    with visiting(chromium, house) as visitor:
        yield visitor.enter()
