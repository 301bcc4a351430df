"""The contract of sandboxes, against the one that there is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from magent2.sandbox.interface import Sandbox
from magent2.sandbox.monty import MontySandbox
from tests.contracts.sandbox import SandboxContract
from tests.support.blocks import PATIENT, SHORT, patient_sandbox

# A process is killed when it gives no answer for a second more than its limit. So there is some time for the block that
# follows one without an end.
HASTY = replace(SHORT, run_s=1.0, turn_s=10.0, whole_s=PATIENT.whole_s)


class TestMonty(SandboxContract):
    @pytest.fixture
    async def sandbox(self) -> AsyncIterator[Sandbox]:
        sandbox = patient_sandbox()
        yield sandbox
        await sandbox.aclose()

    @pytest.fixture
    async def hasty(self) -> AsyncIterator[Sandbox]:
        sandbox = MontySandbox(HASTY, processes=2)
        yield sandbox
        await sandbox.aclose()
