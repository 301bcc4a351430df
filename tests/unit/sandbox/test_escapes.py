"""Nobody gets out of a block, nobody takes more than there is, and the next block runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from magent2.bus.memory import MemoryBus
from magent2.sandbox.interface import BlockResult, HostCall, Program, QuickCall
from magent2.sandbox.monty import MontySandbox
from magent2.sandbox.python_tool import PythonTool
from magent2.tools.default_tools import standard_tools
from magent2.tools.definition import ToolDefinition
from magent2.tools.interface import ReleasableSlot, call_scope
from tests.support.blocks import PATIENT, SHORT
from tests.support.sending import Facts, scope_of
from tests.unit.sandbox.escapes import ATTEMPTS

SECRET = "the-secret-of-the-house"  # pragma: allowlist secret
LEAKS = re.compile(rf"{SECRET}|root:x:|magent2\.|/usr/|\.venv|0x7f|<module '|<frame|site-packages")
TEXT_MAX = SHORT.output_bytes + 16_000  # what is printed, the value, the error
SOUND = "print(20 + 22)"


class ShortLimitSandbox(MontySandbox):
    """Ends an attempt soon, and a sound block never: on a busy machine it may wait for longer than an attempt may run.

    The limits of a block are read before its first wait. Those of the pool are the ones of its first block.
    """

    async def run(
        self,
        program: Program,
        call: HostCall,
        on_slot: Callable[[ReleasableSlot], None] | None = None,
        quick: QuickCall | None = None,
    ) -> BlockResult:
        self.limits = PATIENT if program.code == SOUND else SHORT
        return await super().run(program, call, on_slot, quick)


async def attempt(tool: ToolDefinition, facts: Facts, name: str, code: str) -> str:
    scope = scope_of(facts, block=False, call=name)
    with call_scope(scope):
        await tool.run({"code": code}, facts)
    assert scope.outcome is not None
    return str(scope.outcome.build(scope.sends, ()).result)


async def test_no_attempt_gets_out_and_the_service_stays_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MAGENT2_SECRET_FOR_TEST", SECRET)
    canary, bus, sandbox = tmp_path / "canary", MemoryBus(), ShortLimitSandbox(processes=2)
    made = PythonTool(sandbox, [standard_tools().get(name) for name in ("chat_send", "weather")])
    tool, facts = made.definition(), Facts(bus)

    assert await attempt(tool, facts, "before", SOUND) == "42"

    beds = asyncio.Semaphore(2)  # as many as there are processes: nobody waits for one

    async def tried(name: str, code: str) -> None:
        async with beds:
            text = await attempt(tool, facts, name, code)
            assert not LEAKS.search(text), (name, text)
            assert len(text) <= TEXT_MAX, name
            assert await attempt(tool, facts, f"{name} after", SOUND) == "42", name

    codes = {name: code.replace("{canary}", str(canary)) for name, code in ATTEMPTS.items()}
    async with asyncio.timeout(300):
        await asyncio.gather(*(tried(name, code) for name, code in codes.items()))
        for code in codes.values():  # most do not pass the check of types; but it is not what keeps them in
            sandbox.note_checked(Program(code, stubs=made.stubs))
        await asyncio.gather(*(tried(f"{name} unchecked", code) for name, code in codes.items()))

    assert len(codes) >= 40
    assert not canary.exists()
    assert list(bus.read("chat:Bea")) == []
    await sandbox.aclose()
    bus.close()
