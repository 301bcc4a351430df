"""How a message looks to a model: one block that no content can close or forge."""

from __future__ import annotations

from html import escape

LINE_BREAKS = {ord("\n"): "&#10;", ord("\r"): "&#13;"}


def bus_message_block(source: str, body: str) -> str:
    return f'<bus-message source="{_attribute(source)}">\n{escape(body, quote=False)}\n</bus-message>'


def _attribute(text: str) -> str:
    """Text between the quotes of a tag; a line break in it would look like the end of the tag's line."""
    return escape(text, quote=True).translate(LINE_BREAKS)
