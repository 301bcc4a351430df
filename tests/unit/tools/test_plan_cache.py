"""What held messages are planned by: the log is asked once, and what was seen is never sent by blindly."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

import pytest

from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Delete, Describe, Operation
from magent2.directory.users import remove_friendship
from magent2.errors import NameTaken, NotFriends
from magent2.models.address import conversation_topics
from magent2.tools.default_tools import standard_tools
from magent2.tools.definition import ToolDefinition, ToolExecutionContext
from magent2.tools.interface import CallScope
from magent2.tools.messaging import messaging_tools
from magent2.tools.sending import plan_held_sends
from tests.support.directory_fixture import home_conversation, populate_directory
from tests.support.sending import Facts, commit, scope_of

R = TypeVar("R")

CHAT_SEND = standard_tools().get("chat_send")
FRIEND_SEND = next(tool for tool in messaging_tools() if tool.name == "friend_send")


class Counting(MemoryBus):
    """Counts what it is asked."""

    asked = 0

    def call(self, operation: Operation[R]) -> R:
        self.asked += 1
        return super().call(operation)


@pytest.fixture
def bus() -> Iterator[Counting]:
    bus = Counting()
    yield bus
    bus.close()


def hold(tool: ToolDefinition, scope: CallScope, **arguments: Any) -> dict[str, Any]:
    assert tool.hold is not None
    answer = tool.hold(arguments, ToolExecutionContext(scope.run, scope))
    assert answer is not None
    return answer


def texts_of(scope: CallScope) -> list[tuple[str, str]]:
    """Id and text of what would leave, as it lies in the inbox."""
    sends, _ = run_sync(scope.run.bus, plan_held_sends, scope.sends)
    first, *others = (held.append for held in sends)
    records = first.merge(*others).records
    return [(record.payload["id"], record.payload["content"]) for record in records if record.topic == "chat:Bea"]


def test_messages_that_go_the_same_way_keep_their_own_text_and_id(bus: Counting) -> None:
    scope = scope_of(Facts(bus))

    answers = [hold(CHAT_SEND, scope, recipient="agent:Bea", content=f"hello {n}") for n in range(4)]

    assert bus.asked == 1
    assert [held.planned for held in scope.sends] == [True, True, False, False]  # the first one made Bea active
    assert texts_of(scope) == [(answer["envelope_id"], f"hello {n}") for n, answer in enumerate(answers)]
    assert [answer["published_to"] for answer in answers] == [["chat:one", "chat:Bea"]] * 4


def test_a_message_that_was_not_planned_fails_by_name_if_it_cannot_leave_any_more(bus: Counting) -> None:
    scope = scope_of(Facts(bus))
    for n in range(3):
        hold(CHAT_SEND, scope, recipient="agent:Bea", content=f"hello {n}", conversation_id="side")

    bus.call(Delete(conversation_topics("side"), "side"))

    sends, failures = run_sync(bus, plan_held_sends, scope.sends)
    assert (len(sends), len(failures)) == (2, 1)
    assert "was deleted" in failures[0].reason


def test_messages_to_different_agents_are_each_told_where_theirs_goes(bus: Counting) -> None:
    scope = scope_of(Facts(bus))
    answers = [hold(CHAT_SEND, scope, recipient=f"agent:{name}", content=name) for name in ("Bea", "Cy", "Dee", "Eve")]

    assert bus.asked == 1
    assert commit(scope) == []
    for name, answer in zip(("Bea", "Cy", "Dee", "Eve"), answers, strict=True):
        assert answer["published_to"] == ["chat:one", f"chat:{name}"]
        assert [record.payload["id"] for record in bus.read(f"chat:{name}")] == [answer["envelope_id"]]


def test_an_agent_named_like_the_conversation_is_refused_also_behind_others(bus: Counting) -> None:
    scope = scope_of(Facts(bus))
    for _ in range(3):
        hold(CHAT_SEND, scope, recipient="agent:Bea", content="hello")

    with pytest.raises(NameTaken):
        hold(CHAT_SEND, scope, recipient="agent:one", content="hello")


def test_another_conversation_is_another_way(bus: Counting) -> None:
    scope = scope_of(Facts(bus))
    for conversation in ("one", "side", "one", "side"):
        hold(CHAT_SEND, scope, recipient="agent:Bea", content="hello", conversation_id=conversation)

    assert commit(scope) == []
    assert [record.payload["conversation_id"] for record in bus.read("chat:Bea")] == ["one", "side", "one", "side"]


def test_of_a_friend_the_log_is_asked_once(bus: Counting) -> None:
    scope = scope_of(populate_directory(bus))
    hold(FRIEND_SEND, scope, nametag="@bob", text="first")
    before = bus.asked

    hold(FRIEND_SEND, scope, nametag="@bob", text="second")

    assert bus.asked == before


def test_after_anything_else_the_log_is_looked_at_again(bus: Counting) -> None:
    scope = scope_of(populate_directory(bus))
    hold(FRIEND_SEND, scope, nametag="@bob", text="first")
    run_sync(bus, remove_friendship, "ann", "bob")

    scope.plan_cache.forget()

    with pytest.raises(NotFriends):
        hold(FRIEND_SEND, scope, nametag="@bob", text="second")
    assert [failure.send.prepared.target for failure in commit(scope)] == ["@bob"]


def test_the_last_message_of_a_block_is_the_last_text_of_its_conversation(bus: Counting) -> None:
    scope = scope_of(populate_directory(bus))
    for text in ("first", "second"):
        hold(FRIEND_SEND, scope, nametag="@bob", text=text)

    assert commit(scope) == []
    (info,) = bus.call(Describe((f"stream:{home_conversation(bus, 'bob')}",)))
    assert info.head["last_text"] == "second"
