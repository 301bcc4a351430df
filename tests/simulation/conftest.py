"""Fixtures for the tests of the simulation."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _quietly() -> Iterator[None]:
    """Turn logging off: injected faults would be logged thousands of times."""
    logger = logging.getLogger("magent2")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    yield
    logger.setLevel(before)
