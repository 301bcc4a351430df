"""An agents file that changes while `magent2 serve` runs."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from magent2.bus.log import run_sync
from magent2.bus.sqlite import SqliteBus
from magent2.client import Client
from magent2.directory.keys import create_key
from magent2.mail.registration import register_agent
from tests.support.command_line import CommandLine
from tests.support.waiting import eventually

DEADLINE_S = 30.0
HEAD = """
[limits]
text_max_chars = 20
wait_max_s = 600
send_per_s = 0.001
send_burst = 3

[[scenario]]
id = "default"
root = "front"
"""
FRONT = '[[scenario.agent]]\nname = "front"\ntools = ["echo_context"]\n'
BACK = '[[scenario.agent]]\nname = "back"\n'


class Serving:
    """The process, a client of it, and the lines of its stderr."""

    def __init__(self, commands: CommandLine, process: subprocess.Popen[str], file: Path) -> None:
        self.process, self.file = process, file
        _, url, token = commands.greeting(process)
        self.client = Client(url, token)
        self.http = httpx2.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=DEADLINE_S)
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.said.extend(self.process.stderr)

    def heard(self, words: str) -> None:
        eventually(lambda: words in "".join(self.said), DEADLINE_S)

    def agents(self) -> dict[str, bool]:
        return {one["name"]: one["alive"] for one in self.http.get("/api/agents").json()["agents"]}

    def served(self) -> list[str]:
        return [one["name"] for one in self.http.get("/api/workers").json()["agents"] if one["alive"]]

    def send(self, agent: str, text: str, conversation: str) -> dict[str, Any]:
        body = {"conversation_id": conversation, "sender": "user:me", "recipient": f"agent:{agent}", "content": text}
        answer: dict[str, Any] = self.http.post("/send", json=body).json()
        return answer

    def close(self) -> None:
        self.client.close()
        self.http.close()
        self.process.terminate()
        self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    file = tmp_path / "magent2.toml"
    file.write_text(HEAD + FRONT)
    with CommandLine(tmp_path / "data") as commands:
        place = ("--port", "0", "--config", str(file), "--bus", f"sqlite:///{tmp_path / 'log.db'}")
        started = commands.start("serve", *place, MAGENT2_LIMIT_WAIT_MAX_S="0.1")
        found = Serving(commands, started, file)
        try:
            yield found
        finally:
            found.close()


def test_agents_join_change_and_leave_without_a_restart_and_a_broken_file_changes_nothing(serving: Serving) -> None:
    client, file = serving.client, serving.file
    assert client.ask("front", "hello", timeout_s=DEADLINE_S).text == "hello"
    waiting = serving.send("back", "too early", "early")
    assert "no worker serves 'back'" in waiting["notice"]

    file.write_text(HEAD + FRONT + BACK)
    eventually(lambda: serving.agents() == {"front": True, "back": True}, DEADLINE_S)
    assert client.ask("back", "and you?", timeout_s=DEADLINE_S).text == "and you?"
    eventually(lambda: client.conversation("early").run_status == "finished", DEADLINE_S)

    file.write_text(HEAD + FRONT + "tools = 5")
    serving.heard("roster not reloaded")
    serving.process.send_signal(signal.SIGHUP)
    serving.heard("the team is unchanged")
    assert serving.served() == ["back", "front"]
    assert client.ask("back", "still here?", timeout_s=DEADLINE_S).text == "still here?"

    file.write_text(HEAD + FRONT.replace("echo_context", "weather"))
    serving.process.send_signal(signal.SIGHUP)
    serving.heard("agents file reloaded: front")
    eventually(lambda: serving.served() == ["front"], DEADLINE_S)
    eventually(lambda: "no worker serves 'back' now" in _notice(serving, "left"), DEADLINE_S)
    assert list(serving.agents()) == ["front"]
    assert _tools_of_next_run(serving) == (403, 200)

    file.write_text(HEAD + FRONT + BACK)
    eventually(lambda: client.conversation("left").run_status == "finished", DEADLINE_S)


def _notice(serving: Serving, conversation: str) -> str:
    return str(serving.send("back", "hello", conversation).get("notice", ""))


def _tools_of_next_run(serving: Serving) -> tuple[int, int]:
    """The statuses of running the tool that the agent had before, and the one that it has now."""
    serving.http.post("/api/sdk/session/create", json={"session_id": "s1", "agent_name": "front"})
    bodies = [
        {"session_id": "s1", "tool": "echo_context", "args": {}, "client_message_id": "k1"},
        {"session_id": "s1", "tool": "weather", "args": {"city": "Oslo"}, "client_message_id": "k2"},
    ]
    had, has = (_until_done(serving, body) for body in bodies)
    return had, has


def _until_done(serving: Serving, body: dict[str, Any]) -> int:
    """The status of the result. The gateway of this test waits only briefly, so it is asked again."""

    def look() -> int:
        code = serving.http.post("/api/tools/execute", json=body).status_code
        return 0 if code == 202 else code

    return eventually(look, DEADLINE_S)


def test_limits_of_the_file_apply_and_the_environment_overrides_them(serving: Serving) -> None:
    key = _prepare_log(serving.file.parent)
    long = serving.send("front", "x" * 21, "long")
    serving.send("nobody", "wait for ever", "slow")  # which makes it the active agent of the session
    slow = serving.http.post("/api/sdk/session/message", json={"session_id": "slow", "user_input": "hello"})
    ann = {"authorization": f"Bearer {key}"}
    body = {"conversation_id": "anns", "recipient": "agent:front", "content": "hello"}
    sends = [serving.http.post("/send", json=body, headers=ann).status_code for _ in range(4)]

    assert (long["code"], long["detail"]) == ("too_long", "a text has at most 20 characters, not 21")
    assert (slow.status_code, slow.json()["status"]) == (
        202,
        "in_progress",
    )  # not after the ten minutes of the file
    assert sends == [200, 200, 200, 429]


def _prepare_log(folder: Path) -> str:
    """Make an agent known that no worker serves, and return a new key."""
    bus = SqliteBus(folder / "log.db")
    try:
        run_sync(bus, register_agent, "nobody")
        return run_sync(bus, create_key, ("user:ann",)).text
    finally:
        bus.close()
