"""The team that is there without a file: supervisor, general, sales and support."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from magent2.roster.config import load
from magent2.roster.spec import Roster

DEFAULT_FILE = Path(__file__).with_name("default.toml")

# What the team uses; whoever runs it brings these.
DEFAULT_TOOLS = ("WebSearchTool", "chat_send", "echo_context", "product_search", "refund", "run_python", "weather")


@cache
def default_roster() -> Roster:
    return load(DEFAULT_FILE, DEFAULT_TOOLS).roster
