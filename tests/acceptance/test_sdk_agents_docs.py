"""The program and the agents file of docs/sdk-agents.md, served by the commands of the page."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.command_line import CommandLine
from tests.support.forked_processes import ROOT
from tests.support.http_client.service import answers_at
from tests.support.model_server import Call, ModelServer, Reply
from tests.support.ports import quiet_port
from tests.support.waiting import eventually

PAGE = (ROOT / "docs" / "sdk-agents.md").read_text()
START_MAX_S = 60.0  # a cold start imports the SDK
LOOKED_UP = [Reply(calls=[Call("order_status", {"order": "A-1"})]), Reply("A-1 is on its way.")]


def block(language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M)
    return str(text)


@pytest.mark.parametrize(
    ("options", "asked", "replies", "answer"),
    [
        (("--agents", "app:team"), "triage", LOOKED_UP, "A-1 is on its way."),
        (("--config", "magent2.toml"), "reception", [Reply("Welcome.")], "Welcome."),
    ],
    ids=["program", "file"],
)
def test_the_agents_of_the_page_answer(
    tmp_path: Path, options: Sequence[str], asked: str, replies: Sequence[Reply], answer: str
) -> None:
    (tmp_path / "app.py").write_text(block("python"))
    if "--config" in options:
        (tmp_path / "magent2.toml").write_text(block("toml"))
    port = str(quiet_port())
    with ModelServer(replies) as model:
        variables = {"OPENAI_BASE_URL": model.url, "MAGENT2_URL": f"http://127.0.0.1:{port}"}
        with CommandLine(tmp_path / "data", folder=tmp_path, **variables) as commands:
            commands.start("serve", "--port", port, *options)
            eventually(lambda: answers_at(int(port)), START_MAX_S)
            sent = commands.run("send", asked, "Where is A-1?", "--wait")
            checked = commands.run("doctor", *options)

    assert (sent.code, checked.code) == (0, 0), f"{sent} {checked}"
    assert answer in sent.out
