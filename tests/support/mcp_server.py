"""A real MCP server with three tools, over its standard input and output. Run as a program.

`MCP_MARKS` names a file that gets a line for each start and each call, `MCP_KEYS` one that gets the idempotency key of
each call of `fetch`; `MCP_GREETING` comes back from `greet`.
With `MCP_GATES`, a folder, `fetch` waits there for a file with the name of the book.
"""

from __future__ import annotations

import os
from pathlib import Path

import anyio
from mcp import MCPError
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError

GATE_DEADLINE_S = 60.0
LOOK_AGAIN_S = 0.005
ERROR_CODES = {"slowly": -32001, "twice": -32602}  # of `burn`: "timed out", as a client reports it; "invalid"

server: MCPServer[None] = MCPServer("shelf", log_level="ERROR")


def mark(text: str) -> None:
    if "MCP_MARKS" in os.environ:
        with Path(os.environ["MCP_MARKS"]).open("a") as file:
            file.write(text + "\n")


@server.tool()
async def fetch(title: str, context: Context) -> str:
    """Fetch a book from the shelf."""
    mark(f"fetch {title}")
    if "MCP_KEYS" in os.environ:
        meta = dict(context.request_context.meta or {})
        with Path(os.environ["MCP_KEYS"]).open("a") as file:
            file.write(f"{meta.get('magent2/idempotency-key')}\n")
    if "MCP_GATES" in os.environ:
        gate = Path(os.environ["MCP_GATES"]) / title
        with anyio.fail_after(GATE_DEADLINE_S):
            while not gate.exists():
                await anyio.sleep(LOOK_AGAIN_S)
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
    if title in ERROR_CODES:
        raise MCPError(ERROR_CODES[title], f"it does not burn {title}")
    raise ToolError(f"{title} does not burn")


if __name__ == "__main__":
    mark("started")
    server.run()
