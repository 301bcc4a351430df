"""A real MCP server with three tools, over its standard input and output. Run as a program.

`MCP_MARKS` names a file that gets a line for each start and each call; `MCP_GREETING` comes back from `greet`.
"""

from __future__ import annotations

import os
from pathlib import Path

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server: MCPServer[None] = MCPServer("shelf", log_level="ERROR")


def mark(text: str) -> None:
    if "MCP_MARKS" in os.environ:
        with Path(os.environ["MCP_MARKS"]).open("a") as file:
            file.write(text + "\n")


@server.tool()
def fetch(title: str) -> str:
    """Fetch a book from the shelf."""
    mark(f"fetch {title}")
    return f"here is {title}"


@server.tool()
def greet() -> str:
    """Say hello."""
    return os.environ.get("MCP_GREETING", "hello")


@server.tool()
def burn(title: str) -> str:
    """Burn a book."""
    mark(f"burn {title}")
    if title == "everything":
        os._exit(3)
    raise ToolError(f"{title} does not burn")


if __name__ == "__main__":
    mark("started")
    server.run()
