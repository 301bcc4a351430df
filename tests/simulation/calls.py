"""What a model calls in a simulated run. The mail says it, so every attempt asks for the same."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from magent2.models.envelope import MessageEnvelope
from magent2.tools.subagents import MESSAGE, RESULT, START

CALLS = "calls"  # metadata of mail: the kinds of calls of each turn but the last
SUBAGENT = "Kit"  # the agent that others start; it knows nothing but its task

WORK, TELL, SEND, BLOCK, PAY = "work", "tell", "send", "block", "pay"  # `pay` needs a person's approval
KINDS = (WORK, TELL, SEND, BLOCK, BLOCK, PAY, PAY)
SUBAGENT_PLANS = ([[START], [RESULT]], [[START], [MESSAGE, RESULT]], [[START, WORK], [MESSAGE], [RESULT]])


def call_ids(envelope: MessageEnvelope) -> list[list[str]]:
    """The calls of each turn but the last."""
    turns = _plan(envelope)
    return [
        [f"{envelope.id}-{turn}-{place}-{kind}" for place, kind in enumerate(kinds)] for turn, kinds in enumerate(turns)
    ]


def _plan(envelope: MessageEnvelope) -> Sequence[Sequence[str]]:
    if envelope.recipient == f"agent:{SUBAGENT}":
        return [[WORK]] * stable_choice(envelope.id, 3)
    found: Sequence[Sequence[str]] = envelope.metadata.get(CALLS, [])
    return found


def turn_of(call: str) -> int:
    return int(call.rsplit("-", 3)[1])


def kind_of(call: str) -> str:
    return call.rpartition("-")[2]


def start_of(call: str) -> str:
    """The call that has started the agent which this call is about."""
    return f"{call.rsplit('-', 3)[0]}-0-0-{START}"


def result_of(call: str) -> str:
    """What a tool answers that does nothing but work."""
    return f"did {call}"


def task_of(start: str) -> str:
    return f"task {start}"


def stable_choice(text: str, sides: int) -> int:
    """A die that falls the same way in every attempt."""
    return zlib.crc32(text.encode()) % sides
