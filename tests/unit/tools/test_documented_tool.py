"""The tool that `docs/writing-a-tool.md` prints keeps to the suite."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from magent2.bus.memory import MemoryBus
from magent2.bus.operations import Delete
from tests.contracts.sending_tool import SendingToolContract, World
from tests.support.sending import Facts

PAGE = Path(__file__).parents[3] / "docs" / "writing-a-tool.md"


class TestNote(SendingToolContract):
    @pytest.fixture
    def world(self) -> Iterator[World]:
        names: dict[str, Any] = {"__name__": "documented"}
        (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
        exec(compile(code, str(PAGE), "exec", dont_inherit=True), names)
        bus = MemoryBus()
        topics = tuple(f"{kind}:notes-of-Bea" for kind in ("stream", "chat", "history"))
        yield World(
            Facts(bus),
            names["note"],
            good=[{"to": "Bea", "text": "first"}, {"to": "Bea", "text": " second "}],
            bad=[{"to": "Bea", "text": " "}, {"to": "Bea"}, {"to": "", "text": "x"}],
            arrived=lambda: [record.payload["content"] for record in bus.read("chat:Bea")],
            wanted=["first", "second"],
            revoke=lambda: bus.call(Delete(topics, "notes-of-Bea")),
        )
        bus.close()
