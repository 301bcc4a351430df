r"""Text for terminals and logs, without the characters that control them.

A message, a tool result or an error of a provider may contain anything. An escape sequence in it could move the cursor,
set the title or the clipboard, and overwrite what is shown. A carriage return hides the line before it. A bidirectional
override shows text in another order. These characters are shown as escapes such as `\x1b` and `\u202e`.
"""

from __future__ import annotations

import re

# C0 and C1 control characters but for line feed and tab, separators of lines and paragraphs, bidirectional embeddings,
# overrides and isolates, and halves of surrogate pairs, which no output can encode.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def clean_text(text: str) -> str:
    """Return text for a terminal or a log. Line breaks and tabs are kept."""
    return _CONTROLS.sub(_escape, text.replace("\r\n", "\n"))


def clean_line(text: str) -> str:
    """Return text for one line: line breaks and tabs become spaces."""
    return clean_text(text).replace("\n", " ").replace("\t", " ")


def clean_json(document: str) -> str:
    """Return a JSON document in which these characters, which JSON allows inside of strings, are escaped."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", document)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"
