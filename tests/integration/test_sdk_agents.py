"""`magent2 serve --agents`: agents of the operator's own SDK code, served by processes that are killed."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from magent2.client import Client
from tests.support.command_line import CommandLine
from tests.support.http_client.service import quiet_port
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.waiting import eventually

APP = '''
import asyncio
from pathlib import Path

from agents import Agent, function_tool

CALLS = Path(__file__).with_name("calls")


def note(line: str) -> None:
    with CALLS.open("a") as file:
        file.write(line + "\\n")


@function_tool
def order_status(order: str) -> str:
    """The status of an order."""
    note("order_status")
    return f"{order} is on its way"


@function_tool
async def stock(item: str) -> str:
    """How many of an item there are."""
    await asyncio.sleep(0)
    note("stock")
    return "7"


@function_tool(needs_approval=True)
async def refund(order: str) -> str:
    """Pay an order back."""
    note("refund")
    return f"{order} is paid back"


refunds = Agent(name="refunds", handoff_description="Pays orders back.", instructions="You pay back.", tools=[refund])
triage = Agent(name="triage", instructions="You help.", tools=[order_status, stock], handoffs=[refunds])
team = [triage, refunds]
'''
QUESTION = "where is A-1, and pay it back"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


def calls(folder: Path) -> Counter[str]:
    return Counter((folder / "calls").read_text().split())


class Script:
    """The model: two tools, then a handoff, then the tool that needs approval, then the answer."""

    def __init__(self) -> None:
        self.handed_off = threading.Event()
        self.release = threading.Event()
        self.instructions: list[str] = []

    def __call__(self, request: dict[str, Any]) -> Reply:
        self.instructions.append(request["instructions"])
        match sum(item.get("type") == "function_call_output" for item in request["input"]):
            case 0:
                return Reply(calls=[Call("order_status", {"order": "A-1"}, "c1"), Call("stock", {"item": "B"}, "c2")])
            case 2:
                return Reply(calls=[Call("transfer_to_refunds", {}, "c3")])
            case 3:
                # The first attempt is held in the middle of its answer, where its process is killed.
                first = not self.handed_off.is_set()
                self.handed_off.set()
                gate = self.release if first else None
                return Reply("One moment, please.", calls=[Call("refund", {"order": "A-1"}, "c4")], gate=gate)
            case _:
                return Reply("A-1 is paid back.")


class Served:
    """Processes of `magent2 serve --agents app:team`, one after the other on one log."""

    def __init__(self, folder: Path, server: ModelServer) -> None:
        self._options = ("--agents", "app:team", "--port", str(quiet_port()))
        self._variables = {"OPENAI_API_KEY": "any", "OPENAI_BASE_URL": server.url}  # pragma: allowlist secret
        self._commands = CommandLine(folder / "data", folder=folder, **self._variables)

    @contextmanager
    def until_killed(self) -> Iterator[Client]:
        with self._commands:
            process = self._commands.start("serve", *self._options)
            _, url, token = self._commands.greeting(process)
            with Client(url, token) as client:
                try:
                    yield client
                finally:
                    process.kill()
                    process.wait()


def test_an_sdk_team_is_answered_once_although_its_process_is_killed_twice(folder: Path) -> None:
    script = Script()
    with ModelServer(script) as server:
        served = Served(folder, server)
        with served.until_killed() as client:
            sent = client.send("triage", QUESTION, conversation_id="one")
            assert script.handed_off.wait(60)
        script.release.set()
        with served.until_killed() as client:
            (call,) = eventually(lambda: client.approvals("one"))
            before = calls(folder)
        with served.until_killed() as client:
            client.decide("one", call.call_id, "approve")
            reply = client.wait(sent, 60)
            seen = [event.data for event in client.events("one", limit=500).events]
            active = client.conversation("one").active_agent
            agents = {agent.name for agent in client.agents() if agent.alive}

    assert (call.tool, before) == ("refund", Counter(order_status=1, stock=1))
    assert reply.text == "A-1 is paid back."
    assert calls(folder) == Counter(order_status=1, stock=1, refund=1)
    assert [event["text"] for event in seen if event["event"] == "output"] == ["A-1 is paid back."]
    assert (active, agents) == ("refunds", {"triage", "refunds"})
    assert Counter(script.instructions) == Counter({"You help.": 2, "You pay back.": 3})
