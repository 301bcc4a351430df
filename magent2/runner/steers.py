"""What is said to a run while it is under way, and where in its requests that stands.

A steer is shown to the model for the first time at the end of a request. The SDK knows nothing of it, so it is put into
every later request of the run again, at the same place: after as many of the SDK's own items as there were then.
The answer that has seen it is recorded with it, and takes it from the lane, in one append.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from magent2.bus.records import MailRef
from magent2.context.block import bus_message_block
from magent2.models.events import ReceiptEvent, ReceivedMessage
from magent2.sessions.folds import InputItem, steer_items
from magent2.sessions.history import RunRecord, SeenSteer

TURN_MAX_BYTES = 128 << 10  # of new steers in one request; the rest is for the next one


@dataclass(frozen=True, slots=True)
class Steer:
    """A message for a run under way, and where it lies until an answer has seen it."""

    id: str
    source: str
    text: str
    ref: MailRef

    @property
    def payload(self) -> SeenSteer:
        return {"id": self.id, "source": self.source, "text": self.text, "seq": self.ref.seq}


async def no_steers() -> Sequence[Steer]:
    """The steers of a run that cannot be steered: none."""
    return ()


class SteerLedger:
    """The steers of one attempt: those that recorded answers have seen, and those of the turn that begins."""

    def __init__(self, run: RunRecord) -> None:
        self._seen: dict[int, Sequence[SeenSteer]] = {turn: run.steers(turn) for turn in run.answers}
        self._places: dict[int, int] = {}  # turn → how many items of the SDK came before its steers
        self._recorded: set[MailRef] = set()
        self._new: tuple[Steer, ...] = ()
        self._end = 0  # how many items of the SDK came before those

    def rewind(self) -> None:
        """The SDK is run once more from the start; its requests may be shorter."""
        self._places.clear()

    def pass_turn(self, turn: int, asked: object) -> None:
        """A turn whose answer is known: its steers stand at the end of what would have been asked."""
        if self._seen.get(turn):
            self._places[turn] = len(_items(asked))

    def take(self, waiting: Sequence[Steer]) -> None:
        """These wait when the model is asked; asked again in the same turn, it is shown the same and what has come."""
        room = TURN_MAX_BYTES
        new: list[Steer] = []
        for steer in (steer for steer in waiting if steer.ref not in self._recorded):
            room -= len(steer.text.encode())
            if new and room < 0:
                break
            new.append(steer)
        self._new = tuple(new)

    def shown(self, asked: Any) -> Any:
        """The request with everything in it that was said on the way."""
        if not self._new and not self._places:
            return asked
        items = _items(asked)
        self._end = len(items)
        new = steer_items((steer.payload for steer in self._new), bus_message_block)
        for turn in sorted(self._places, reverse=True):
            # A handoff may have shortened what the SDK sends: from then on that is where the steer stands.
            place = self._places[turn] = min(self._places[turn], len(items))
            new = [*steer_items(self._seen[turn], bus_message_block), *items[place:], *new]
            items = items[:place]
        return [*items, *new]

    def end_turn(self, turn: int) -> tuple[Steer, ...]:
        """The model has answered: which steers it has seen for the first time."""
        new, self._new = self._new, ()
        if new:
            self._seen[turn] = [steer.payload for steer in new]
            self._places[turn] = self._end
            self._recorded |= {steer.ref for steer in new}
        return new


def _items(asked: object) -> list[InputItem]:
    return list(asked) if isinstance(asked, list) else [{"role": "user", "content": asked}]


def receipt(conversation: str, steers: Sequence[Steer]) -> ReceiptEvent:
    messages = [
        ReceivedMessage(id=steer.id, source=steer.source, seq=steer.ref.seq, outcome="seen", text=steer.text)
        for steer in steers
    ]
    return ReceiptEvent(conversation_id=conversation, messages=messages)
