"""Every way in which a block can fail, after a call of each tool: nothing is out, and the status line says so."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from magent2.bus.memory import MemoryBus
from magent2.runner.openai_agents_runner import OpenAIAgentsRunner
from magent2.sandbox.interface import BlockLimits
from magent2.sandbox.monty import MontySandbox
from magent2.tools.default_tools import standard_tools
from magent2.tools.definition import ToolDefinition
from magent2.tools.messaging import messaging_tools
from magent2.tools.registry import ToolSpec, tool
from tests.support.blocks import PATIENT, Blocks, block_events, numbers
from tests.support.journaled_runs import CrashingBus, recorded, work, work_until_crash
from tests.support.send_cases import ALL_SENDS, SEND_CASES, all_arrived, expected_arrivals
from tests.support.worker_fixture import command, run_worker, stream, until

# The time limits count the time in which a busy machine does not run the block. Only blocks that never end have short
# ones, which are longer than the seven calls before the end take.
LIMITS = replace(PATIENT, calls=60)
LOOP_S, HANG_S = 1.0, 5.0
HELD = len(SEND_CASES)
NOT_SENT = f"\n\n[Messages: {HELD} NOT sent (script failed)]"


@pytest.fixture
async def sandbox(request: pytest.FixtureRequest) -> AsyncIterator[MontySandbox]:
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    sandbox = MontySandbox(TIME_LIMITS.get(parameters.get("name", ""), LIMITS), processes=1)
    yield sandbox
    await sandbox.aclose()


@tool
def fail(reason: str) -> str:
    """Fails."""
    raise RuntimeError(reason)


@tool
async def hang() -> None:
    """Never comes back."""
    await asyncio.Event().wait()


@tool
def kill_process() -> None:
    """Kill the process that the block runs in."""
    children = [pid for thread in Path("/proc/self/task").iterdir() for pid in _read(thread / "children").split()]
    for child in children:
        if "monty" in _read(Path("/proc") / child / "cmdline"):
            os.kill(int(child), signal.SIGKILL)


def _read(path: Path) -> str:
    with suppress(OSError):  # the thread or process has ended
        return path.read_text()
    return ""


DELICATE = replace(standard_tools().get("echo_context"), needs_approval=True)
TOOLS: tuple[ToolSpec | ToolDefinition, ...] = (*messaging_tools(), fail, hang, kill_process, DELICATE)

FAILURES = {
    "exception": ('raise ValueError("boo")', "exception", "ValueError: boo"),
    "error of a tool": ('fail("no luck")', "exception", "RuntimeError: fail failed; the operator's log has the cause"),
    "bad argument": ('friend_send("@" + "nobody", "x")', "exception", "unknown nametag @nobody"),
    "infinite loop": ("while True: pass", "time", "longer than"),
    "infinite loop that catches all": (
        "while True:\n    try:\n        1 / 0\n    except Exception: pass",
        "time",
        "longer",
    ),
    "a step that cannot be interrupted": ("x = 7\nfor i in range(60): x = x * x", "time", "was killed"),
    "a call that hangs": ("hang()", "time", f"took longer than {HANG_S:g} s with its calls"),
    "memory": ("x = [0] * 10**9", "memory", "16 MB"),
    "recursion": ("def f(): return f()\nf()", "recursion", "RecursionError"),
    "call flood": ('while True: weather("Oslo")', "calls", "more than 60 calls"),
    "flood of sends": ('while True: say("x")', "calls", "more than 60 calls"),
    "output": ('print("x" * 10000)', "output", "8192 bytes"),
    "crash of the process": ("kill_process()\n1 + 1", "crash", "crashed"),
    "a tool that needs approval": ('echo_context("x")', "exception", "needs a person's approval; call it by itself"),
}

TIME_LIMITS = {
    "infinite loop": replace(LIMITS, run_s=LOOP_S),
    "infinite loop that catches all": replace(LIMITS, run_s=LOOP_S),
    "a step that cannot be interrupted": replace(LIMITS, run_s=LOOP_S),
    "a call that hangs": replace(LIMITS, whole_s=HANG_S),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_nothing_is_out_and_the_status_line_says_so(bus: MemoryBus, sandbox: MontySandbox, name: str) -> None:
    code, reason, words = FAILURES[name]
    blocks = Blocks(sandbox, ALL_SENDS + code, *TOOLS)

    await work(bus, blocks.made)

    held = 60 if name == "flood of sends" else HELD
    assert all_arrived(bus) == {}
    assert words in blocks.text
    assert blocks.text.endswith(f"\n\n[Messages: {held} NOT sent (script failed)]")
    (event,) = block_events(bus)
    assert (numbers(event), event["reason"]) == (("error", held, 0, 0), reason)


@pytest.mark.parametrize("code", ["say(3)", "say(", "nobody_knows()", "x: int = 'a'"])
async def test_what_cannot_be_right_is_refused_before_anything_runs(
    bus: MemoryBus, sandbox: MontySandbox, code: str
) -> None:
    blocks = Blocks(sandbox, ALL_SENDS.replace(")\n", ", now=True)\n") + code, *TOOLS)

    await work(bus, blocks.made)

    assert blocks.text.startswith("nothing was run; fix this first:")
    assert "[Messages" not in blocks.text
    assert all_arrived(bus) == {}
    assert numbers(block_events(bus)[0]) == ("error", 0, 0, 0)


async def test_a_run_that_is_stopped(bus: MemoryBus) -> None:
    reached = asyncio.Event()

    @tool
    async def reach() -> None:
        """Says that the block has come so far."""
        reached.set()

    sandbox = MontySandbox(BlockLimits(run_s=60.0, turn_s=60.0), processes=1)
    blocks = Blocks(sandbox, ALL_SENDS + "reach()\nwhile True: pass", *TOOLS, reach)
    async with run_worker(bus, OpenAIAgentsRunner(blocks.made)):
        await reached.wait()
        command(bus, "stop")
        await until(lambda: block_events(bus))
    await sandbox.aclose()

    assert all_arrived(bus) == {}
    (event,) = block_events(bus)
    assert (numbers(event), event["reason"]) == (("error", HELD, 0, 0), "stopped")
    assert recorded(bus)["c1"]["output"].endswith(NOT_SENT)
    assert [event["status"] for event in stream(bus) if event["event"] == "run"] == ["started", "stopped"]


@pytest.mark.parametrize("after", [False, True], ids=["before the commit", "after it"])
async def test_a_worker_that_dies_leaves_all_or_nothing_to_its_heir(
    bus: MemoryBus, sandbox: MontySandbox, after: bool
) -> None:
    blocks = Blocks(sandbox, ALL_SENDS + 'print("all")', *TOOLS)

    assert await work_until_crash(CrashingBus(bus, on="tool", after=after), blocks.made)
    assert all_arrived(bus) == (expected_arrivals(*SEND_CASES) if after else {})
    await work(bus, blocks.made)

    assert all_arrived(bus) == expected_arrivals(*SEND_CASES)
    assert blocks.text == f"all\n\n[Messages: {HELD} sent]"


async def test_an_error_that_is_caught_is_no_failure(bus: MemoryBus, sandbox: MontySandbox) -> None:
    code = 'try:\n    friend_send("@" + "nobody", "x")\nexcept Exception as error:\n    print(error)\n'
    blocks = Blocks(sandbox, code + ALL_SENDS, *TOOLS)

    await work(bus, blocks.made)

    assert all_arrived(bus) == expected_arrivals(*SEND_CASES)
    assert "unknown nametag @nobody" in blocks.text
    assert blocks.text.endswith(f"\n\n[Messages: {HELD} sent]")
