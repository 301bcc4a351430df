"""Appends with a writer and a number, which the auditor checks."""

from __future__ import annotations

from collections.abc import Sequence

from magent2.bus.operations import Append
from magent2.bus.records import NewRecord


def append_id(writer: str, n: int) -> str:
    return f"{writer}-{n}"


def numbered_append(topics: Sequence[str], writer: str, n: int, text_chars: int = 0) -> Append:
    """Number `n` of a writer: the same record in each of the topics, all at once."""
    payload = {"writer": writer, "n": n, "text": "x" * text_chars}
    return Append(records=tuple(NewRecord(topic, payload, append_id(writer, n)) for topic in topics))
