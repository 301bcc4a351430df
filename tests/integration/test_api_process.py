"""An agents file served by separate processes: what its model receives across restarts and changes.

The model is a real HTTP server, the tools are a real MCP server's, and every question goes through the gateway.
"""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.test_cli_serving import leave
from tests.support.command_line import CommandLine
from tests.support.gateway import parse_frames
from tests.support.http_client.service import quiet_port
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.waiting import eventually

RELOAD_DEADLINE_S = 30.0
FILE = """
[[scenario]]
id = "library"
root = "librarian"

[[scenario.agent]]
name = "librarian"
instructions = "{instructions}"
tools = [{tools}]
mcp = [{servers}]
handoffs = ["clerk"]

[[scenario.agent]]
name = "clerk"
role = "Sells books."
instructions = "You sell books."
tools = ["product_search"]
handoffs = ["librarian"]

[tools]
count_words = "words:count_words"

[mcp.shelf]
command = {command}
env = {{ MCP_MARKS = {marks} }}
tools = ["fetch"]
"""
TOOL = '''
def count_words(text: str) -> int:
    """Count the words of a text."""
    return len(text.split())
'''
COUNT_SCHEMA = {
    "type": "object",
    "properties": {"text": {"type": "string"}},
    "required": ["text"],
    "additionalProperties": False,
}


class Library:
    """The file of agents, the server it names, and the process that serves them."""

    def __init__(
        self, folder: Path, bus_url: str, model_url: str, commands: CommandLine, mcp_command: Sequence[str] = ()
    ) -> None:
        """With `mcp_command`, the librarian has the tools of the MCP server that it starts."""
        self._mcp_command = mcp_command
        self.marks = folder / "marks"
        self._file = folder / "library.toml"
        self._commands = commands
        self._port = ("--port", str(quiet_port()))
        self._place = ("--bus", bus_url, "--config", str(self._file))
        self._commands_of = ("serve",) if bus_url.startswith("sqlite") else ("gateway", "worker")
        key = {"OPENAI_API_KEY": "any"}  # pragma: allowlist secret
        self._variables = {**key, "OPENAI_BASE_URL": model_url, "MAGENT2_LIMIT_LEASE_S": "1"}
        (folder / "words.py").write_text(TOOL)
        self.write("You keep books.")

    def write(self, instructions: str, *tools: str) -> None:
        self._file.write_text(
            FILE.format(
                instructions=instructions,
                servers='"shelf"' if self._mcp_command else "",
                tools=", ".join(map(json.dumps, tools or ("count_words",))),
                command=json.dumps(list(self._mcp_command or ["none"])),
                marks=json.dumps(str(self.marks)),
            )
        )

    def spoil(self) -> None:
        self._file.write_text("[[scenario]]\nid = 7\n")

    @contextmanager
    def served(self) -> Iterator[tuple[list[subprocess.Popen[str]], httpx2.Client]]:
        """By one process, or, on Redis, by one for each side."""
        processes = [
            self._commands.start(name, *self._place, *(() if name == "worker" else self._port), **self._variables)
            for name in self._commands_of
        ]
        _, url, token = self._commands.greeting(processes[0])
        with httpx2.Client(base_url=url, headers={"authorization": f"Bearer {token}"}, timeout=60) as client:
            yield processes, client


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[CommandLine]:
    with CommandLine(tmp_path / "data") as commands:
        yield commands


def say(client: httpx2.Client, text: str, **fields: Any) -> dict[str, Any]:
    answer = client.post("/api/sdk/session/message", json={"session_id": "s1", "user_input": text, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def said(request: dict[str, Any]) -> list[str]:
    """What the model is shown, in its order: who said what, what was called, what came back."""
    found = []
    for item in request["input"]:
        if item.get("type") == "function_call":
            found.append(f"call: {item['name']} {item['arguments']}")
        elif item.get("type") == "function_call_output":
            found.append(f"result: {item['output']}")
        else:
            content = item["content"]
            text = content if isinstance(content, str) else "".join(part["text"] for part in content)
            found.append(f"{item['role']}: {text}")
    return found


def tools_in(request: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {tool["name"]: tool for tool in request["tools"]}


def events_after(client: httpx2.Client, since: int, count: int) -> list[list[dict[str, Any]]]:
    """The same events by each way that there is."""
    page = client.get("/api/sdk/session/s1/events", params={"since": since, "limit": count}).json()["events"]
    one = client.get("/api/sdk/session/s1/stream", params={"since": since, "max_events": count}).text
    asked: dict[str, Any] = {"session": "s1:0", "max_events": count + 1}  # the list of sessions is one
    many = client.get("/api/stream", params=asked, headers={"last-event-id": f"s1:{since}"}).text
    plain = "\n".join(line for line in many.split("\n") if not line.startswith("id: "))
    return [page, *([event.data for event in parse_frames(text) if event.data.get("seq")] for text in (one, plain))]


COUNT = Call("count_words", {"text": "to be or not"}, id="c1")
TALK = [
    "user: count: to be or not",
    'call: count_words {"text": "to be or not"}',
    "result: 4",
    "assistant: Four words.",
]


def test_everything_is_killed_in_the_middle_of_a_run(tmp_path: Path, log_url: str, commands: CommandLine) -> None:
    """The run goes on where it was, the next message continues with all that was said, and old cursors still count."""
    held = Reply("Four words.", gate=threading.Event())
    with ModelServer([Reply(calls=[COUNT]), held, Reply("Four words."), Reply("Four, as I said.")]) as model:
        house = Library(tmp_path, log_url, model.url, commands)
        with house.served() as (processes, client):
            made = {"session_id": "s1", "instructions": "You are a pirate.", "overlay": "Answer in Norwegian."}
            assert client.post("/api/sdk/session/create", json=made).status_code == 200
            ask(client, "count: to be or not", client_message_id="m1")
            (draft, *_) = eventually(lambda: tokens_of(client), RELOAD_DEADLINE_S)
            for process in processes:
                process.kill()
                process.wait(30)

        with house.served() as (processes, client):
            first = say(client, "count: to be or not", client_message_id="m1")
            second = say(client, "how many?")
            whole, rest = events_of(client, 0), events_of(client, draft["seq"])
            ways = events_after(client, draft["seq"], len(rest))
            assert [leave(process).code for process in processes] == [0] * len(processes)

    assert (first["final_output"], second["final_output"]) == ("Four words.", "Four, as I said.")
    assert [call["result"] for call in first["tool_calls"]] == ["4"]
    assert ways == [rest] * 3
    assert [event["seq"] for event in whole] == list(range(1, len(whole) + 1))
    assert [event["text"] for event in whole if event["type"] == "tool_result"] == ["4"]
    assert [event["data"]["status"] for event in rest if event["type"] == "run"][:2] == ["restarted", "finished"]
    for request in model.requests:
        assert request["instructions"] == "You are a pirate.\n\nAnswer in Norwegian."
        assert set(tools_in(request)) == {"count_words", "transfer_to_clerk"}
        assert tools_in(request)["count_words"]["parameters"] == COUNT_SCHEMA
        assert tools_in(request)["count_words"]["description"] == "Count the words of a text."
        assert "Sells books." in tools_in(request)["transfer_to_clerk"]["description"]
    shown = [said(request) for request in model.requests]
    assert shown == [TALK[:1], TALK[:3], TALK[:3], [*TALK, "user: how many?"]]


def ask(client: httpx2.Client, text: str, **fields: Any) -> None:
    """Say something, and do not wait for the answer."""
    asked = {"session_id": "s1", "user_input": text, "wait": False, **fields}
    assert client.post("/api/sdk/session/message", json=asked).status_code == 202


def events_of(client: httpx2.Client, since: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/api/sdk/session/s1/events", params={"since": since}).json()["events"]
    return found


def tokens_of(client: httpx2.Client) -> list[dict[str, Any]]:
    """The pieces of answers that are there by now."""
    return [event for event in events_of(client, 0) if event["type"] == "token"]


FETCH = Call("shelf__fetch", {"title": "Emma"}, id="f1")


def test_a_file_of_agents_is_changed_while_it_is_served(
    tmp_path: Path, commands: CommandLine, mcp_command: tuple[str, ...]
) -> None:
    def answer(request: dict[str, Any]) -> Reply:
        return Reply(calls=[FETCH]) if said(request)[-1] == "user: get me Emma" else Reply(request["instructions"])

    with ModelServer(answer) as model:
        house = Library(tmp_path, f"sqlite:///{tmp_path / 'log.db'}", model.url, commands, mcp_command)
        with house.served() as ((process,), client):
            client.post("/api/sdk/session/create", json={"session_id": "s1"})
            before = say(client, "hello")["final_output"]
            called = say(client, "get me Emma")
            by_name = client.post(
                "/api/tools/execute", json={"session_id": "s1", "tool": "shelf.fetch", "args": {"title": "Emma"}}
            ).json()

            house.write("You keep books and words.", "count_words", "weather")
            eventually(lambda: "weather" in client.get("/api/agents").text, RELOAD_DEADLINE_S)
            after = say(client, "hello")["final_output"]
            tools = client.post("/api/sdk/session/create", json={"session_id": "s1"}).json()["tools"]

            house.spoil()
            spoilt = say(client, "hello")["final_output"]
            assert "weather" in client.get("/api/agents").text
            house.write("You keep nothing.")
            eventually(lambda: "weather" not in client.get("/api/agents").text, RELOAD_DEADLINE_S)
            mended = say(client, "hello")["final_output"]
            assert leave(process).code == 0

    assert [(call["name"], call["result"]) for call in called["tool_calls"]] == [("shelf__fetch", "here is Emma")]
    assert by_name["result"] == "here is Emma"
    assert house.marks.read_text().splitlines().count("fetch Emma") == 2
    assert (before, after, spoilt) == ("You keep books.", "You keep books and words.", "You keep books and words.")
    assert mended == "You keep nothing."
    assert tools == ["count_words", "weather"]
    assert set(tools_in(model.requests[3])) == {"count_words", "weather", "shelf__fetch", "transfer_to_clerk"}
