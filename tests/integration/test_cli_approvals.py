"""Approvals at the command line and in the client: every wait says what it waits for and how to end the wait."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from magent2.client import ApprovalInfo, AsyncClient, Client, Decision
from magent2.errors import ApprovalNeeded
from tests.support.command_line import END_DEADLINE_S, CommandLine, ended, served_team
from tests.support.terminal import CTRL_D, DEADLINE_S, Terminal
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def magent2(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with served_team(tmp_path_factory.mktemp("served")) as commands:
        yield commands


@pytest.fixture
def client(magent2: CommandLine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    for name in ("MAGENT2_URL", "MAGENT2_DATA_DIR"):
        monkeypatch.setenv(name, magent2.variables[name])
    with Client() as client:
        yield client


def pending(client: Client, conversation_id: str) -> ApprovalInfo:
    return eventually(lambda: [one for one in client.approvals() if one.session_id == conversation_id], DEADLINE_S)[0]


# --- the client


def test_wait_raises_if_a_call_needs_approval_and_waits_again_after_the_decision(client: Client) -> None:
    sent = client.send("support", "refund order 7", conversation_id="raised")

    with pytest.raises(ApprovalNeeded) as raised:
        client.wait(sent, DEADLINE_S)

    (call,) = raised.value.approvals
    assert (call.session_id, call.tool, call.args, call.status) == ("raised", "refund", {"order": "7"}, "pending")
    assert f"magent2 approve raised {call.call_id}" in str(raised.value)
    client.decide("raised", call.call_id, "approve")
    assert "7" in client.wait(sent, DEADLINE_S).text


def test_ask_sends_the_decision_of_its_callback(client: Client) -> None:
    seen: list[ApprovalInfo] = []

    def refuse(approval: ApprovalInfo) -> Decision:
        seen.append(approval)
        return "reject"

    reply = client.ask("support", "refund order 8", conversation_id="asked", timeout_s=DEADLINE_S, on_approval=refuse)

    assert [(one.tool, one.args) for one in seen] == [("refund", {"order": "8"})]
    assert [one.status for one in client.approvals("asked")] == ["rejected"]
    assert reply.text


def test_a_callback_that_does_not_decide_leaves_the_call_to_another_person(client: Client) -> None:
    sent = client.send("support", "refund order 9", conversation_id="left")

    def another_person_decides(approval: ApprovalInfo) -> None:
        with Client() as other:
            other.decide("left", approval.call_id, "approve")

    assert "9" in client.wait(sent, DEADLINE_S, on_approval=another_person_decides).text


def test_a_decision_that_comes_too_late_does_not_end_the_wait(client: Client) -> None:
    sent = client.send("support", "refund order 10", conversation_id="late")

    def decide_too_late(approval: ApprovalInfo) -> Decision:
        with Client() as other:
            other.decide("late", approval.call_id, "reject")
        return "approve"

    assert client.wait(sent, DEADLINE_S, on_approval=decide_too_late).text
    assert [one.status for one in client.approvals("late")] == ["rejected"]


async def test_the_asynchronous_client_raises_and_asks_as_the_synchronous_one(client: Client) -> None:
    async def approve(approval: ApprovalInfo) -> Decision:
        return "approve"

    async with AsyncClient() as asynchronous:
        with pytest.raises(ApprovalNeeded):
            await asynchronous.ask("support", "refund order 11", conversation_id="async", timeout_s=DEADLINE_S)
        reply = await asynchronous.ask("support", "refund order 12", timeout_s=DEADLINE_S, on_approval=approve)

    assert "12" in reply.text


def test_the_approvals_of_all_conversations_are_those_that_wait(client: Client) -> None:
    for conversation in ("all-1", "all-2"):
        client.send("support", "refund order 13", conversation_id=conversation)
    first, second = pending(client, "all-1"), pending(client, "all-2")
    client.decide("all-1", first.call_id, "reject")

    found = eventually(lambda: [one for one in client.approvals() if one.session_id == "all-2"])

    assert found == [second]
    assert {one.status for one in client.approvals()} == {"pending"}
    assert "all-1" not in {one.session_id for one in client.approvals()}


# --- commands


def test_send_wait_says_what_it_waits_for_and_prints_the_answer_after_the_decision(
    magent2: CommandLine, client: Client
) -> None:
    process = magent2.start("send", "support", "refund order 14", "--wait", "-c", "sent")
    assert process.stderr is not None
    call = pending(client, "sent")
    said = next(line for line in process.stderr if "needs approval" in line)  # other notes come before it
    approved = magent2.run("approve", "sent", call.call_id)
    done = ended(process)

    assert said == (
        f'support needs approval for refund(order="14"): magent2 approve sent {call.call_id}'
        f" or magent2 reject sent {call.call_id}\n"
    )
    assert (approved.code, approved.out) == (0, f'approved by user:local: refund(order="14") ({call.call_id})\n')
    assert (done.code, "14" in done.out) == (0, True)


def test_a_timeout_while_a_call_waits_names_the_next_step(magent2: CommandLine, client: Client) -> None:
    refund = ("send", "support", "refund order 15", "-c", "timed", "--id", "order-15")
    magent2.run(*refund)
    pending(client, "timed")  # the time of the wait does not include that of the run

    done = magent2.run(*refund, "--wait", "--timeout", "5")

    assert done.code == 1
    assert "magent2 approve timed call-" in done.err
    assert "magent2 tail timed" in done.err.splitlines()[-1]


def test_tail_stream_and_show_print_the_commands_that_decide(magent2: CommandLine, client: Client) -> None:
    process = magent2.start("send", "support", "refund order 16", "--stream", "-c", "shown")
    call = pending(client, "shown")
    commands = f"magent2 approve shown {call.call_id} or magent2 reject shown {call.call_id}"
    tailed = magent2.run("tail", "shown", "--no-follow")
    shown = magent2.run("conversations", "show", "shown")
    client.decide("shown", call.call_id, "approve")
    streamed = ended(process)

    for printed in (tailed.out, shown.out, streamed.err):
        assert f'support needs approval for refund(order="16"): {commands}' in printed
        assert not [line for line in printed.splitlines() if "approv" in line and "{" in line]
    assert (streamed.code, "16" in streamed.out) == (0, True)


def test_approvals_lists_one_conversation_or_all(magent2: CommandLine, client: Client) -> None:
    client.send("support", "refund order 17", conversation_id="one")
    call = pending(client, "one")
    everywhere = magent2.run("approvals")
    there = magent2.run("approvals", "one")
    as_json = magent2.run("approvals", "--json").json
    client.decide("one", call.call_id, "approve")
    decided = magent2.run("approvals", "one")

    line = f'support needs approval for refund(order="17"): magent2 approve one {call.call_id}'
    assert f"one: {line}" in everywhere.out
    assert there.out.startswith(f"one: {line}")
    assert ("one", call.call_id) in {(row["session_id"], row["call_id"]) for row in as_json}
    assert decided.out == f'one: approved by user:local: refund(order="17") ({call.call_id})\n'


def test_approvals_of_a_conversation_without_any_says_so(magent2: CommandLine, client: Client) -> None:
    client.send("general", "hello", conversation_id="none")

    done = magent2.run("approvals", "none")

    assert (done.code, done.out, done.err) == (0, "", "no call needs approval\n")


# --- chat


@pytest.fixture
def terminal(magent2: CommandLine) -> Iterator[Terminal]:
    terminal = Terminal(magent2, "chat", "support")
    yield terminal
    terminal.close()


@pytest.mark.parametrize(("key", "status"), [("y", "approved"), ("n", "rejected")])
def test_chat_asks_and_sends_the_decision(terminal: Terminal, client: Client, key: str, status: str) -> None:
    terminal.read_until("> ")
    terminal.type(f"refund order 2{key}\n")
    terminal.read_until(f'support needs approval for refund(order="2{key}")')
    terminal.read_until("Approve? [y/n]")
    terminal.type(f"{key}\n")
    terminal.read_until(status)
    terminal.read_until("> ")
    conversation = client.conversations(limit=1).conversations[0].conversation_id

    assert [one.status for one in client.approvals(conversation)] == [status]
    terminal.type(CTRL_D)
    assert terminal.process.wait(END_DEADLINE_S) == 0


def test_ctrl_c_at_the_question_stops_the_run(terminal: Terminal) -> None:
    terminal.read_until("> ")
    terminal.type("refund order 22\n")
    terminal.read_until("Approve? [y/n]")
    terminal.interrupt("asked support to stop")
    terminal.read_until("the run was stopped")
    terminal.read_until("> ")


def test_chat_through_a_pipe_prints_the_commands_that_decide(magent2: CommandLine, client: Client) -> None:
    before = {row.conversation_id for row in client.conversations(500).conversations}
    process = magent2.start("chat", "support")
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write("refund order 23\n")
    process.stdin.flush()
    (conversation,) = eventually(
        lambda: {row.conversation_id for row in client.conversations(500).conversations} - before
    )
    call = pending(client, conversation)
    said = next(line for line in process.stderr if "needs approval" in line)  # other notes come before it
    assert f"magent2 approve {conversation} {call.call_id}" in said
    client.decide(conversation, call.call_id, "approve")
    done = ended(process, "")

    assert (done.code, "23" in done.out) == (0, True)
