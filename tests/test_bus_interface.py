"""Contract v1 of the bus, on a double of a few lines: what any object has to do that wants to be one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from magent2.bus.interface import Bus, BusMessage
from magent2.bus.memory import MemoryBus
from tests.support.engines import ENGINES, new_engines


class InMemoryBus:
    """The smallest bus there can be."""

    def __init__(self) -> None:
        self._topics: dict[str, list[BusMessage]] = {}

    def publish(self, topic: str, message: BusMessage) -> str:
        log = self._topics.setdefault(topic, [])
        if all(known.id != message.id for known in log):
            log.append(message)
        return message.id

    def read(self, topic: str, last_id: str | None = None, limit: int = 100) -> Iterable[BusMessage]:
        log = self._topics.get(topic, [])
        if last_id is None:
            return log[-limit:]
        start = [message.id for message in log].index(last_id) + 1
        return log[start : start + limit]


@pytest.fixture(params=[InMemoryBus, MemoryBus])
def bus(request: pytest.FixtureRequest) -> Bus:
    made: Bus = request.param()
    return made


def fill(bus: Bus, count: int) -> list[str]:
    return [bus.publish("chat:conv1", BusMessage("chat:conv1", {"n": n})) for n in range(count)]


def test_a_message_has_a_topic_a_payload_and_an_id_of_its_own() -> None:
    first, second = BusMessage("chat:conv1", {"n": 1}), BusMessage(topic="chat:conv1", payload={"n": 1})

    assert (first.topic, first.payload) == ("chat:conv1", {"n": 1})
    assert isinstance(first.id, str)
    assert first.id != second.id


def test_a_message_is_not_changed_once_it_is_made() -> None:
    message: Any = BusMessage("chat:conv1", {})

    with pytest.raises(FrozenInstanceError):
        message.id = "another"


def test_publish_returns_the_id_of_the_message(bus: Bus) -> None:
    assert bus.publish("chat:conv1", BusMessage("chat:conv1", {}, id="m1")) == "m1"


def test_read_returns_what_was_published_oldest_first(bus: Bus) -> None:
    ids = fill(bus, 3)

    messages = list(bus.read("chat:conv1"))

    assert [(message.topic, message.payload, message.id) for message in messages] == [
        ("chat:conv1", {"n": n}, ids[n]) for n in range(3)
    ]


def test_read_without_a_cursor_returns_the_last_records(bus: Bus) -> None:
    fill(bus, 5)

    assert [message.payload["n"] for message in bus.read("chat:conv1", limit=2)] == [3, 4]


def test_read_after_an_id_returns_the_next_records(bus: Bus) -> None:
    ids = fill(bus, 5)

    assert [message.payload["n"] for message in bus.read("chat:conv1", last_id=ids[1], limit=2)] == [2, 3]
    assert list(bus.read("chat:conv1", ids[4])) == []


def test_a_reader_that_goes_on_from_its_last_id_sees_each_message_once(bus: Bus) -> None:
    fill(bus, 7)

    seen, last_id = [0], next(iter(bus.read("chat:conv1"))).id
    while page := list(bus.read("chat:conv1", last_id, 2)):
        seen += [message.payload["n"] for message in page]
        last_id = page[-1].id

    assert seen == list(range(7))


def test_a_topic_without_records_is_empty(bus: Bus) -> None:
    assert list(bus.read("chat:nobody")) == []


def test_topics_are_kept_apart(bus: Bus) -> None:
    fill(bus, 1)

    assert list(bus.read("stream:conv1")) == []


def test_publishing_an_id_again_appends_nothing(bus: Bus) -> None:
    message = BusMessage("chat:conv1", {"n": 1})

    assert bus.publish("chat:conv1", message) == bus.publish("chat:conv1", message) == message.id

    assert len(list(bus.read("chat:conv1"))) == 1


def test_any_object_with_publish_and_read_is_a_bus() -> None:
    assert isinstance(InMemoryBus(), Bus)
    assert not isinstance(object(), Bus)


@pytest.mark.parametrize("kind", ENGINES)
def test_each_engine_is_a_bus(kind: str, request: pytest.FixtureRequest) -> None:
    engine = new_engines(kind, request)()

    assert isinstance(engine, Bus)
    assert engine.publish("chat:conv1", BusMessage("chat:conv1", {}, id="m1")) == "m1"
    engine.close()
