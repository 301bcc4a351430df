"""Commands that talk to a running gateway."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from magent2.client import AsyncClient, Client, DeadLetterInfo
from magent2.errors import Conflict, RunStopped
from tests.support.command_line import CommandLine, RunningServer, ended
from tests.support.processes import ProcessGroup
from tests.support.waiting import eventually

PATIENTLY = ("--timeout", "30")  # a busy worker may take a stop later than the command waits by default


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with ProcessGroup() as process_group:
        yield RunningServer(process_group, tmp_path_factory.mktemp("server"))


@pytest.fixture
def magent2(server: RunningServer) -> Iterator[CommandLine]:
    with CommandLine(server.data_dir, MAGENT2_URL=server.url) as commands:
        yield commands


@pytest.fixture
def client(server: RunningServer) -> Iterator[Client]:
    with Client(server.url, server.token) as client:
        yield client


def test_send_prints_conversation_and_sequence_number(magent2: CommandLine, client: Client) -> None:
    done = magent2.run("send", "general", "hello", "-c", "plain")

    assert (done.code, done.out, done.err) == (0, "conversation plain seq 1\n", "")
    assert client.conversation("plain").title == "hello"


def test_send_waits_for_the_answer_and_prints_nothing_else_on_stdout(magent2: CommandLine) -> None:
    done = magent2.run("send", "general", "good morning", "--wait")

    assert (done.code, done.out) == (0, "good morning\n")


def test_send_streams_the_answer_while_it_is_written(magent2: CommandLine) -> None:
    readable = magent2.run("send", "general", "one two three", "--stream")
    events = magent2.run("send", "general", "one two", "--stream", "--json").json_lines

    assert readable.out == "one two three\n"
    assert [event["text"] for event in events if event["event"] == "token"] == ["one ", "two"]
    assert [event["event"] for event in events][-1] == "output"


def test_send_reads_stdin_and_answers_as_json(magent2: CommandLine) -> None:
    done = magent2.run("send", "general", "-", "--wait", "--json", stdin="from\na pipe ü\n")

    assert done.json["answer"]["text"] == "from\na pipe ü"
    assert done.json["sent"]["seq"] == 1


def test_the_last_message_is_answered_again_or_replaced(magent2: CommandLine) -> None:
    magent2.run("send", "general", "hello", "-c", "replaced", "--wait")

    again = magent2.run("regenerate", "replaced", "--wait")
    other = magent2.run("edit", "replaced", "good evening", "--wait", "--json")
    refused = magent2.run("edit", "replaced", "good night", "--message", "msg-unknown")
    shown = magent2.run("conversations", "show", "replaced")

    assert (again.code, other.code, refused.code) == (0, 0, 1), f"{again} {other} {refused}"
    assert "good evening" in other.json["answer"]["text"]
    assert "is not the one that was answered last" in refused.err
    assert ("good evening" in shown.out, "hello" in shown.out) == (True, False)


def test_the_same_id_sends_once(magent2: CommandLine, client: Client) -> None:
    first = magent2.run("send", "general", "once", "-c", "same", "--id", "order-17", "--json")
    again = magent2.run("send", "general", "once", "-c", "same", "--id", "order-17", "--json")
    other = magent2.run("send", "general", "twice", "-c", "same", "--id", "order-17")

    assert first.json == again.json
    assert other.code == 1
    assert len(other.err.splitlines()) == 1


def test_a_message_to_an_agent_without_a_worker_prints_a_notice(magent2: CommandLine) -> None:
    done = magent2.run("send", "bob", "hello", "--json")

    assert done.code == 0
    assert done.json["notice"] in done.err


def test_a_run_that_fails_is_one_line_and_becomes_a_dead_letter(magent2: CommandLine) -> None:
    done = magent2.run("send", "general", "fail please", "-c", "failing", "--wait")
    (letter,) = [row for row in magent2.run("dead", "ls", "--json").json if row["conversation_id"] == "failing"]
    listed = magent2.run("dead", "ls")  # before the retry, which takes the letter away until its run has failed again
    retried = magent2.run("dead", "retry", "general", str(letter["seq"]))
    again = magent2.run("dead", "retry", "general", str(letter["seq"]))

    assert (done.code, done.out) == (1, "")
    assert "told to fail" in done.err
    assert letter["text"] == "fail please"
    assert "told to fail" in listed.out
    assert (retried.code, again.code) == (0, 1)


def test_a_dead_letter_can_be_dropped(magent2: CommandLine, client: Client) -> None:
    sent = client.send("general", "fail again", conversation_id="dropping")
    (letter,) = eventually(
        lambda: [row for row in client.dead("general").letters if row.conversation_id == sent.conversation_id]
    )

    done = magent2.run("dead", "drop", "general", str(letter.seq), "--json")

    assert (done.code, done.json) == (0, {"agent": "general", "seq": letter.seq})
    assert letter not in client.dead("general").letters


def test_many_dead_letters_are_retried_and_dropped_by_conditions(magent2: CommandLine, client: Client) -> None:
    def letters_of(conversation: str) -> list[DeadLetterInfo]:
        return [row for row in client.dead("general").letters if row.conversation_id == conversation]

    for conversation in ("bulk-1", "bulk-2"):
        client.send("general", "fail in bulk", conversation_id=conversation)
    first = eventually(lambda: [*letters_of("bulk-1"), *letters_of("bulk-2")][1:] and letters_of("bulk-1"))

    conditions = ("--agent", "general", "--since", "1h", "--reason", "told to fail")
    shown = magent2.run("dead", "retry", *conditions, "--dry-run", "--json")
    assert {"bulk-1", "bulk-2"} <= {row["conversation_id"] for row in shown.json["letters"]}
    assert "nothing was changed" in shown.err
    assert first[0] in client.dead("general").letters

    retried = magent2.run("dead", "retry", *conditions)
    assert (retried.code, retried.out) == (0, "")
    assert retried.err.startswith("sent ")
    # They fail again, as other letters.
    eventually(lambda: letters_of("bulk-1") and letters_of("bulk-2") and first[0] not in letters_of("bulk-1"))

    dropped = magent2.run("dead", "drop", "--all")
    assert dropped.code == 0
    assert letters_of("bulk-1") == letters_of("bulk-2") == []


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("general",),
        ("general", "1", "--all"),
        ("--dry-run",),
        ("general", "1", "--dry-run"),
        ("--all", "--since", "yesterday"),
    ],
    ids=["nothing", "half a letter", "both", "only a dry run", "a dry run of one letter", "no time"],
)
def test_dead_letters_that_are_not_chosen_clearly_are_not_touched(
    magent2: CommandLine, arguments: tuple[str, ...]
) -> None:
    done = magent2.run("dead", "drop", *arguments)

    assert (done.code, done.out) == (2, "")


def test_stop_stops_the_run(magent2: CommandLine, client: Client) -> None:
    sent = client.send("general", "slow one", conversation_id="stopping")
    eventually(lambda: client.conversation("stopping").run_status == "running")

    done = magent2.run("stop", "stopping", *PATIENTLY)

    assert (done.code, done.out) == (0, "stopped the run of general\n")
    with pytest.raises(RunStopped):
        client.wait(sent, 10)


def test_stop_says_that_nothing_runs(magent2: CommandLine, client: Client) -> None:
    client.ask("general", "hello", conversation_id="idle")

    done = magent2.run("stop", "idle", *PATIENTLY)
    as_json = magent2.run("stop", "idle", "--json", *PATIENTLY)

    assert (done.code, done.out) == (0, "no run of general is in progress in idle; nothing was stopped\n")
    assert as_json.json["outcome"] == "nothing_to_stop"


def test_stop_says_that_no_worker_has_taken_it(magent2: CommandLine) -> None:
    magent2.run("send", "bob", "hello", "-c", "unserved")  # no worker has ever served it, so it is not active

    done = magent2.run("stop", "unserved", "--agent", "bob", "--timeout", "0.5")

    assert done.code == 0
    assert done.out.startswith("asked bob to stop; no worker has taken the stop yet")
    assert "magent2 agents ls" in done.out


def test_tail_prints_recorded_events_and_follows_until_ctrl_c(magent2: CommandLine, client: Client) -> None:
    client.ask("general", "first words", conversation_id="tailed")
    process = magent2.start("tail", "tailed")
    assert process.stdout is not None
    seen = [process.stdout.readline() for _ in range(4)]

    client.ask("general", "second words", conversation_id="tailed")
    more = [process.stdout.readline() for _ in range(4)]
    process.send_signal(signal.SIGINT)

    assert "user:local → agent:general: first words" in seen[0]
    assert "general: first words" in seen[2]
    assert "general: second words" in more[2]
    assert ended(process).code == 130


def test_tail_starts_after_since_and_filters_by_kind(magent2: CommandLine, client: Client) -> None:
    answer = client.ask("general", "some words", conversation_id="asked")
    rest = magent2.run("tail", "asked", "--no-follow", "--since", str(answer.seq), "--json").json_lines
    tokens = magent2.run("tail", "asked", "--no-follow", "--kinds", "token", "--json").json_lines

    assert [event["status"] for event in rest] == ["finished"]
    assert [event["text"] for event in tokens] == ["some ", "words"]


def test_conversations_are_listed_shown_exported_and_deleted(
    magent2: CommandLine, client: Client, tmp_path: Path
) -> None:
    client.ask("general", "keep this", conversation_id="kept")
    listed = magent2.run("conversations", "ls", "--json").json
    shown = magent2.run("conversations", "show", "kept")
    exported = magent2.run("conversations", "export", "kept", "-o", str(tmp_path / "kept.jsonl"))
    refused = magent2.run("conversations", "rm", "kept")
    deleted = magent2.run("conversations", "rm", "kept", "--yes")
    gone = magent2.run("conversations", "show", "kept")

    assert "kept" in [row["conversation_id"] for row in listed]
    assert shown.out.count("keep this") == 2
    assert (exported.code, len((tmp_path / "kept.jsonl").read_text().splitlines())) == (0, 6)
    assert (refused.code, deleted.code, gone.code) == (2, 0, 1)
    assert len(gone.err.splitlines()) == 1


def test_a_list_says_that_there_are_more_conversations(magent2: CommandLine, client: Client) -> None:
    for number in range(3):
        client.send("general", "hello", conversation_id=f"many-{number}")

    some = magent2.run("conversations", "ls", "--limit", "2")
    whole = magent2.run("conversations", "ls", "--limit", "500")

    assert len(some.lines) == 3
    assert some.err == "there are more conversations; list more of them with --limit\n"
    assert whole.err == ""


def test_replay_prints_a_recorded_conversation(magent2: CommandLine, client: Client) -> None:
    client.ask("general", "play me", conversation_id="played")

    done = magent2.run("replay", "played", "--speed", "100")

    assert done.out == "play me\n"
    assert "user:local: play me" in done.err


def test_agents_are_listed(magent2: CommandLine) -> None:
    assert {row["name"]: row["alive"] for row in magent2.run("agents", "ls", "--json").json}["general"]
    assert "alive" in magent2.run("agents", "ls").out


def test_bench_measures_and_loses_nothing(magent2: CommandLine) -> None:
    done = magent2.run("bench", "-n", "30", "-c", "5", "--json")

    assert done.code == 0
    assert (done.json["answered"], done.json["lost"], done.json["refused"]) == (30, 0, 0)
    assert set(done.json["answer_ms"]) == {"p50", "p95", "p99"}
    assert "bench-" not in magent2.run("conversations", "ls", "--json").out


def test_bench_reports_lost_messages(magent2: CommandLine) -> None:
    done = magent2.run("bench", "--agent", "bob", "-n", "2", "-c", "2", "--timeout", "0.1")

    assert done.code == 1
    assert done.err.count("accepted but not answered") == 2


def test_doctor_finds_everything_in_order(magent2: CommandLine, server: RunningServer) -> None:
    done = magent2.run("doctor", "--bus", server.bus_url, "--json")
    by_name = {finding["what"]: finding for finding in done.json["findings"]}

    assert done.code == 0, done.out
    assert {by_name[name]["status"] for name in ("python", "data", "token", "bus", "gateway", "agents")} == {"ok"}
    assert "OPENAI_API_KEY is not set" in by_name["models"]["text"]


def test_steer_waits_until_an_agent_has_read_it(magent2: CommandLine, client: Client) -> None:
    client.ask("general", "hello", conversation_id="steered")

    refused = magent2.run("steer", "steered", "hurry", "--require-active")
    plain = magent2.run("steer", "steered", "first", "--id", "k1", "--json")
    again = magent2.run("steer", "steered", "first", "--id", "k1", "--json")
    waited = magent2.run("steer", "steered", "second", "--wait", "--timeout", "30", "--target", "general")

    assert (refused.code, refused.out) == (1, "")
    assert "no run is in progress" in refused.err
    assert plain.json == again.json
    assert waited.code == 0
    assert waited.out.startswith("general ")
    assert client.receipt("steered", plain.json["receipt_id"], 10.0).status in ("seen", "answered")


async def test_the_asynchronous_client_steers_like_the_synchronous_one(server: RunningServer) -> None:
    async with AsyncClient(server.url, server.token) as client:
        await client.ask("general", "hello", conversation_id="steered-too")
        steered = await client.steer("steered-too", "and now?")
        found = await client.seen(steered, 30.0)

    assert (found.receipt_id, found.waiting) == (steered.receipt_id, 0)
    assert [one.agent_id for one in found.receipts] == ["general"]


async def test_command_line_and_clients_pass_on_what_to_do_in_a_busy_conversation(
    magent2: CommandLine, client: Client, server: RunningServer
) -> None:
    client.send("bob", "first", conversation_id="held")  # no worker serves bob, so it waits

    refused = magent2.run("send", "bob", "second", "-c", "held", "--when-busy", "reject")
    with pytest.raises(Conflict, match="is busy"):
        client.send("bob", "second", conversation_id="held", when_busy="reject")
    async with AsyncClient(server.url, server.token) as other:
        with pytest.raises(Conflict, match="is busy"):
            await other.send("bob", "second", conversation_id="held", when_busy="reject")
    queued = magent2.run("send", "bob", "third", "-c", "held", "--when-busy", "queue")

    assert (refused.code, refused.out, "is busy" in refused.err) == (1, "", True)
    assert queued.out == "conversation held seq 2\n"


# --- schedules


def test_a_schedule_of_the_command_line_is_answered_by_the_server(magent2: CommandLine, client: Client) -> None:
    added = magent2.run("schedules", "add", "wake up", "--agent", "general", "--in", "1s", "--id", "alarm")
    again = magent2.run("schedules", "add", "wake up", "--agent", "general", "--in", "1s", "--id", "alarm", "--json")

    assert (added.code, added.out) == (0, "alarm\n")
    assert again.json_lines[0]["session_id"] == "schedule-alarm"
    eventually(lambda: client.schedule("alarm").status == "ended")
    texts = eventually(lambda: [e.text for e in client.events("schedule-alarm").events if e.kind == "output"])
    assert texts == ["wake up"]
    assert "alarm  ended" in magent2.run("schedules", "ls").out
    shown = magent2.run("schedules", "show", "alarm").out
    assert "fired" in shown
    assert "wake up" in shown


def test_schedules_are_paused_resumed_run_and_deleted(magent2: CommandLine) -> None:
    options = ("--agent", "general", "--cron", "0 9 * * 1-5", "--timezone", "Europe/Berlin", "--id", "news")
    assert magent2.run("schedules", "add", "hello", *options).code == 0

    assert magent2.run("schedules", "pause", "news").err == "paused news\n"
    assert "paused" in magent2.run("schedules", "ls", "-c", "schedule-news").out
    assert magent2.run("schedules", "resume", "news").err.startswith("resumed news, next: ")
    assert "to conversation schedule-news" in magent2.run("schedules", "run", "news").err
    assert magent2.run("schedules", "rm", "news", "--yes").err == "deleted news\n"
    assert magent2.run("schedules", "show", "news").code == 1


def test_a_wrong_schedule_says_what_to_change(magent2: CommandLine) -> None:
    both = magent2.run("schedules", "add", "hello", "--agent", "general", "--in", "5m", "--cron", "0 9 * * *")
    wrong = magent2.run("schedules", "add", "hello", "--agent", "general", "--cron", "0 25 * * *")

    assert (both.code, wrong.code) == (2, 2)
    assert "exactly one of 'at', 'in' and 'cron'" in both.err
    assert "Bad hour" in wrong.err
