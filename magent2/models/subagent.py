"""Subagents by name: the conversation that one works in."""

from __future__ import annotations

import hashlib

JOINT = "~"


def subagent_id_of(conversation: str, agent: str, send_id: str) -> str:
    """The conversation of a subagent: under that of whoever starts it, the same in every attempt at the same call."""
    digest = hashlib.blake2b(send_id.encode(), digest_size=4).hexdigest()
    return f"{conversation}{JOINT}{agent}-{digest}"
