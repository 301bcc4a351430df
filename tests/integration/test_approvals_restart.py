"""`magent2 serve` is killed while a call waits for approval: a decision after the restart is applied, and a
call without a decision expires, on any worker."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.support.command_line import CommandLine
from tests.support.http_client.service import quiet_port
from tests.support.waiting import DEADLINE_S, eventually

PATH = "/api/sdk/session/"
EXPIRY_S = 10  # longer than it takes to see that a call waits, also on a busy machine


class ServedTeam:
    """The process that serves the default team with the demo model, and the commands that are typed beside it."""

    def __init__(self, commands: CommandLine, bus_url: str) -> None:
        self._commands = commands
        self._place = ("--port", str(quiet_port()), "--bus", bus_url, "--model", "demo")
        self._where: tuple[str, ...] = ()

    @contextmanager
    def served(self, **variables: str) -> Iterator[httpx2.Client]:
        """Until it is killed, with no word of goodbye."""
        process: subprocess.Popen[str] = self._commands.start("serve", *self._place, **variables)
        _, url, token = self._commands.greeting(process)
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


def ask(client: httpx2.Client, session: str) -> str:
    """The call that waits in the session."""
    client.post(f"{PATH}create", json={"session_id": session, "agent_name": "support"})
    said = {"session_id": session, "user_input": f"refund order {session}", "wait": False}
    client.post(f"{PATH}message", json=said)
    (call,) = eventually(lambda: approvals(client, session))
    return str(call["call_id"])


def approvals(client: httpx2.Client, session: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get(f"{PATH}{session}/approvals").json()["approvals"]
    return found


def statuses(client: httpx2.Client, session: str) -> list[str]:
    return [call["status"] for call in approvals(client, session)]


def answers(client: httpx2.Client, session: str) -> list[str]:
    found = client.get(f"{PATH}{session}/transcript").json()["messages"]
    return [message["text"] for message in found if message["role"] == "assistant"]


def test_a_decision_after_all_processes_were_killed_is_applied(commands: CommandLine, log_url: str) -> None:
    team = ServedTeam(commands, log_url)
    with team.served() as client:
        calls = {session: ask(client, session) for session in ("yes", "no", "stop")}
    with team.served(MAGENT2_LIMIT_APPROVAL_MAX_S=str(EXPIRY_S)) as client:
        assert team.type("approve", "yes", calls["yes"])["status"] == "approved"
        assert team.type("reject", "no", calls["no"], "--reason", "not that one")["status"] == "rejected"
        assert client.post(f"{PATH}stop/stop").status_code == 202
        (yes,) = eventually(lambda: answers(client, "yes"))
        (no,) = eventually(lambda: answers(client, "no"))
        eventually(lambda: client.get(f"{PATH}stop").json()["state"] == "idle")
        shown = {session: statuses(client, session) for session in calls}
        forgotten = ask(client, "late")
        waiting = statuses(client, "late")
    with team.served() as client:
        (late,) = eventually(lambda: answers(client, "late"), EXPIRY_S + DEADLINE_S)
        refused = client.post(f"{PATH}late/approvals/{forgotten}", json={"decision": "approve"})
        expired = statuses(client, "late")

    assert yes.startswith("Order yes is paid back")
    assert no.endswith("has rejected it: not that one")
    assert shown == {"yes": ["approved"], "no": ["rejected"], "stop": []}
    assert (waiting, expired) == (["pending"], ["expired"])
    assert late.endswith("it was not approved in time.")
    assert (refused.status_code, refused.json()["code"]) == (409, "already_decided")
