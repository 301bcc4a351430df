"""Formatting of a message for a model, as one block that no content can close or forge.

This module imports neither pydantic nor Jinja2, so that formatting a block stays cheap to import.
"""

from __future__ import annotations

from html import escape

LINE_BREAKS = {ord("\n"): "&#10;", ord("\r"): "&#13;"}


def bus_message_block(source: str, body: str) -> str:
    """Return the message as a `<bus-message>` element with source and body escaped."""
    attribute = escape(source, quote=True).translate(LINE_BREAKS)  # the opening tag must stay on one line
    return f'<bus-message source="{attribute}">\n{escape(body, quote=False)}\n</bus-message>'
