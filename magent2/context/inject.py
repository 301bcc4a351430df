"""Injection of bus messages into the input of a model. Pure functions over input items.

The SDK keeps the conversation of a run but not the items that a filter adds before a model call. `InjectedMessages`
remembers which messages were added and where, and adds them again in every later turn. So the part of the conversation
that a model has already seen never changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from magent2.context.block import bus_message_block
from magent2.context.bus import BusMessage
from magent2.errors import TemplateRefused

InputItem: TypeAlias = Mapping[str, object]  # the SDK's TResponseInputItem, as JSON

CALL_SUFFIX = "_call"
RESULT_SUFFIX = "_call_output"


@dataclass(frozen=True, slots=True)
class InjectedMessage:
    """A message and its input item; `position` is the number of items of the conversation before it."""

    position: int
    message: BusMessage
    item: InputItem


@dataclass(frozen=True, slots=True)
class FailedInjection:
    """A message whose template could not be rendered, and the reason."""

    message: BusMessage
    error: TemplateRefused


class InjectedMessages:
    """The messages that were injected into the model calls of one run.

    Messages of the current turn are pending. `commit` keeps them after the model has answered; `roll_back` removes them
    when the call has failed.
    """

    def __init__(self) -> None:
        self._kept: list[InjectedMessage] = []
        self._pending: list[InjectedMessage] = []

    def add(self, messages: Iterable[BusMessage], position: int) -> list[FailedInjection]:
        """Inject messages after `position` items of the conversation, and return those whose template failed."""
        failed: list[FailedInjection] = []
        for message in messages:
            try:
                self._pending.append(InjectedMessage(position, message, input_item(message)))
            except TemplateRefused as error:
                failed.append(FailedInjection(message, error))
        return failed

    def apply(self, items: Sequence[InputItem]) -> list[InputItem]:
        """Return the conversation with each injected message at the position where the model first saw it."""
        positions = _safe_positions(items)
        merged: list[InputItem] = []
        taken = 0
        for injected in (*self._kept, *self._pending):
            position = positions[min(injected.position, len(items))]
            merged += items[taken:position]
            merged.append(injected.item)
            taken = position
        return merged + list(items[taken:])

    def commit(self) -> None:
        self._kept += self._pending
        self._pending = []

    def roll_back(self) -> list[BusMessage]:
        """Remove the pending messages and return them."""
        messages = [injected.message for injected in self._pending]
        self._pending = []
        return messages


def input_item(message: BusMessage) -> dict[str, str]:
    """Return the message as a user item of the model's input."""
    return {"role": "user", "content": bus_message_block(message.source, message.render())}


def for_injection(messages: Iterable[BusMessage], agent_id: str) -> list[BusMessage]:
    """Return the messages that the agent should see: all except its own broadcasts."""
    return [message for message in messages if message.target is not None or message.source != agent_id]


def _safe_positions(items: Sequence[InputItem]) -> list[int]:
    """Map each position to the first one from there on at which no tool call waits for its result.

    Models reject an item between a call and its result. When a message is first injected no call waits; but the input
    filter of a handoff may cut the conversation afterwards, and then positions refer to other items.
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
    positions = [len(items)]
    for position in range(len(items) - 1, -1, -1):
        positions.append(position if closed[position] else positions[-1])
    return positions[::-1]
