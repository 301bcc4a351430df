"""A block and what it sends: all of it or nothing, in one append with its result.

Every way in which one can fail is in `tests/acceptance/test_block_failures.py`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Delete
from magent2.sandbox.monty import MontySandbox
from magent2.tools.default_tools import standard_tools
from magent2.tools.interface import current_scope
from magent2.tools.registry import tool
from magent2.tools.subagents import subagent_tools
from tests.support.blocks import Blocks, block_events, numbers, patient_sandbox
from tests.support.journaled_runs import CrashingBus, message_contents, recorded, tool_steps, work, work_until_crash
from tests.support.worker_fixture import send, stream
from tests.unit.runner.journal.test_sends import AppendRecorder


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus()
    send(bus, "go")
    yield bus
    bus.close()


@pytest.fixture
async def sandbox() -> AsyncIterator[MontySandbox]:
    sandbox = patient_sandbox()
    yield sandbox
    await sandbox.aclose()


NAMES = ("Bea", "Cy", "Dee")
THREE = """
for name in ("Bea", "Cy", "Dee"):
    chat_send(f"agent:{name}", f"hello {name}", f"to-{name}")
print("done")
"""


async def test_a_block_that_ends_well_sends_all_in_one_append_with_its_result(
    bus: MemoryBus, sandbox: MontySandbox
) -> None:
    spying, blocks = AppendRecorder(bus), Blocks(sandbox, THREE)

    await work(spying, blocks.made)

    assert blocks.text == "done\n\n[Messages: 3 sent]"
    assert [message_contents(bus, f"chat:{name}") for name in ("Bea", "Cy", "Dee")] == [
        ["hello Bea"],
        ["hello Cy"],
        ["hello Dee"],
    ]
    (together,) = (topics for topics in spying.appends if "chat:Bea" in topics)
    sent = [topic for name in NAMES for topic in (f"chat:to-{name}", f"chat:{name}", f"stream:to-{name}")]
    assert together == ["history:one", "stream:one", "stream:one", *sent]
    assert len(recorded(bus)["c1"]["sends"]) == 3
    (event,) = block_events(bus)
    assert numbers(event) == ("success", 3, 3, 0)
    assert (event["code"], event["output"], event["tool_call_id"]) == (THREE, blocks.text, "c1")
    assert [status for status, _ in tool_steps(bus)] == ["start", "success"]


SENDS = 'chat_send("agent:Bea", "one")\nchat_send("agent:Bea", "two")\n'


async def test_types_are_checked_before_anything_runs(bus: MemoryBus, sandbox: MontySandbox) -> None:
    blocks = Blocks(sandbox, SENDS + 'chat_send("agent:Bea", 3, now=True)')

    await work(bus, blocks.made)

    assert blocks.text.startswith("nothing was run; fix this first:\nblock.py:3:24: error[invalid-argument-type]")
    assert "[Messages" not in blocks.text
    assert message_contents(bus, "chat:Bea") == []
    assert numbers(block_events(bus)[0]) == ("error", 0, 0, 0)


async def test_a_target_that_is_gone_by_the_end_fails_by_name_and_the_others_go(
    bus: MemoryBus, sandbox: MontySandbox
) -> None:
    spying = AppendRecorder(bus, lambda: bus.call(Delete(("stream:to-Cy", "chat:to-Cy", "history:to-Cy"), "to-Cy")))
    blocks = Blocks(sandbox, THREE)

    await work(spying, blocks.made)

    failed = "- chat_send to agent:Cy: 'to-Cy' was deleted; send to another conversation"
    assert blocks.text == f"done\n\n[Messages: 2 sent, 1 failed]\n{failed}"
    assert [message_contents(bus, f"chat:{name}") for name in NAMES] == [["hello Bea"], [], ["hello Dee"]]
    (event,) = block_events(bus)
    assert (numbers(event), event["failures"]) == (("success", 3, 2, 1), [failed[2:]])


async def test_now_leaves_although_the_block_fails(bus: MemoryBus, sandbox: MontySandbox) -> None:
    blocks = Blocks(sandbox, 'chat_send("agent:Bea", "at once", now=True)\nchat_send("agent:Bea", "held")\n1/0')

    await work(bus, blocks.made)

    assert message_contents(bus, "chat:Bea") == ["at once"]
    assert blocks.text.endswith("ZeroDivisionError: division by zero\n\n[Messages: 1 NOT sent (script failed)]")


async def test_each_call_of_a_block_has_a_key_of_its_own_which_is_the_same_in_every_attempt(
    bus: MemoryBus, sandbox: MontySandbox
) -> None:
    keys: list[str] = []

    @tool
    def look() -> str:
        """Look at the key."""
        scope = current_scope()
        assert scope is not None
        keys.append(scope.key)
        return "looked"

    blocks = Blocks(sandbox, 'look()\nrun_python("look()")\nlook()', look)

    assert await work_until_crash(CrashingBus(bus, on="tool"), blocks.made)
    await work(bus, blocks.made)

    first, again = keys[:3], keys[3:]
    assert len(set(first)) == 3
    assert again == first


async def test_a_block_that_fails_reports_the_agents_that_it_has_started(bus: MemoryBus, sandbox: MontySandbox) -> None:
    code = 'chat_send("agent:Bea", "held")\nassert not start_agent("helper", "dig")["held"]\n1/0'
    blocks = Blocks(sandbox, code, *subagent_tools(["helper"]))

    await work(bus, blocks.made)

    (child,) = (event["subagent_id"] for event in stream(bus) if event["event"] == "subagent")
    started = f"[Agents: 1 started and still working: {child}]"
    assert blocks.text.endswith(f"{started}\n\n[Messages: 1 NOT sent (script failed)]")
    assert message_contents(bus, "chat:helper") == ["dig"]


async def test_a_recorded_block_is_not_run_again(bus: MemoryBus, sandbox: MontySandbox) -> None:
    runs: list[int] = []

    @tool
    def count() -> int:
        """Counts its calls."""
        runs.append(1)
        return len(runs)

    blocks = Blocks(sandbox, 'count()\nchat_send("agent:Bea", "once")', count)
    assert await work_until_crash(CrashingBus(bus, on="tool", after=True), blocks.made)
    await work(bus, blocks.made)

    assert (len(runs), message_contents(bus, "chat:Bea")) == (1, ["once"])
    assert blocks.text.endswith("[Messages: 1 sent]")


async def test_a_block_that_was_cut_short_is_run_again_and_sends_nothing_twice(
    bus: MemoryBus, sandbox: MontySandbox
) -> None:
    code = 'chat_send("agent:Bea", "at once", now=True)\nchat_send("agent:Bea", "held")'
    blocks = Blocks(sandbox, code)

    assert await work_until_crash(CrashingBus(bus, on="tool"), blocks.made)
    assert message_contents(bus, "chat:Bea") == ["at once"]
    await work(bus, blocks.made)

    assert message_contents(bus, "chat:Bea") == ["at once", "held"]
    assert blocks.text.endswith("[Messages: 1 sent]")


@pytest.mark.parametrize("later", ['chat_send("agent:Bea", "another", now=True)', "pass"], ids=["other", "none"])
async def test_a_block_that_does_something_else_the_second_time_has_diverged(
    bus: MemoryBus, sandbox: MontySandbox, later: str
) -> None:
    runs: list[int] = []

    @tool
    def first() -> bool:
        """Whether this is the first time."""
        runs.append(1)
        return len(runs) == 1

    branches = f'if first():\n    chat_send("agent:Bea", "at once", now=True)\nelse:\n    {later}'
    blocks = Blocks(sandbox, f'chat_send("agent:Bea", "held")\ntry:\n    pass\nfinally:\n    pass\n{branches}', first)

    assert await work_until_crash(CrashingBus(bus, on="tool"), blocks.made)
    await work(bus, blocks.made)

    assert message_contents(bus, "chat:Bea") == ["at once"]
    assert block_events(bus)[0]["reason"] == "diverged"
    assert blocks.text.endswith("[Messages: 1 NOT sent (script failed)]")


async def test_what_must_not_be_run_twice_is_reported_as_unknown(bus: MemoryBus, sandbox: MontySandbox) -> None:
    runs: list[int] = []

    @tool(repeat="never")
    def pay(amount: int) -> str:
        """Pays."""
        runs.append(amount)
        return "paid"

    blocks = Blocks(sandbox, 'chat_send("agent:Bea", "held")\npay(3)', pay)

    assert await work_until_crash(CrashingBus(bus, on="tool"), blocks.made)
    await work(bus, blocks.made)

    assert runs == [3]
    assert "pay was started before a crash, and it is unknown whether it was completed" in blocks.text
    assert message_contents(bus, "chat:Bea") == []


async def test_a_block_in_a_block_belongs_to_the_outer_one(bus: MemoryBus, sandbox: MontySandbox) -> None:
    code = """
chat_send("agent:Bea", "first")
print(run_python("chat_send('agent:Bea', 'inner')\\nprint('in')\\n7"))
try:
    run_python("chat_send('agent:Bea', 'lost')\\n1/0")
except Exception as error:
    print("inner failed")
chat_send("agent:Bea", "last")
None
"""
    blocks = Blocks(sandbox, code)

    await work(bus, blocks.made)

    assert blocks.text == "in\n7\ninner failed\n\n[Messages: 3 sent]"
    assert message_contents(bus, "chat:Bea") == ["first", "inner", "last"]


async def test_a_tool_that_needs_approval_is_refused_by_name(bus: MemoryBus, sandbox: MontySandbox) -> None:
    wipe = replace(standard_tools().get("echo_context"), needs_approval=True)
    blocks = Blocks(sandbox, 'chat_send("agent:Bea", "held")\necho_context("x")', wipe)

    await work(bus, blocks.made)

    assert "PermissionError: echo_context needs a person's approval; call it by itself" in blocks.text
    assert blocks.text.endswith("[Messages: 1 NOT sent (script failed)]")
    assert message_contents(bus, "chat:Bea") == []
