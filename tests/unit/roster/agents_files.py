"""Agents files for tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from magent2.errors import RosterError
from magent2.roster.agents_file import load_agents_file
from magent2.roster.spec import Roster

TOOLS = ("weather", "WebSearchTool")

PAIR = """
[[scenario]]
id = "desk"
root = "ann"

[[scenario.agent]]
name = "ann"
handoffs = ["bob"]
tools = ["weather"]

[[scenario.agent]]
name = "bob"
"""

# A file of one scenario with one agent; keys of the agent can be appended.
AGENT = '[[scenario]]\nid = "s"\n[[scenario.agent]]\nname = "a"\n'


def write_agents_file(folder: Path, text: str) -> Path:
    path = folder / "magent2.toml"
    path.write_text(text)
    return path


def read_roster(folder: Path, text: str, environ: dict[str, str] | None = None) -> Roster:
    return load_agents_file(write_agents_file(folder, text), TOOLS, environ).roster


def faults_of(folder: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    with pytest.raises(RosterError) as raised:
        read_roster(folder, text, environ)
    assert raised.value.where.endswith("magent2.toml")
    return list(raised.value.faults)
