"""The six tools in real blocks of real runs: held, sent with the block's result, or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from magent2.bus.delivery import enlisting
from magent2.bus.flow import run
from magent2.bus.memory import MemoryBus
from magent2.sandbox.monty import MontySandbox
from magent2.tools.messaging import messaging_tools
from magent2.tools.registry import tool
from tests.support.blocks import Blocks, block_events, numbers, short_sandbox
from tests.support.journalled import work
from tests.support.messaging import files_said, home_of, inbox, open_channel, open_swarm, said, settle, talk
from tests.support.serving import send

SIX = """
say("working on it")
send_file("note.txt", text="see this")
send_user_message("done", nametag="@desk")
send_agent_message("well", agent="Bea")
friend_send("@bob", "hi bob")
channel_send("launch", "news", mentions=["@cat"])
print("all")
"""


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBus]:
    folder = tmp_path / "files" / "Ada"
    folder.mkdir(parents=True)
    (folder / "note.txt").write_text("a note")
    monkeypatch.setenv("MAGENT2_FILES_DIR", str(tmp_path / "files"))
    bus = MemoryBus()
    settle(bus)
    open_channel(bus)
    open_swarm(bus)
    for agent in ("Bea", "Ada"):
        run(bus, enlisting(agent))
    send(bus, "go")
    yield bus
    bus.close()


@pytest.fixture
async def sandbox() -> AsyncIterator[MontySandbox]:
    sandbox = short_sandbox()
    yield sandbox
    await sandbox.aclose()


def arrived(bus: MemoryBus) -> list[str]:
    return [*said(bus), *files_said(bus), *inbox(bus, "Desk"), *inbox(bus, "Bea"), *inbox(bus, "Bo"), *talk(bus)]


async def test_a_block_with_all_six_sends_them_with_its_result(bus: MemoryBus, sandbox: MontySandbox) -> None:
    blocks = Blocks(sandbox, SIX, *messaging_tools())

    await work(bus, blocks.made)

    assert blocks.text == "all\n\n[Messages: 6 sent]"
    assert numbers(block_events(bus)[0]) == ("success", 6, 6, 0)
    assert arrived(bus) == [
        "working on it",
        "see this",
        "note.txt: a note",
        "user:ann: done",
        "agent:Ada: well",
        "user:ann: hi bob",
        "channel:launch: @ann in #launch: news",
        "ann: news",
    ]
    assert inbox(bus, "Cleo") == ["channel:launch: @ann in #launch: news"]


async def test_a_block_that_fails_sends_none_of_the_six(bus: MemoryBus, sandbox: MontySandbox) -> None:
    blocks = Blocks(sandbox, SIX + 'raise ValueError("boo")', *messaging_tools())

    await work(bus, blocks.made)

    assert blocks.text.endswith("[Messages: 6 NOT sent (script failed)]")
    assert arrived(bus) == []


async def test_with_now_they_go_although_the_block_fails(bus: MemoryBus, sandbox: MontySandbox) -> None:
    code = SIX.replace('")\n', '", now=True)\n').replace("])\n", "], now=True)\n").replace('print("all", now=True)', "")
    blocks = Blocks(sandbox, code + 'raise ValueError("boo")', *messaging_tools())

    await work(bus, blocks.made)

    assert "Messages" not in blocks.text
    assert len(arrived(bus)) == 8


async def test_a_right_that_ends_before_the_block_does_fails_that_send_by_name(
    bus: MemoryBus, sandbox: MontySandbox
) -> None:
    from magent2.directory.friends import removing

    @tool
    def unfriend() -> str:
        """Bob ends the friendship."""
        run(bus, removing("bob", "ann"))
        return "done"

    code = 'friend_send("@bob", "one")\nfriend_send("@cat", "two")\nunfriend()\n'
    blocks = Blocks(sandbox, code, *messaging_tools(), unfriend)

    await work(bus, blocks.made)

    assert blocks.text.endswith("\n\n[Messages: 1 sent, 1 failed]\n- friend_send to @bob: not friends")
    assert (inbox(bus, "Bo"), inbox(bus, "Cleo")) == ([], ["user:ann: two"])


async def test_a_bad_argument_is_refused_before_anything_is_sent(bus: MemoryBus, sandbox: MontySandbox) -> None:
    blocks = Blocks(sandbox, 'say("one")\nfriend_send("@nobody", "two")', *messaging_tools())

    await work(bus, blocks.made)

    assert "nobody is called @nobody" in blocks.text
    assert blocks.text.endswith("[Messages: 1 NOT sent (script failed)]")
    assert arrived(bus) == []


async def test_plain_calls_send_with_the_result_of_the_call(bus: MemoryBus) -> None:
    from agents.testing import function_call

    from magent2.runner.team_tools import function_tool_of
    from tests.support.journalled import Shown

    shown = Shown(function_call("friend_send", {"nametag": "@bob", "text": "plain"}, call_id="c1"))
    tools = [function_tool_of(one) for one in messaging_tools()]

    await work(bus, shown.agent(*tools))

    assert inbox(bus, "Bo") == ["user:ann: plain"]
    assert home_of(bus, "bob")
