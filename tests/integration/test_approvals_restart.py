"""`magent2 serve` is killed while a call waits for a person: what is decided after the restart is what happens."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.test_cli_serving import greeting
from tests.support.command_line import CommandLine
from tests.support.http_service import quiet_port
from tests.support.waiting import eventually

SHORT_S = 1.0
PATH = "/api/sdk/session/s1"


class House:
    """The process that serves the default team with the demo model, and the commands that are typed beside it."""

    def __init__(self, commands: CommandLine, bus_url: str, **variables: str) -> None:
        self._commands = commands
        self._place = ("--port", str(quiet_port()), "--bus", bus_url, "--model", "demo")
        self._variables = variables
        self._where: tuple[str, ...] = ()

    @contextmanager
    def served(self) -> Iterator[httpx2.Client]:
        """Until it is killed, with no word of goodbye."""
        process: subprocess.Popen[str] = self._commands.start("serve", *self._place, **self._variables)
        _, url, token = greeting(process)
        self._where = ("--url", url, "--token", token)
        try:
            with httpx2.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60) as client:
                yield client
        finally:
            process.kill()
            process.wait()

    def type(self, *words: str) -> Any:
        done = self._commands.run(*words, "--json", *self._where)
        assert done.code == 0, done.err
        return done.json


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[CommandLine]:
    with CommandLine(tmp_path / "data") as commands:
        yield commands


def ask(client: httpx2.Client, order: str) -> None:
    client.post("/api/sdk/session/create", json={"session_id": "s1", "agent_name": "support"})
    said = {"session_id": "s1", "user_input": f"refund order {order}", "wait": False}
    client.post("/api/sdk/session/message", json=said)
    eventually(lambda: pending(client))


def approvals(client: httpx2.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"{PATH}/approvals").json()["approvals"]
    return found


def pending(client: httpx2.Client) -> list[str]:
    return [call["call_id"] for call in approvals(client) if call["status"] == "pending"]


def answers(client: httpx2.Client) -> list[str]:
    found = client.get(f"{PATH}/transcript").json()["messages"]
    return [message["text"] for message in found if message["role"] == "assistant"]


def test_approve_and_reject_after_every_process_was_killed(commands: CommandLine, log_url: str) -> None:
    house = House(commands, log_url)
    with house.served() as client:
        ask(client, "7")
    with house.served() as client:
        (call,) = house.type("approvals", "s1")
        assert (call["tool"], call["args"], call["status"]) == ("refund", {"order": "7"}, "pending")
        assert house.type("approve", "s1", call["call_id"])["status"] == "approved"
        first = eventually(lambda: answers(client))
        ask(client, "8")
    with house.served() as client:
        house.type("reject", "s1", pending(client)[0], "--reason", "not that one")
        eventually(lambda: len(answers(client)) == 2)
        both, calls = answers(client), approvals(client)

    assert json.loads(first[0])["refunded"] is True
    assert both[1].endswith("has rejected it: not that one")
    assert [call["status"] for call in calls] == ["approved", "rejected"]


def test_a_call_expires_and_a_run_that_waits_is_stopped_after_the_restart(commands: CommandLine, log_url: str) -> None:
    with House(commands, log_url, MAGENT2_LIMIT_APPROVAL_MAX_S=str(SHORT_S)).served() as client:
        ask(client, "7")
    house = House(commands, log_url)
    with house.served() as client:
        told = eventually(lambda: answers(client))
        ask(client, "8")
    with house.served() as client:
        assert client.post(f"{PATH}/stop").status_code == 202
        eventually(lambda: client.get(PATH).json()["state"] == "idle")
        calls = approvals(client)

    assert told == ["The call was not made: nobody has approved it in time."]
    assert [call["status"] for call in calls] == ["expired"]
