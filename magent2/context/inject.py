"""From messages to what a model reads. Pure: items are the dicts that a model is sent.

An item that was added before a model call is not part of the conversation that the SDK keeps. The ledger remembers
what was added and where, and adds it again in every later turn, so that a model never sees its own past change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from magent2.context.block import bus_message_block
from magent2.context.message import BusMessage
from magent2.errors import TemplateRefused

Item: TypeAlias = Mapping[str, Any]

CALL_SUFFIX = "_call"
RESULT_SUFFIX = "_call_output"


@dataclass(frozen=True, slots=True)
class Shown:
    """A message as a model saw it, after so many items of the conversation."""

    place: int
    message: BusMessage
    item: Item


@dataclass(frozen=True, slots=True)
class Unshown:
    """A message that could not be rendered, and why."""

    message: BusMessage
    error: TemplateRefused


class Ledger:
    """The messages that the model of one run has been shown.

    Those of the turn under way are open. `commit` keeps them, because the model has answered; `roll_back` takes them
    out, because it has not.
    """

    def __init__(self) -> None:
        self._kept: list[Shown] = []
        self._open: list[Shown] = []

    def show(self, messages: Iterable[BusMessage], place: int) -> list[Unshown]:
        """Add messages after `place` items of the conversation. A template that fails costs its own message only."""
        failed: list[Unshown] = []
        for message in messages:
            try:
                self._open.append(Shown(place, message, item_of(message)))
            except TemplateRefused as error:
                failed.append(Unshown(message, error))
        return failed

    def apply(self, items: Sequence[Item]) -> list[Item]:
        """The conversation with every message where it was first seen."""
        places = _safe_places(items)
        merged: list[Item] = []
        taken = 0
        for shown in (*self._kept, *self._open):
            place = places[min(shown.place, len(items))]
            merged += items[taken:place]
            merged.append(shown.item)
            taken = place
        return merged + list(items[taken:])

    def commit(self) -> None:
        self._kept += self._open
        self._open = []

    def roll_back(self) -> list[BusMessage]:
        """Forget the open messages, and say which they were."""
        messages = [shown.message for shown in self._open]
        self._open = []
        return messages


def item_of(message: BusMessage) -> Item:
    return {"role": "user", "content": bus_message_block(message.source, message.render())}


def for_injection(messages: Iterable[BusMessage], agent_id: str) -> list[BusMessage]:
    """What the agent is to be told: all but its own words to everybody."""
    return [message for message in messages if message.target is not None or message.source != agent_id]


def _safe_places(items: Sequence[Item]) -> list[int]:
    """For each place, the first from there on where no tool call waits for its result: models take nothing in between.

    At the time that a message is first seen no call waits. But a handoff's filter may cut a conversation, and places in
    it are no longer what they were.
    """
    waiting: set[object] = set()
    closed: list[bool] = [True]
    for item in items:
        kind = str(item.get("type", ""))
        if kind.endswith(RESULT_SUFFIX):
            waiting.discard(item.get("call_id"))
        elif kind.endswith(CALL_SUFFIX) and item.get("call_id") is not None:
            waiting.add(item.get("call_id"))
        closed.append(not waiting)
    places = [len(items)]
    for place in range(len(items) - 1, -1, -1):
        places.append(place if closed[place] else places[-1])
    return places[::-1]
