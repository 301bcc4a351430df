"""A sandbox for runs on several event loops, as a synchronous worker has them: one after another, or side by side."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable

from magent2.sandbox.interface import Call, Ended, Program, QuickCall, Sandbox
from magent2.sandbox.monty import MontySandbox
from magent2.tools.interface import Parking


class LoopSandbox:
    """A `Sandbox` with processes of its own on each loop. `aclose` ends those of the loop that it is called on."""

    def __init__(self, make: Callable[[], Sandbox] = MontySandbox) -> None:
        self._make = make
        self._by_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Sandbox] = weakref.WeakKeyDictionary()

    async def run(
        self,
        program: Program,
        call: Call,
        park: Callable[[Parking], None] | None = None,
        quick: QuickCall | None = None,
    ) -> Ended:
        loop = asyncio.get_running_loop()
        if loop not in self._by_loop:
            self._by_loop[loop] = self._make()
        return await self._by_loop[loop].run(program, call, park, quick)

    async def aclose(self) -> None:
        sandbox = self._by_loop.pop(asyncio.get_running_loop(), None)
        if sandbox is not None:
            await sandbox.aclose()
