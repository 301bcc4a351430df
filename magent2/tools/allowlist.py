"""What an agent's two lists allow: its own tools by name, and those of MCP servers as `server.tool`.

It may use all tools of the servers that it names (`mcp = ["files"]`), or, when its `tools` name some of them
(`"files.read"`), only those. What is named nowhere is not allowed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TypeAlias

from magent2.tools.builtins import BUILTINS

# Server → the tools of it that may be used; all of them where there is None.
Grants: TypeAlias = Mapping[str, frozenset[str] | None]


def grants_of(tools: Iterable[str], servers: Iterable[str]) -> Grants:
    """What the lists allow of MCP servers."""
    granted: dict[str, frozenset[str] | None] = {}
    for name in tools:
        server, dot, tool = name.partition(".")
        if dot:
            granted[server] = (granted.get(server) or frozenset()) | {tool}
    return {**{name: None for name in servers if name not in granted}, **granted}


def may_run(tools: Collection[str], servers: Iterable[str], name: str) -> bool:
    """Whether the lists allow a tool to be run by name. Built-in tools are not: the model's provider runs them."""
    if not name or name in BUILTINS:
        return False
    server, dot, tool = name.partition(".")
    if not dot:
        return name in tools
    granted = grants_of(tools, servers).get(server, frozenset())
    return granted is None or tool in granted
