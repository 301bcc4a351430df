"""What every sandbox must keep to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from magent2.sandbox.interface import AbortBlock, BlockFailure, BlockResult, HostCall, Program, Sandbox
from magent2.tools.interface import ReleasableSlot

STUBS = """
from typing import Any
def note(value: Any) -> Any: ...
def fail(text: str) -> None: ...
def wait(number: int) -> int: ...
"""
FUNCTIONS = ("note", "fail", "wait")
SIDE_BY_SIDE = 8
CATCHABLE = (
    PermissionError,
    FileNotFoundError,
    FileExistsError,
    IsADirectoryError,
    NotADirectoryError,
    TimeoutError,
    OSError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
    Exception,
)


class Host:
    """The functions of the programs: what was noted, failures, and waits that give the place up."""

    def __init__(self) -> None:
        self.noted: list[Any] = []
        self.slot: ReleasableSlot | None = None
        self.waited = asyncio.Event()

    def add_slot(self, slot: ReleasableSlot) -> None:
        self.slot = slot

    async def call(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        value = [*args, *kwargs.values()][0]
        if name == "fail":
            raise ValueError(value)
        if name == "wait":
            return await self._wait(value)
        self.noted.append(value)
        return value

    async def _wait(self, number: int) -> int:
        assert self.slot is not None
        await self.slot.release()
        await self.waited.wait()
        await self.slot.reacquire()
        return number


def program(code: str, **facts: Any) -> Program:
    return Program(code, FUNCTIONS, STUBS, **facts)


async def run(sandbox: Sandbox, code: str, call: HostCall | None = None, **facts: Any) -> BlockResult:
    host = Host()
    return await sandbox.run(program(code, **facts), call or host.call, host.add_slot)


def kind(ended: BlockResult) -> str | None:
    return None if ended.failure is None else ended.failure.kind


class SandboxContract:
    """The sandboxes have low limits: some megabytes, about a hundred calls, a few kilobytes of output.

    The time limits of `sandbox` are so long that a slow machine does not reach them; those of `hasty` are a second.
    """

    @pytest.fixture
    def sandbox(self) -> Sandbox:
        """A new one, closed afterwards."""
        raise NotImplementedError

    @pytest.fixture
    def hasty(self) -> Sandbox:
        """A new one with short time limits, closed afterwards."""
        raise NotImplementedError

    async def test_it_tells_what_was_printed_and_the_value_of_the_last_line(self, sandbox: Sandbox) -> None:
        assert await run(sandbox, 'print("hello")\nprint(1, 2)\n{"sum": 1 + 2}') == BlockResult(
            "hello\n1 2\n", '{"sum": 3}'
        )
        assert await run(sandbox, "x = 1") == BlockResult("")

    async def test_functions_are_called_in_order_and_give_their_values(self, sandbox: Sandbox) -> None:
        host = Host()

        ended = await sandbox.run(program("f = note\nfor n in range(3):\n    print(f(n))"), host.call)

        assert (host.noted, ended.output, ended.failure) == ([0, 1, 2], "0\n1\n2\n", None)

    @pytest.mark.parametrize("kind", CATCHABLE, ids=lambda kind: kind.__name__)
    async def test_an_exception_of_a_function_is_caught_by_its_name(
        self, sandbox: Sandbox, kind: type[Exception]
    ) -> None:
        async def refuse(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            raise kind("no")

        caught = await run(sandbox, f'try:\n    note(1)\nexcept {kind.__name__}:\n    print("caught")', refuse)

        assert (caught.output, caught.failure) == ("caught\n", None)

    async def test_what_a_function_raises_can_be_caught_and_is_told_with_its_line(self, sandbox: Sandbox) -> None:
        caught = await run(sandbox, 'try:\n    fail("no")\nexcept ValueError as error:\n    print("caught", error)')
        told = await run(sandbox, 'x = 1\n\nfail("no")')

        assert caught == BlockResult("caught no\n")
        assert told.failure is not None
        assert (kind(told), "line 3" in told.failure.text, told.failure.text.endswith("ValueError: no")) == (
            "exception",
            True,
            True,
        )

    async def test_an_abort_cannot_be_caught(self, sandbox: Sandbox) -> None:
        async def abort(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            raise AbortBlock(BlockFailure("diverged", "enough"))

        ended = await run(sandbox, "try:\n    note(1)\nexcept BaseException:\n    pass\nprint('on')", abort)

        assert ended == BlockResult("", failure=BlockFailure("diverged", "enough"))

    @pytest.mark.parametrize("code", ["note(", "note()", "fail(3)", "unknown()", "note(1).nothing(", "x: int = 'a'"])
    async def test_what_cannot_be_right_is_refused_before_anything_runs(self, sandbox: Sandbox, code: str) -> None:
        host = Host()

        ended = await sandbox.run(program(f"note(1)\n{code}"), host.call)

        assert (kind(ended), host.noted) == ("refused", [])
        assert ended.failure is not None
        assert "nothing was run" in ended.failure.text
        assert ":2:" in ended.failure.text

    @pytest.mark.parametrize(
        ("code", "why"),
        [
            ("x = [0] * 10**9", "memory"),
            ("def f(): return f()\nf()", "recursion"),
            ("while True: note(1)", "calls"),
            ("for _ in range(100): print('x' * 1000)", "output"),
        ],
    )
    async def test_limits_end_the_program_and_the_next_one_runs(self, sandbox: Sandbox, code: str, why: str) -> None:
        assert kind(await run(sandbox, code)) == why
        assert await run(sandbox, "1 + 1") == BlockResult("", "2")

    @pytest.mark.parametrize(
        ("code", "why"),
        [
            ("while True: pass", "time"),
            ("try:\n    while True: pass\nexcept BaseException: pass", "time"),
            ("while True: print('x' * 1000)", "output"),
            ("x = 7\nfor i in range(60): x = x * x", "time"),
        ],
    )
    async def test_a_program_that_would_never_end_is_ended_and_the_next_one_runs(
        self, hasty: Sandbox, code: str, why: str
    ) -> None:
        assert kind(await run(hasty, code)) == why
        assert await run(hasty, "1 + 1") == BlockResult("", "2")

    async def test_nothing_is_left_of_a_program(self, sandbox: Sandbox) -> None:
        assert kind(await run(sandbox, "secret = 42\n1 / 0")) == "exception"
        for _ in range(4):
            assert kind(await run(sandbox, "print(secret)")) == "refused"

    async def test_the_same_program_does_the_same_each_time(self, sandbox: Sandbox) -> None:
        code = "import random, datetime, time\nprint(random.random(), datetime.datetime.now(), time.time())"
        facts: dict[str, Any] = {"clock": datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC), "seed": "run/0/c1"}

        first, again = await run(sandbox, code, **facts), await run(sandbox, code, **facts)
        other = await run(sandbox, code, **{**facts, "seed": "run/1/c1"})

        assert first == again != other
        assert "2026-05-04 03:02:01" in first.output

    async def test_sleeping_takes_no_time(self, sandbox: Sandbox) -> None:
        async with asyncio.timeout(60):
            assert (await run(sandbox, "import time\ntime.sleep(10_000)\nprint('up')")).output == "up\n"

    async def test_many_run_side_by_side(self, sandbox: Sandbox) -> None:
        ended = await asyncio.gather(*(run(sandbox, f"print(note({n}))") for n in range(SIDE_BY_SIDE)))

        assert [one.output for one in ended] == [f"{n}\n" for n in range(SIDE_BY_SIDE)]

    async def test_programs_that_wait_leave_their_places_to_others_and_go_on_where_they_were(
        self, sandbox: Sandbox
    ) -> None:
        hosts = [Host() for _ in range(SIDE_BY_SIDE)]
        code = "x = 40\nprint('before')\nx += wait(2)\nprint('after')\nx"
        waiting = [asyncio.create_task(sandbox.run(program(code), host.call, host.add_slot)) for host in hosts]

        assert await run(sandbox, "1 + 1") == BlockResult("", "2")
        for host in hosts:
            host.waited.set()

        assert await asyncio.gather(*waiting) == [BlockResult("before\nafter\n", "42")] * SIDE_BY_SIDE

    async def test_a_program_that_is_cancelled_ends(self, sandbox: Sandbox) -> None:
        host = Host()
        task = asyncio.create_task(sandbox.run(program("note(1)\nwait(1)"), host.call, host.add_slot))
        while not host.noted:
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

        assert task.cancelled()
        assert await run(sandbox, "1 + 1") == BlockResult("", "2")
