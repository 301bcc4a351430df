"""What the documents print about the bus inside a run works as printed."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from magent2.context import MessageBus, templates
from magent2.context.bus import CONTENT_MAX_CHARS, NAME_MAX_CHARS
from tests.support.model_server import ModelServer, Reply

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/message-bus.md").read_text()
BLOCK = re.compile(r"```python\n(.*?)```", re.S)


async def run(code: str, names: dict[str, Any]) -> None:
    awaited = eval(compile(code, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.iscoroutine(awaited):
        await awaited


async def test_the_examples_of_the_page_run_one_after_another(capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, Any] = {}

    for code in BLOCK.findall(PAGE):
        await run(code, names)

    assert capsys.readouterr().out.startswith("[user] Focus on security\nassistant says:")
    assert names["events"][-1].event.text == "And the tests?"
    assert names["kinds"].count("tool_step") == 2
    assert {event.agent_id for event in names["found"]} == {names["sub_ctx"].agent_id}


async def test_the_readmes_agent_answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    section = (ROOT / "README.md").read_text().split("## Use it inside your own process")[1].split("\n## ")[0]
    (code,) = BLOCK.findall(section)
    names: dict[str, Any] = {}

    with ModelServer([Reply("It is fine")]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "key")
        await run(code.partition("asyncio.run")[0], names)
        names["on_user_input"]("Focus on security")
        await names["main"]()

    assert "It is fine" in capsys.readouterr().out.splitlines()[-1]
    assert "Focus on security" in server.requests[0]["input"][1]["content"]


def test_the_page_tells_the_limits_as_they_are() -> None:
    assert f"{CONTENT_MAX_CHARS:,} characters of content, {NAME_MAX_CHARS:,} of an id" in PAGE
    assert f"{templates.SOURCE_MAX_CHARS:,} characters of template" in PAGE
    assert f"over {templates.OUTPUT_MAX_CHARS:,} characters" in PAGE
    assert f"the filters `{' '.join(sorted(templates.FILTERS))}`" in PAGE
    assert templates.FILTERS_MAX == 8
    told = set(re.findall(r"^\| `(\w+)\(", PAGE, re.M))
    assert told == {name for name in vars(MessageBus) if not name.startswith("_")} - {"maxlen", "subscribers"} | {
        "MessageBus"
    }
