"""A right that ends after the call and before the block's commit: that send fails by name, and the others go.

Each is taken away at three moments: while the block still runs, right before the append that would have sent it, and
between the second look, which something harmless has made necessary, and the append after it. In the last two nobody
looks again by itself: only a condition of the append can notice.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from magent2.bus.flow import Flow, run
from magent2.bus.interface import Engine
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Delete, Operation, OwnedAppend
from magent2.directory.agents import removing_agent
from magent2.directory.channels import leaving, removing_channel
from magent2.directory.connectors import Capabilities, registering, unregistering
from magent2.directory.erasure import erasing_user
from magent2.directory.friends import removing
from magent2.directory.swarms import blocking, opening_swarm, removing_swarm
from magent2.directory.users import changing_user, removing_user
from magent2.models.address import conversation_topics
from magent2.sandbox.monty import MontySandbox
from magent2.tools.messaging import messaging_tools
from magent2.tools.registry import tool
from tests.support.blocks import Blocks, block_events, short_sandbox
from tests.support.broken import Broken
from tests.support.journalled import work
from tests.support.town import BY_TOOL, EVERY, WAYS, all_arrived, town, wanted_of

OUTSIDE = {"connector": "hook", "target": "+1"}


@dataclass(frozen=True)
class Case:
    """What ends, and which sends fail by it, with the end of the line that says so."""

    ends: Callable[[], Flow[Any]]
    fails: dict[str, str]
    before: Callable[[], list[Flow[Any]]] = field(default=list)


def at_a_hook() -> list[Flow[Any]]:
    able = Capabilities(text=True, files=True, reply_to=True)
    return [registering("hook", "console", able), changing_user("ann", OUTSIDE)]


def deleting(conversation: str) -> Flow[None]:
    yield Delete(conversation_topics(conversation), conversation)


BOB_GONE = "user 'bob' is gone"
ANN_GONE = "user 'ann' is gone"
NO_HOOK = "to hook:+1: the connector 'hook' was removed"
MOVED = "to hook:+1: ann is not reached at hook:+1 any more; send it again"

CASES = {
    "unfriended": Case(lambda: removing("bob", "ann"), {"friend_send": "to @bob: not friends"}),
    "left the channel": Case(
        lambda: leaving("launch", "ann"),
        {"channel_send": "to #launch: agent Ada of user ann is not a member of #launch"},
    ),
    "channel gone": Case(lambda: removing_channel("launch"), {"channel_send": "to #launch: channel 'launch' is gone"}),
    "whom a channel tells is gone": Case(
        lambda: removing_user("cat"), {"channel_send": "to #launch: user 'cat' is gone"}
    ),
    "agent gone": Case(lambda: removing_agent("Bea"), {"send_agent_message": "to agent:Bea: the agent 'Bea' is gone"}),
    "agent of a friend gone": Case(
        lambda: removing_agent("Bo"),
        {"friend_send": "to @bob: the agent 'Bo' is gone", "channel_send": "to #launch: the agent 'Bo' is gone"},
    ),
    "agent of a swarm gone": Case(
        lambda: removing_agent("Desk"), {"send_user_message": "to @desk: the agent 'Desk' is gone"}
    ),
    "swarm closed": Case(
        lambda: opening_swarm("desk", is_open=False),
        {"send_user_message": "to @desk: @desk is not open to ann; its owner can let them in"},
    ),
    "swarm gone": Case(lambda: removing_swarm("desk"), {"send_user_message": "to @desk: the swarm @desk is gone"}),
    "user gone": Case(
        lambda: removing_user("bob"),
        {
            "send_user_message": f"to @desk: {BOB_GONE}",
            "friend_send": f"to @bob: {BOB_GONE}",
            "channel_send": f"to #launch: {BOB_GONE}",
        },
    ),
    "user erased": Case(
        lambda: erasing_user("user:cat"), {"channel_send": "to #launch: @cat is not in #launch; there is: @bob, @ann"}
    ),
    "sender gone": Case(
        lambda: removing_user("ann"),
        {
            "send_user_message": f"to @desk: {ANN_GONE}",
            "friend_send": f"to @bob: {ANN_GONE}",
            "channel_send": f"to #launch: {ANN_GONE}",
        },
    ),
    "connector gone": Case(lambda: unregistering("hook"), {"say": NO_HOOK, "send_file": NO_HOOK}, at_a_hook),
    "user moved": Case(lambda: changing_user("ann", {"target": "+2"}), {"say": MOVED, "send_file": MOVED}, at_a_hook),
    "conversation deleted": Case(
        lambda: deleting("aside"),
        {"chat_send": "to agent:Cy: 'aside' was deleted; send to another conversation"},
    ),
}


class Meanwhile(Broken):
    """Before each append that would let something go, the next of these happens."""

    def __init__(self, engine: Engine, *happens: Callable[[], object]) -> None:
        super().__init__(engine)
        self.happens = list(happens)

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, OwnedAppend) and operation.conditions and self.happens:
            self.happens.pop(0)()
        return self.inner.call(operation)


@pytest.fixture
def bus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBus]:
    with town(tmp_path, monkeypatch) as bus:
        yield bus


@pytest.fixture
async def sandbox() -> AsyncIterator[MontySandbox]:
    sandbox = short_sandbox(processes=1)
    yield sandbox
    await sandbox.aclose()


@pytest.mark.parametrize("moment", ["in the block", "before the append", "after the second look"])
@pytest.mark.parametrize("name", CASES)
async def test_that_send_fails_by_name_and_the_others_go(
    bus: MemoryBus, sandbox: MontySandbox, name: str, moment: str
) -> None:
    case = CASES[name]
    for flow in case.before():
        run(bus, flow)

    @tool
    def revoke() -> None:
        """Take the right away."""
        run(bus, case.ends())

    inside = moment == "in the block"
    blocks = Blocks(sandbox, EVERY + ("revoke()\n" if inside else "") + "None", *messaging_tools(), revoke)
    touch = [lambda: run(bus, changing_user("cat", {"target": "elsewhere"}))] if "second" in moment else []
    meanwhile = Meanwhile(bus, *touch, *([] if inside else [lambda: run(bus, case.ends())]))
    await work(meanwhile, blocks.made)

    assert meanwhile.happens == []
    lines = "".join(f"\n- {way.tool} {case.fails[way.tool]}" for way in WAYS if way.tool in case.fails)
    failed = len(case.fails)
    assert blocks.text.endswith(f"\n\n[Messages: {len(WAYS) - failed} sent, {failed} failed]{lines}"), blocks.text
    assert all_arrived(bus) == wanted_of(*(way for way in WAYS if way.tool not in case.fails))
    assert block_events(bus)[0]["failed"] == failed


async def test_a_contact_that_is_blocked_is_not_written_for(bus: MemoryBus, sandbox: MontySandbox) -> None:
    """There is a contact only once ann has written to the swarm."""
    way = BY_TOOL["send_user_message"]
    blocks = Blocks(sandbox, way.code(now=True) + way.code() + "None", *messaging_tools())

    await work(Meanwhile(bus, lambda: None, lambda: run(bus, blocking("desk", "ann", blocked=True))), blocks.made)

    assert blocks.text.endswith(
        "\n\n[Messages: 0 sent, 1 failed]\n- send_user_message to @desk: @desk takes no messages from ann"
    )
    assert way.arrived(bus) == way.wanted
