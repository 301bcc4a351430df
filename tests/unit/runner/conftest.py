"""Fixtures that tests of journalled runs share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magent2.bus.memory import MemoryBus
from tests.support.worker_fixture import send


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    """A bus with one message that waits for its agent."""
    bus = MemoryBus()
    send(bus, "go")
    yield bus
    bus.close()
