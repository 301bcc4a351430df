"""A bus that is closed from another thread leaves nobody waiting."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from magent2.bus.sqlite import SqliteBus
from magent2.errors import InvalidInput


async def test_an_operation_asked_for_just_before_the_bus_closes_elsewhere_is_told_so(tmp_path: Path) -> None:
    bus = SqliteBus(tmp_path / "log.db")
    asked = asyncio.ensure_future(bus.acall(Append(records=(NewRecord("t:a", {}),))))
    await asyncio.sleep(0)  # the task has asked; the loop has not handed it over yet
    closing = threading.Thread(target=bus.close)
    closing.start()
    closing.join()

    with pytest.raises(InvalidInput, match="closed"):
        await asyncio.wait_for(asked, 10)
