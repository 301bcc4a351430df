"""What tests of journalled runs share; those that need another log bring their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magent2.bus.memory import MemoryBus
from tests.support.worker_fixture import send


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    """A log on which one message waits for its agent."""
    bus = MemoryBus()
    send(bus, "go")
    yield bus
    bus.close()
