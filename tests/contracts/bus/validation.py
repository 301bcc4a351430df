"""Promise 8: a payload is a JSON object of bounded size, on every engine and through every method."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from magent2.bus.interface import BusMessage
from magent2.bus.operations import Append
from magent2.bus.records import NewRecord
from magent2.errors import IdError, LimitError, PayloadError, PayloadTooLarge, TopicError
from tests.contracts.bus.driver import BusDriver

PAYLOAD_MAX_BYTES = 1 << 20

NOT_JSON_OBJECTS: dict[str, Any] = {
    "list": [1],
    "text": "hello",
    "nothing": None,
    "bytes": b"{}",
    "not a number": {"x": float("nan")},
    "infinity": {"deep": [{"x": float("inf")}]},
    "date": {"x": datetime(2026, 1, 1, tzinfo=UTC)},
    "number as key": {1: "x"},
    "set": {"x": {1, 2}},
    "object": {"x": object()},
    "integer over 64 bits": {"x": 2**64},
    "half a character": {"x": "\ud800"},
}


class ValidationTests:
    @pytest.mark.parametrize("kind", NOT_JSON_OBJECTS)
    def test_a_payload_that_is_not_a_json_object_is_refused(self, bus: BusDriver, kind: str) -> None:
        with pytest.raises(PayloadError):
            bus.engine.publish("chat:a", BusMessage("chat:a", NOT_JSON_OBJECTS[kind]))

        assert bus.info("chat:a").last == 0

    def test_a_payload_over_the_cap_refuses_the_whole_append(self, bus: BusDriver) -> None:
        huge = {"x": "y" * (PAYLOAD_MAX_BYTES - 7)}

        with pytest.raises(PayloadTooLarge):
            bus.append(NewRecord("stream:a", {}), NewRecord("stream:b", huge))

        assert bus.info("stream:a").last == bus.info("stream:b").last == 0

    def test_a_payload_at_the_cap_goes_through(self, bus: BusDriver) -> None:
        full = {"x": "y" * (PAYLOAD_MAX_BYTES - 8)}

        bus.put("stream:a", full)

        assert bus.read("stream:a")[0].payload == full

    @pytest.mark.parametrize("topic", ["", "x" * 513, "chat:\n", "chat:\0", None, 7])
    def test_a_topic_that_no_log_can_have_is_refused(self, bus: BusDriver, topic: Any) -> None:
        with pytest.raises(TopicError):
            bus.engine.publish(topic, BusMessage(topic, {}))
        with pytest.raises(TopicError):
            bus.engine.read(topic)

    @pytest.mark.parametrize("record_id", ["", "x" * 257, "@1", "a\nb"])
    def test_an_id_that_cannot_be_used_is_refused(self, bus: BusDriver, record_id: str) -> None:
        with pytest.raises(IdError):
            bus.engine.publish("chat:a", BusMessage("chat:a", {}, id=record_id))

        assert bus.info("chat:a").last == 0

    @pytest.mark.parametrize("limit", [0, -1, 10_001, True])
    def test_a_limit_outside_its_range_is_refused(self, bus: BusDriver, limit: int) -> None:
        with pytest.raises(LimitError):
            bus.engine.read("chat:a", limit=limit)

    def test_the_longest_topic_and_id_work(self, bus: BusDriver) -> None:
        topic, record_id = "x" * 512, "🦉" * 256

        bus.do(Append(records=(NewRecord(topic, {"x": 1}, record_id),)))

        assert [(r.topic, r.id) for r in bus.read(topic)] == [(topic, record_id)]
