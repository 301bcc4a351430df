"""`[mcp.NAME]`: a server of tools, a program to start or an address."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import urlsplit

from magent2.roster.spec import McpServer
from magent2.roster.table import Table

_VARIABLE = re.compile(r"\$\{([^}]*)\}")


def read_server(table: Table, name: str, environ: Mapping[str, str]) -> McpServer:
    server = McpServer(
        name,
        command=table.texts("command"),
        url=table.word("url"),
        env=_filled(table, "env", environ),
        headers=_filled(table, "headers", environ),
        tools=table.words("tools") if "tools" in table else None,
    )
    if bool(server.command) == bool(server.url):
        table.fault("", "needs either 'command' or 'url'")
    if server.url is not None and not _is_address(server.url):
        table.fault("url", "must begin with http:// or https:// and name a host")
    if server.env and not server.command:
        table.fault("env", "belongs to 'command'; an address takes 'headers'")
    if server.headers and server.url is None:
        table.fault("headers", "belong to 'url'; a program takes 'env'")
    table.know("tools")
    table.close()
    return server


def _is_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _filled(table: Table, key: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The texts of a table with `${NAME}` replaced, so that no secret needs to be in the file."""
    filled: dict[str, str] = {}
    for name, text in table.strings(key).items():
        for variable in _VARIABLE.findall(text):
            if variable not in environ:
                table.fault(f"{key}.{name}", f"needs the variable {variable!r}, which is not set")
        filled[name] = _VARIABLE.sub(lambda match: environ.get(match[1], ""), text)
    return filled
