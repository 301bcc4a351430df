"""The tool calls of simulated runs. They derive from the mail, so that every attempt makes the same calls."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from magent2.models.envelope import MessageEnvelope
from magent2.tools.subagents import MESSAGE, RESULT, START

CALLS = "calls"  # metadata of mail: the kinds of calls of each turn but the last
SUBAGENT = "Kit"  # the agent that others start as a subagent

WORK, TELL, SEND, BLOCK, PAY = "work", "tell", "send", "block", "pay"  # `pay` needs approval
PICK = "pick"  # a tool that the client brings and runs
BUG_ONE_IN = 10  # one of so many calls raises an unexpected error
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
    """The call that started the subagent which this call refers to."""
    return f"{call.rsplit('-', 3)[0]}-0-0-{START}"


def result_of(call: str) -> str:
    """The result of a tool that only works."""
    return f"did {call}"


def output_of(call: str, client: str) -> str:
    """What a client says that its tool has returned."""
    return f"output of {call} from {client}"


def task_of(start: str) -> str:
    return f"task {start}"


def has_bug(call: str) -> bool:
    """Whether the tool of this call raises an unexpected error, in every attempt."""
    return stable_choice(f"bug in {call}", BUG_ONE_IN) == 0


MODELS = ("first", "second")  # of the agent of some mail


def has_two_models(envelope_id: str) -> bool:
    """Whether the agent that answers this mail has two models."""
    return stable_choice(f"models of {envelope_id}", 2) == 0


def stable_choice(text: str, sides: int) -> int:
    """A choice that depends only on the text, so that it is the same in every attempt."""
    return zlib.crc32(text.encode()) % sides
