"""A right that ends after the call and before the block's commit: that send fails by name, and the others go.

Each is taken away at three moments: while the block still runs, right before the append that would have sent it, and
between the second look, which something harmless has made necessary, and the append after it. In the last two nobody
looks again by itself: only a condition of the append can notice.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import Log, run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Delete, Operation, OwnedAppend
from magent2.directory.agents import remove_agent
from magent2.directory.channels import leave_channel, remove_channel
from magent2.directory.connectors import Capabilities, register_connector, unregister_connector
from magent2.directory.erasure import erase_user
from magent2.directory.swarms import remove_swarm, set_contact_blocked, set_swarm_open
from magent2.directory.users import change_user, remove_friendship, remove_user
from magent2.models.address import conversation_topics
from magent2.sandbox.monty import MontySandbox
from magent2.tools.messaging import messaging_tools
from magent2.tools.registry import tool
from tests.support.blocks import Blocks, block_events
from tests.support.engine_wrappers import EngineWrapper
from tests.support.journaled_runs import work
from tests.support.send_cases import ALL_SENDS, BY_TOOL, SEND_CASES, SendCase, all_arrived, expected_arrivals
from tests.support.worker_fixture import send

OUTSIDE = {"connector": "hook", "target": "+1"}


@dataclass(frozen=True)
class Case:
    """What ends, and which sends fail by it, with the end of the line that says so."""

    ends: Callable[[Log], Coroutine[Any, Any, Any]]
    fails: dict[str, str]
    before: Callable[[Log], Coroutine[Any, Any, Any]] | None = None


async def at_a_hook(log: Log) -> None:
    able = Capabilities(text=True, files=True, reply_to=True)
    await register_connector(log, "hook", "console", able)
    await change_user(log, "ann", OUTSIDE)


async def delete_conversation(log: Log, conversation: str) -> None:
    await log.run(Delete(conversation_topics(conversation), conversation))


BOB_GONE = "user 'bob' was removed"
ANN_GONE = "user 'ann' was removed"
NO_HOOK = "to hook:+1: the connector 'hook' was removed"
MOVED = "to hook:+1: ann is no longer reached at hook:+1; send it again"

CASES = {
    "unfriended": Case(lambda log: remove_friendship(log, "bob", "ann"), {"friend_send": "to @bob: not friends"}),
    "left the channel": Case(
        lambda log: leave_channel(log, "launch", "ann"),
        {"channel_send": "to #launch: agent Ada of user ann is not a member of #launch"},
    ),
    "channel gone": Case(
        lambda log: remove_channel(log, "launch"), {"channel_send": "to #launch: channel 'launch' was removed"}
    ),
    "whom a channel tells is gone": Case(
        lambda log: remove_user(log, "cat"), {"channel_send": "to #launch: user 'cat' was removed"}
    ),
    "agent gone": Case(
        lambda log: remove_agent(log, "Bea"), {"send_agent_message": "to agent:Bea: the agent 'Bea' was removed"}
    ),
    "agent of a friend gone": Case(
        lambda log: remove_agent(log, "Bo"),
        {
            "friend_send": "to @bob: the agent 'Bo' was removed",
            "channel_send": "to #launch: the agent 'Bo' was removed",
        },
    ),
    "agent of a swarm gone": Case(
        lambda log: remove_agent(log, "Desk"), {"send_user_message": "to @desk: the agent 'Desk' was removed"}
    ),
    "swarm closed": Case(
        lambda log: set_swarm_open(log, "desk", is_open=False),
        {"send_user_message": "to @desk: @desk is not open to ann; its owner can add them as a guest"},
    ),
    "swarm gone": Case(
        lambda log: remove_swarm(log, "desk"), {"send_user_message": "to @desk: the swarm @desk was removed"}
    ),
    "user gone": Case(
        lambda log: remove_user(log, "bob"),
        {
            "send_user_message": f"to @desk: {BOB_GONE}",
            "friend_send": f"to @bob: {BOB_GONE}",
            "channel_send": f"to #launch: {BOB_GONE}",
        },
    ),
    "user erased": Case(
        lambda log: erase_user(log, "user:cat"),
        {"channel_send": "to #launch: @cat is not in #launch; its members are: @bob, @ann"},
    ),
    "sender gone": Case(
        lambda log: remove_user(log, "ann"),
        {
            "send_user_message": f"to @desk: {ANN_GONE}",
            "friend_send": f"to @bob: {ANN_GONE}",
            "channel_send": f"to #launch: {ANN_GONE}",
        },
    ),
    "connector gone": Case(
        lambda log: unregister_connector(log, "hook"), {"say": NO_HOOK, "send_file": NO_HOOK}, at_a_hook
    ),
    "user moved": Case(
        lambda log: change_user(log, "ann", {"target": "+2"}), {"say": MOVED, "send_file": MOVED}, at_a_hook
    ),
    "conversation deleted": Case(
        lambda log: delete_conversation(log, "aside"),
        {"chat_send": "to agent:Cy: 'aside' was deleted; send to another conversation"},
    ),
}


class ChangesBetween(EngineWrapper):
    """Before each append that would let something go, the next of these happens."""

    def __init__(self, engine: Engine, *happens: Callable[[], object]) -> None:
        super().__init__(engine)
        self.happens = list(happens)

    def answer(self, operation: Operation[Any]) -> Any:
        if isinstance(operation, OwnedAppend) and operation.conditions and self.happens:
            self.happens.pop(0)()
        return self.inner.call(operation)


def prepare(bus: MemoryBus, case: Case) -> None:
    if case.before is not None:
        run_sync(bus, case.before)


def status(case: Case, *ways: SendCase) -> str:
    """What the block must be told."""
    lines = [f"\n- {way.tool} {case.fails[way.tool]}" for way in ways if way.tool in case.fails]
    return f"\n\n[Messages: {len(ways) - len(lines)} sent, {len(lines)} failed]{''.join(lines)}"


@pytest.mark.parametrize("name", CASES)
async def test_what_fails_in_the_block_fails_by_name_and_the_others_go(
    bus: MemoryBus, sandbox: MontySandbox, name: str
) -> None:
    case = CASES[name]
    prepare(bus, case)

    @tool
    def revoke() -> None:
        """Take the right away."""
        run_sync(bus, case.ends)

    blocks = Blocks(sandbox, ALL_SENDS + "revoke()\nNone", *messaging_tools(), revoke)
    await work(bus, blocks.made)

    assert blocks.text.endswith(status(case, *SEND_CASES))
    assert all_arrived(bus) == expected_arrivals(*(way for way in SEND_CASES if way.tool not in case.fails))
    assert block_events(bus)[0]["failed"] == len(case.fails)


@pytest.mark.parametrize("looks", [1, 2], ids=["before the append", "after the second look"])
@pytest.mark.parametrize(
    ("name", "failing"), [(name, failing) for name, case in CASES.items() for failing in case.fails]
)
async def test_only_the_conditions_of_that_one_send_can_notice(
    bus: MemoryBus, sandbox: MontySandbox, name: str, failing: str, looks: int
) -> None:
    """Beside it is one that has nothing to do with it, and that a second look is made for."""
    case = CASES[name]
    prepare(bus, case)
    other = BY_TOOL["friend_send" if failing == "chat_send" else "chat_send"]
    blocks = Blocks(sandbox, BY_TOOL[failing].code() + other.code() + "None", *messaging_tools())

    def touch() -> None:
        send(bus, "something else", "aside", recipient="agent:Dee")  # who is active there has changed
        run_sync(bus, change_user, "bob", {"target": "elsewhere"})

    changes = ChangesBetween(bus, *([touch] if looks == 2 else []), lambda: run_sync(bus, case.ends))
    await work(changes, blocks.made)

    assert changes.happens == []
    assert blocks.text.endswith(status(case, BY_TOOL[failing], other))
    assert all_arrived(bus) == expected_arrivals(other)


async def test_a_contact_that_is_blocked_is_not_written_for(bus: MemoryBus, sandbox: MontySandbox) -> None:
    """There is a contact only once ann has written to the swarm."""
    way = BY_TOOL["send_user_message"]
    blocks = Blocks(sandbox, way.code(now=True) + way.code() + "None", *messaging_tools())

    await work(
        ChangesBetween(bus, lambda: None, lambda: run_sync(bus, set_contact_blocked, "desk", "ann", blocked=True)),
        blocks.made,
    )

    assert blocks.text.endswith(
        "\n\n[Messages: 0 sent, 1 failed]\n- send_user_message to @desk: @desk does not accept messages from ann"
    )
    assert way.arrived(bus) == way.wanted


async def test_a_user_who_is_erased_meanwhile_gets_nothing(bus: MemoryBus, sandbox: MontySandbox) -> None:
    """What is deleted keeps its number, so something must be appended before: else the conditions would still hold."""
    code = "".join(BY_TOOL[name].code() for name in ("friend_send", "say"))
    blocks = Blocks(sandbox, code + "None", *messaging_tools())

    await work(ChangesBetween(bus, lambda: run_sync(bus, erase_user, "user:bob")), blocks.made)

    assert blocks.text.endswith("\n\n[Messages: 1 sent, 1 failed]\n- friend_send to @bob: user 'bob' was removed")
    assert all_arrived(bus) == expected_arrivals(BY_TOOL["say"])
