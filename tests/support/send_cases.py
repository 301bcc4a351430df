"""Test cases of the seven sending tools, and a bus with a recipient for each of them.

Ann's agent Ada works in conversation `one`. She has a folder of files, friends bob and cat, a channel, a swarm @desk,
and other agents; `arrived` returns what each recipient got.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from magent2.bus.interface import Engine
from magent2.bus.log import run_sync
from magent2.bus.memory import MemoryBus
from magent2.mail.registration import register_agent
from magent2.tools.default_tools import standard_tools
from magent2.tools.definition import ToolDefinition
from magent2.tools.messaging import messaging_tools
from tests.support.directory_fixture import (
    channel_messages,
    inbox,
    message_files,
    message_texts,
    open_channel,
    open_swarm,
    populate_directory,
)
from tests.support.worker_fixture import send

FILE = "note.txt"


@dataclass(frozen=True)
class SendCase:
    """One tool: a valid call, what arrives where because of it, and invalid calls."""

    tool: str
    arguments: dict[str, Any]
    arrived: Callable[[Engine], list[str]]
    wanted: list[str]
    bad: list[dict[str, Any]]

    def code(self, **more: Any) -> str:
        return call_code(self.tool, {**self.arguments, **more})


def call_code(tool: str, arguments: dict[str, Any]) -> str:
    return f"{tool}({', '.join(f'{name}={value!r}' for name, value in arguments.items())})\n"


SEND_CASES = (
    SendCase(
        "say",
        {"text": "hello"},
        lambda bus: [text for text in message_texts(bus) if text],  # a file has none
        ["hello"],
        [{"text": " "}, {"text": "x", "reply_to": "nobody"}],
    ),
    SendCase(
        "send_file",
        {"path": FILE},
        message_files,
        [f"{FILE}: a note"],
        [{"path": "none.txt"}, {"path": "../Ada/note.txt"}, {"path": FILE, "send_as": "photo"}],
    ),
    SendCase(
        "send_user_message",
        {"text": "done", "nametag": "@desk"},
        lambda bus: inbox(bus, "Desk"),
        ["user:ann: done"],
        [{"text": "", "nametag": "@desk"}, {"text": "hi", "nametag": "@nobody"}],
    ),
    SendCase(
        "send_agent_message",
        {"text": "well", "agent": "Bea"},
        lambda bus: inbox(bus, "Bea"),
        ["agent:Ada: well"],
        [{"text": " ", "agent": "Bea"}, {"text": "hi", "agent": "Nobody"}, {"text": "hi", "agent": "Ada"}],
    ),
    SendCase(
        "friend_send",
        {"nametag": "@bob", "text": "hi bob"},
        lambda bus: [line for line in inbox(bus, "Bo") if line.startswith("user:")],
        ["user:ann: hi bob"],
        [{"nametag": "@bob", "text": ""}, {"nametag": "@dan", "text": "hi"}, {"nametag": "@desk", "text": "hi"}],
    ),
    SendCase(
        "channel_send",
        {"channel": "launch", "text": "news", "mentions": ["@cat"]},
        lambda bus: [
            *channel_messages(bus),
            *inbox(bus, "Cleo"),
            *(line for line in inbox(bus, "Bo") if "channel:" in line),
        ],
        ["ann: news", *["channel:launch: @ann in #launch: news"] * 2],
        [{"channel": "none", "text": "hi"}, {"channel": "launch", "text": "hi", "mentions": ["@dan"]}],
    ),
    SendCase(
        "chat_send",
        {"recipient": "agent:Cy", "content": "psst", "conversation_id": "aside"},
        lambda bus: inbox(bus, "Cy"),
        ["agent:Ada: psst"],
        [{"recipient": "Cy", "content": "x"}, {"recipient": "agent:Cy", "content": " "}],
    ),
)
BY_TOOL = {way.tool: way for way in SEND_CASES}
ALL_SENDS = "".join(way.code() for way in SEND_CASES)  # all seven in one block


def sending_tools() -> list[ToolDefinition]:
    return [*messaging_tools(), standard_tools().get("chat_send")]


def all_arrived(bus: Engine) -> dict[str, list[str]]:
    """What has arrived, by tool."""
    return {way.tool: found for way in SEND_CASES if (found := way.arrived(bus))}


def expected_arrivals(*ways: SendCase) -> dict[str, list[str]]:
    return {way.tool: way.wanted for way in ways}


@contextmanager
def directory_bus(folder: Path, monkeypatch: pytest.MonkeyPatch, asked: str = "go") -> Iterator[MemoryBus]:
    """A bus with the directory and a pending message for Ada."""
    own = folder / "files" / "Ada"
    own.mkdir(parents=True)
    (own / FILE).write_text("a note")
    monkeypatch.setenv("MAGENT2_FILES_DIR", str(folder / "files"))
    bus = MemoryBus()
    populate_directory(bus)
    open_channel(bus)
    open_swarm(bus)
    for agent in ("Bea", "Ada"):
        run_sync(bus, register_agent, agent)
    send(bus, asked)
    yield bus
    bus.close()
