"""What the tests of the simulation share."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    """What goes wrong on purpose need not be told thousands of times."""
    logger = logging.getLogger("magent2")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(before)
