"""A bus with only the methods of contract v1."""

from __future__ import annotations

import json
from collections.abc import Iterable

from magent2.bus.interface import BusMessage


class V1Bus:
    """Keeps topics in lists. Payloads are encoded as on a network; an unknown cursor is an error."""

    def __init__(self) -> None:
        self._topics: dict[str, list[tuple[str, str]]] = {}
        self.failing: list[Exception] = []  # raised in place of the next publishes

    def publish(self, topic: str, message: BusMessage) -> str:
        if self.failing:
            raise self.failing.pop(0)
        records = self._topics.setdefault(topic, [])
        if message.id not in {record_id for record_id, _ in records}:
            records.append((message.id, json.dumps(message.payload)))
        return message.id

    def read(self, topic: str, last_id: str | None = None, limit: int = 100) -> Iterable[BusMessage]:
        records = self._topics.get(topic, [])
        if last_id is None:
            chosen = records[-limit:]
        else:
            place = [record_id for record_id, _ in records].index(last_id)
            chosen = records[place + 1 : place + 1 + limit]
        return [BusMessage(topic, json.loads(text), record_id) for record_id, text in chosen]
