"""The contract of sandboxes, against the one that there is."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from magent2.sandbox.interface import Sandbox
from tests.contracts.sandbox import SandboxContract
from tests.support.blocks import short_sandbox


class TestMonty(SandboxContract):
    @pytest.fixture
    async def sandbox(self) -> AsyncIterator[Sandbox]:
        sandbox = short_sandbox()
        yield sandbox
        await sandbox.aclose()
