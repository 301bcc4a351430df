"""What tests of blocks that send have in common; a test that needs another sandbox says which."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from magent2.bus.memory import MemoryBus
from magent2.sandbox.monty import MontySandbox
from tests.support.blocks import patient_sandbox
from tests.support.forked_commands import ForkedCommands
from tests.support.send_cases import directory_bus


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBus]:
    with directory_bus(tmp_path, monkeypatch) as bus:
        yield bus


@pytest.fixture
async def sandbox() -> AsyncIterator[MontySandbox]:
    sandbox = patient_sandbox(processes=1)
    yield sandbox
    await sandbox.aclose()


@pytest.fixture(scope="session")
def forked_programs(forked_commands: ForkedCommands, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a program `magent2` that has imported everything when it is started."""
    folder = tmp_path_factory.mktemp("programs")
    forked_commands.write_script(folder / "magent2", "-m", "magent2.cli")
    return f"{folder}/"
