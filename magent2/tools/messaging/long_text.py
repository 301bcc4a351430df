"""A text that is too long for a message: its beginning is sent, the whole is attached."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from magent2.bus.log import Log
from magent2.bus.operations import Append, PutBlob
from magent2.connectors.interface import Attachment

SPILL_CHARS = 8_000  # a longer text is attached
SHOWN_CHARS = 2_000  # so much of it is in the message
SPILLED_MAX_CHARS = 1_000_000
NAME = "message.txt"


async def attach_long_text(log: Log, text: str, limit: int = SPILL_CHARS) -> tuple[str, list[dict[str, Any]]]:
    """The text to send, and what goes along. The content is pinned at once; it is nobody's until a record names it."""
    if len(text) <= limit:
        return text, []
    data = text.encode()
    name = await log.run(PutBlob(data))
    attachment = Attachment(NAME, name, "text/plain", len(data))
    rest = f"[The whole text, {len(text)} characters, is attached as {NAME}; `read_attachment` reads it: {name}]"
    return f"{text[:SHOWN_CHARS]}…\n\n{rest}", [attachment.facts()]


def with_attachments(append: Append, attachments: Sequence[Mapping[str, Any]]) -> Append:
    """The same, keeping the contents for as long as its records."""
    blobs = tuple(dict.fromkeys(str(item["sha256"]) for item in attachments))
    if not blobs:
        return append
    records = tuple(replace(record, blobs=blobs) for record in append.records)
    return Append(records=records, conditions=append.conditions, heads=append.heads)
