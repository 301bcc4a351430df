from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from magent2.sandbox.interface import Program
from magent2.sandbox.monty import LoopSandbox, MontySandbox
from tests.support.blocks import PATIENT

LOOPS, BLOCKS = 3, 4


async def no_calls(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    raise AssertionError(name)


def processes_of_blocks() -> set[str]:
    pids = [pid for thread in Path("/proc/self/task").iterdir() for pid in text_of(thread / "children").split()]
    return {pid for pid in pids if "monty" in text_of(Path("/proc") / pid / "cmdline")}


def text_of(path: Path) -> str:
    """The content of a file of `/proc`; nothing if its thread or process has ended meanwhile."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


async def run_some(sandbox: LoopSandbox) -> list[str | None]:
    """More at once than there are places."""
    ended = await asyncio.gather(*(sandbox.run(Program(f"{n} * 2"), no_calls) for n in range(BLOCKS)))
    await sandbox.aclose()
    return [one.value for one in ended]


def test_loops_do_not_get_in_each_others_way_and_leave_no_process() -> None:
    before = processes_of_blocks()
    sandbox = LoopSandbox(lambda: MontySandbox(PATIENT, processes=1))

    with ThreadPoolExecutor(LOOPS) as threads:
        found = list(threads.map(lambda _: asyncio.run(run_some(sandbox)), range(2 * LOOPS)))

    assert found == [["0", "2", "4", "6"]] * (2 * LOOPS)
    assert processes_of_blocks() <= before  # those of other tests may end meanwhile


async def test_it_can_be_closed_before_anything_ran_and_used_afterwards() -> None:
    sandbox = LoopSandbox(lambda: MontySandbox(PATIENT, processes=1))

    await sandbox.aclose()

    assert await run_some(sandbox) == await run_some(sandbox)
