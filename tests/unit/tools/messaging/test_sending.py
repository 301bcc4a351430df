"""What the messaging tools do besides what all tools that send do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import Log, run_sync
from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Append, Describe
from magent2.bus.records import NewRecord
from magent2.connectors.outbox import read_outbox
from magent2.directory.agents import remove_agent, set_agent_role
from magent2.directory.channels import leave_channel
from magent2.directory.connectors import Capabilities, register_connector, unregister_connector
from magent2.directory.swarms import find_swarm, list_contacts, remove_swarm, set_contact_blocked, set_swarm_open
from magent2.directory.users import change_user, remove_friendship, remove_user
from magent2.errors import ArgumentsError, InvalidInput, NotAContact, NotFriends, WouldDeadlock
from magent2.mail.headers import STEER
from magent2.mail.registration import register_agent
from magent2.models.envelope import OutputEvent
from magent2.models.events import RunEvent
from magent2.sessions.stream import stream_record
from magent2.tools.definition import ToolDefinition, ToolExecutionContext
from magent2.tools.interface import call_scope
from magent2.tools.messaging import messaging_tools
from magent2.tools.messaging.agent_messages import ATTACH_OVER_CHARS, ATTACHED_MAX_CHARS
from magent2.tools.messaging.read_tools import read_attachment_definition
from magent2.tools.wait_for_answer import AgentLane, wait_for_answer, with_wait
from tests.support.directory_fixture import (
    channel_messages,
    home_conversation,
    inbox,
    message_texts,
    open_channel,
    open_swarm,
    populate_directory,
)
from tests.support.flaky_engine import UnavailableReads
from tests.support.sending import Facts, commit, scope_of
from tests.support.waiting import until

TOOLS: dict[str, ToolDefinition] = {tool.name: tool for tool in messaging_tools()}


@pytest.fixture
def bus() -> Iterator[Engine]:
    bus = MemoryBus()
    yield bus
    bus.close()


@pytest.fixture
def ann(bus: Engine) -> Facts:
    return populate_directory(bus)


async def call(tool: str, facts: Facts, **arguments: Any) -> dict[str, Any]:
    result = (await TOOLS[tool].run(arguments, facts)).typed_result
    assert isinstance(result, dict)
    return result


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({}, "text: Field required"),
        ({"text": 5}, "text: Input should be a valid string"),
        ({"text": "a", "now": "true"}, "now: Input should be a valid boolean"),
        ({"text": "a", "loud": True}, "loud: Extra inputs are not permitted"),
    ],
)
async def test_arguments_that_do_not_fit_are_refused_by_name(ann: Facts, arguments: Any, fault: str) -> None:
    with pytest.raises(ArgumentsError, match=f"the arguments do not fit tool 'say': {fault}"):
        await TOOLS["say"].run(arguments, ann)


def mail(bus: Engine, agent: str) -> Any:
    return list(bus.read(f"chat:{agent}"))[-1]


def test_there_are_six() -> None:
    assert set(TOOLS) == {
        "say", "send_file", "send_user_message", "send_agent_message", "friend_send", "channel_send",
    }  # fmt: skip


# --- say


async def test_what_is_said_names_the_message_it_answers(bus: Engine, ann: Facts) -> None:
    first = await call("say", ann, text="one")
    await call("say", ann, text="two", reply_to=first["envelope_id"])

    event = list(bus.read("stream:one"))[-1].payload
    assert (event["reply_to"], event["agent"], event["run_id"]) == (first["envelope_id"], "Ada", "run-1")


async def test_a_user_who_is_reached_elsewhere_is_told_there_and_on_the_page(bus: Engine, ann: Facts) -> None:
    run_sync(bus, register_connector, "hook", "console", Capabilities(text=True))
    run_sync(bus, change_user, "ann", {"connector": "hook", "target": "+1"})

    await call("say", ann, text="hello")

    (item,) = run_sync(bus, read_outbox, "hook")
    assert (item.message.text, item.message.target, item.state) == ("hello", "+1", "waiting")
    assert message_texts(bus) == ["hello"]


@pytest.mark.parametrize(
    ("tool", "arguments"), [("say", {"text": "hi", "reply_to": "x"}), ("send_file", {"path": "a.txt"})]
)
async def test_what_a_connector_cannot_take_is_refused(
    bus: Engine, ann: Facts, tool: str, arguments: dict[str, Any]
) -> None:
    run_sync(bus, register_connector, "hook", "console", Capabilities(text=True))
    run_sync(bus, change_user, "ann", {"connector": "hook"})

    with pytest.raises(InvalidInput, match="does not support"):
        await call(tool, ann, **arguments)


async def test_a_connector_that_is_removed_after_the_hold_fails_the_send(bus: Engine, ann: Facts) -> None:
    run_sync(bus, register_connector, "hook", "console", Capabilities(text=True))
    run_sync(bus, change_user, "ann", {"connector": "hook"})
    scope = scope_of(ann)
    with call_scope(scope):
        await call("say", ann, text="hello")

    run_sync(bus, unregister_connector, "hook")

    assert [failure.reason for failure in commit(scope)] == ["the connector 'hook' was removed"]
    assert (message_texts(bus), run_sync(bus, read_outbox, "hook")) == ([], [])


# --- revocation between hold and commit: that send fails by name, the others go


async def test_of_many_held_sends_only_the_revoked_fail(bus: Engine, ann: Facts) -> None:
    open_channel(bus)
    open_swarm(bus)
    scope = scope_of(ann)
    with call_scope(scope):
        await call("friend_send", ann, nametag="@bob", text="to bob")
        await call("friend_send", ann, nametag="@cat", text="to cat")
        await call("channel_send", ann, channel="launch", text="to all")
        await call("send_user_message", ann, nametag="@desk", text="to desk")
        await call("say", ann, text="to ann")

    run_sync(bus, remove_friendship, "bob", "ann")
    run_sync(bus, leave_channel, "launch", "ann")
    failures = commit(scope)

    assert [(failure.send.prepared.tool, failure.send.prepared.target, failure.reason) for failure in failures] == [
        ("friend_send", "@bob", "not friends"),
        ("channel_send", "#launch", "agent Ada of user ann is not a member of #launch"),
    ]
    assert (inbox(bus, "Bo"), channel_messages(bus)) == ([], [])
    assert inbox(bus, "Cleo") == ["user:ann: to cat"]
    assert inbox(bus, "Desk") == ["user:ann: to desk"]
    assert message_texts(bus) == ["to ann"]


# --- friends


async def test_a_friends_mail_is_work_for_the_friend_in_their_own_conversation(bus: Engine, ann: Facts) -> None:
    await call("friend_send", ann, nametag="bob", text="hello")

    record = mail(bus, "Bo")
    home = home_conversation(bus, "bob")
    assert (record.payload["conversation_id"], record.headers["principal"]) == (home, "user:bob")
    assert record.payload["metadata"] == {"friend": "@ann"}
    assert bus.call(Describe((f"stream:{home}",)))[0].head["owner"] == "user:bob"


async def test_strangers_are_not_written_to(bus: Engine, ann: Facts) -> None:
    cats = Facts(bus, "cats", "Cleo", principal="user:cat")

    with pytest.raises(NotFriends):
        await call("friend_send", cats, nametag="@bob", text="hello")


async def test_a_run_without_a_principal_acts_for_the_owner_of_the_conversation(bus: Engine, ann: Facts) -> None:
    await call("friend_send", Facts(bus, "one", "Ada", principal=None), nametag="@bob", text="hello")

    assert inbox(bus, "Bo") == ["user:ann: hello"]


# --- channels


async def test_the_speaker_is_not_told_and_history_keeps_it_all(bus: Engine, ann: Facts) -> None:
    open_channel(bus)
    bobs = Facts(bus, "bobs", "Bo", principal="user:bob")

    await call("channel_send", bobs, channel="launch", text="I lead")
    await call("channel_send", bobs, channel="launch", text="you", mentions=["@ann"])

    assert channel_messages(bus) == ["bob: I lead", "bob: you"]
    assert (inbox(bus, "Bo"), inbox(bus, "Ada")) == ([], ["channel:launch: @bob in #launch: you"])


# --- the user's own agent, and swarms


async def test_the_foreground_agent_hears_from_another_conversation(bus: Engine, ann: Facts) -> None:
    background = Facts(bus, "job", "Worker", principal="user:ann")

    await call("send_user_message", background, text="done")

    assert inbox(bus, "Ada") == ["agent:Worker: done"]
    assert mail(bus, "Ada").payload["metadata"]["origin"] == {"agent": "Worker", "conversation_id": "job"}


async def test_the_foreground_agent_itself_is_told_to_say_it(bus: Engine, ann: Facts) -> None:
    with pytest.raises(InvalidInput, match="use `say`"):
        await call(
            "send_user_message", Facts(bus, home_conversation(bus, "ann"), "Ada", principal="user:ann"), text="hi"
        )


async def finish(bus: Engine, agent: str, text: str) -> None:
    """Answer the last mail of an agent, as a worker would."""
    await until(lambda: inbox(bus, agent))
    payload = mail(bus, agent).payload
    where: dict[str, Any] = {"conversation_id": payload["conversation_id"], "run_id": "run-9"}
    events = [
        RunEvent(**where, status="started", envelope_id=payload["id"]),
        RunEvent(**where, status="finished", envelope_id=payload["id"]),
    ]
    output = stream_record(OutputEvent(conversation_id=where["conversation_id"], text=text), {"run_id": "run-9"})
    bus.call(Append(records=(stream_record(events[0]), output, stream_record(events[1]))))


async def test_a_send_that_waits_gets_the_answer_before_the_block_ends(bus: Engine, ann: Facts) -> None:
    open_swarm(bus)
    answering = asyncio.create_task(finish(bus, "Desk", "it is on its way"))
    scope = scope_of(ann)
    with call_scope(scope):
        told = await call("send_user_message", ann, nametag="@desk", text="where is it?", wait=True, timeout_s=10)
    await answering

    assert (told["answer"], scope.sends) == ("it is on its way", ())


async def test_a_send_that_waits_survives_a_short_outage_of_the_log(bus: Engine, ann: Facts) -> None:
    open_swarm(bus)
    message = await call("send_user_message", ann, nametag="@desk", text="where is it?")
    payload = mail(bus, "Desk").payload
    await finish(bus, "Desk", "it is on its way")
    absent = UnavailableReads(bus, f"stream:{payload['conversation_id']}", times=2)
    context = ToolExecutionContext(replace(ann, bus=absent), None)

    answer = await wait_for_answer(context, AgentLane("Desk", payload["conversation_id"]), message["envelope_id"])

    assert (answer.text, absent.left) == ("it is on its way", 0)


async def test_a_send_that_waits_too_long_reports_it(bus: Engine, ann: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    open_swarm(bus)
    monkeypatch.setattr(asyncio, "timeout", lambda _: asyncio.timeout_at(0.0))

    told = await call("send_user_message", ann, nametag="@desk", text="hello?", wait=True, timeout_s=5)

    assert told["answer"] is None
    assert "no answer within 5 s" in told["reason"]
    assert inbox(bus, "Desk") == ["user:ann: hello?"]


async def desk_of(bus: Engine, ann: Facts) -> Facts:
    """A run of the swarm, after ann has written to it."""
    open_swarm(bus)
    await call("send_user_message", ann, nametag="@desk", text="help")
    room = run_sync(bus, find_swarm, "desk").state.room("ann")
    return Facts(bus, room, "Desk", principal="user:bob")


async def test_a_swarm_answers_a_sender_in_the_conversation_they_wrote_from(bus: Engine, ann: Facts) -> None:
    desk = await desk_of(bus, ann)

    await call("send_agent_message", desk, text="we are on it")
    await call("send_agent_message", desk, text="by name", agent="@ann")

    assert inbox(bus, "Ada") == ["agent:Desk: we are on it", "agent:Desk: by name"]
    assert mail(bus, "Ada").payload["conversation_id"] == "one"
    assert [contact.user for contact in run_sync(bus, list_contacts, "desk")] == ["ann"]


async def test_a_swarm_writes_only_to_users_who_wrote_to_it(bus: Engine, ann: Facts) -> None:
    desk = await desk_of(bus, ann)

    with pytest.raises(NotAContact, match="never written"):
        await call("send_agent_message", desk, text="hello", agent="@cat")
    with pytest.raises(NotAContact):
        await call("send_agent_message", ann, text="hello", agent="@bob")


async def test_a_blocked_contact_gets_and_sends_nothing(bus: Engine, ann: Facts) -> None:
    desk = await desk_of(bus, ann)
    scope = scope_of(desk)
    with call_scope(scope):
        await call("send_agent_message", desk, text="held")
    run_sync(bus, set_contact_blocked, "desk", "ann", blocked=True)

    assert ["blocked" in failure.reason for failure in commit(scope)] == [True]
    with pytest.raises(NotAContact):
        await call("send_agent_message", desk, text="hello")
    with pytest.raises(NotAContact):
        await call("send_user_message", ann, nametag="@desk", text="hello")
    assert inbox(bus, "Ada") == []


@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        (lambda log: remove_user(log, "ann"), "user 'ann' was removed"),
        (lambda log: remove_agent(log, "Ada"), "the agent 'Ada' was removed"),
        (lambda log: remove_swarm(log, "desk"), "the swarm @desk was removed"),
    ],
    ids=["user", "agent", "swarm"],
)
async def test_what_a_swarm_answers_fails_when_who_asked_is_gone(
    bus: Engine, ann: Facts, ends: Callable[[Log], Coroutine[Any, Any, Any]], reason: str
) -> None:
    desk = await desk_of(bus, ann)
    scope = scope_of(desk)
    with call_scope(scope):
        await call("send_agent_message", desk, text="held")

    run_sync(bus, ends)

    assert [failure.reason for failure in commit(scope)] == [reason]
    assert inbox(bus, "Ada") == []


async def test_a_swarm_that_is_closed_takes_nothing_from_strangers(bus: Engine, ann: Facts) -> None:
    open_swarm(bus)
    run_sync(bus, set_swarm_open, "desk", is_open=False)

    with pytest.raises(NotAContact, match="not open to ann"):
        await call("send_user_message", ann, nametag="@desk", text="hello")


async def test_two_runs_cannot_wait_for_each_other(bus: Engine, ann: Facts) -> None:
    """Ann's run waits for the desk; what the desk wants of ann's own agent would close the circle."""
    open_swarm(bus)
    home = home_conversation(bus, "ann")
    foreground = Facts(bus, home, "Ada", run_id="run-2", principal="user:ann")
    waiting = Facts(bus, "one", "Ada", run_id="run-1", principal="user:ann")
    lane = AgentLane("Ada", "one")
    bus.call(run_sync(bus, with_wait, foreground, lane, Append(records=(NewRecord("stream:x", {}),))))

    with pytest.raises(WouldDeadlock):
        await call("send_user_message", waiting, text="hello", wait=True)
    assert inbox(bus, "Ada") == []


# --- agents


async def test_a_sub_agent_writes_to_its_parent_unless_it_names_another(bus: Engine, ann: Facts) -> None:
    for name in ("Boss", "Peer"):
        run_sync(bus, register_agent, name)
    run_sync(bus, set_agent_role, "Ada", "sub", "Boss")

    await call("send_agent_message", ann, text="up")
    await call("send_agent_message", ann, text="across", agent="Peer")

    assert (inbox(bus, "Boss"), inbox(bus, "Peer")) == (["agent:Ada: up"], ["agent:Ada: across"])


async def test_without_a_parent_a_message_goes_to_the_last_sender(bus: Engine, ann: Facts) -> None:
    for name in ("Cleo", "Ada"):
        run_sync(bus, register_agent, name)
    cleo = Facts(bus, "one", "Cleo", principal="user:ann")
    await call("send_agent_message", cleo, text="how far?", agent="Ada")

    await call("send_agent_message", ann, text="nearly")

    assert inbox(bus, "Cleo") == ["agent:Ada: nearly"]


async def test_a_steer_goes_at_once_and_is_marked(bus: Engine, ann: Facts) -> None:
    run_sync(bus, register_agent, "Cleo")
    scope = scope_of(ann)
    with call_scope(scope):
        await call("send_agent_message", ann, text="turn left", agent="Cleo", steering=True)

    assert scope.sends == ()
    assert mail(bus, "Cleo").headers[STEER] is True


async def test_a_long_text_is_attached(bus: Engine, ann: Facts) -> None:
    run_sync(bus, register_agent, "Cleo")
    text = "word " * ATTACH_OVER_CHARS

    await call("send_agent_message", ann, text=text, agent="Cleo")

    record = mail(bus, "Cleo")
    (attachment,) = record.payload["metadata"]["attachments"]
    assert len(record.payload["content"]) < ATTACH_OVER_CHARS
    assert record.blobs == (attachment["sha256"],)
    with pytest.raises(InvalidInput, match="at most"):
        await call("send_agent_message", ann, text="x" * (ATTACHED_MAX_CHARS + 1), agent="Cleo")

    cleo = Facts(bus, "one", "Cleo", principal="user:ann")
    reading = read_attachment_definition()
    end = {"sha256": attachment["sha256"], "start": len(text.strip()) - 4}
    assert (await reading.run(end, cleo)).typed_result["text"] == "word"
    with pytest.raises(InvalidInput, match="no message of this conversation"):
        await reading.run(end, Facts(bus, "elsewhere", "Eve", principal="user:eve"))
