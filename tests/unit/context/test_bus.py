"""The message bus, row by row of its tables."""

from __future__ import annotations

import inspect

import pytest

from magent2.context import BusMessage, MessageBus
from magent2.context.bus import MAXLEN
from magent2.errors import LimitError, TemplateRefused


def message(content: str = "hello", *, target: str | None = None, name: str | None = None) -> BusMessage:
    made = BusMessage(content=content, source="user", target=target)
    return made if name is None else made.model_copy(update={"id": name})


def contents(messages: list[BusMessage]) -> list[str]:
    return [found.content for found in messages]


def test_a_bus_has_the_methods_of_the_table() -> None:
    wanted = {
        "subscribe": ["agent_id"],
        "unsubscribe": ["agent_id"],
        "send": ["message"],
        "consume": ["agent_id"],
        "has_pending": ["agent_id"],
        "peek": ["agent_id"],
        "clear": [],
        "lag": ["agent_id"],
    }

    found = {name: list(inspect.signature(getattr(MessageBus, name)).parameters)[1:] for name in wanted}

    assert found == wanted
    assert inspect.signature(MessageBus).parameters["maxlen"].default == MAXLEN == 500


@pytest.mark.parametrize("maxlen", [0, -1])
def test_a_bus_that_keeps_nothing_is_an_error(maxlen: int) -> None:
    with pytest.raises(LimitError, match="at least 1"):
        MessageBus(maxlen=maxlen)


def test_a_subscriber_starts_at_the_latest() -> None:
    bus = MessageBus()
    bus.send(message("before", target="main"))
    bus.send(message("before, to all"))

    bus.subscribe("main")
    bus.send(message("after", target="main"))

    assert contents(bus.consume("main")) == ["after"]


def test_subscribing_again_loses_nothing() -> None:
    bus = MessageBus()
    bus.subscribe("main")
    bus.send(message("one"))

    bus.subscribe("main")

    assert contents(bus.consume("main")) == ["one"]


def test_an_agent_that_subscribes_again_starts_at_the_latest_message() -> None:
    bus = MessageBus()
    bus.subscribe("main")
    bus.send(message("one"))

    bus.unsubscribe("main")
    bus.unsubscribe("main")
    bus.subscribe("main")

    assert bus.consume("main") == []
    assert bus.lag("main") == 0


def test_each_subscriber_reads_at_its_own_pace() -> None:
    bus = MessageBus()
    bus.subscribe("main")
    bus.subscribe("subagent")
    for number in range(5):
        bus.send(message(str(number)))
        if number == 2:
            bus.consume("subagent")

    assert contents(bus.consume("main")) == ["0", "1", "2", "3", "4"]
    assert contents(bus.consume("subagent")) == ["3", "4"]
    assert len(bus) == 5  # read, and still there


def test_a_second_send_under_a_known_id_is_ignored_whatever_else_it_brings() -> None:
    bus = MessageBus()
    bus.subscribe("main")
    first = bus.send(BusMessage(id="m1", content="Hello", source="user"))

    again = bus.send(BusMessage(id="m1", content="x", source="other", template="{% for x in y %}{% endfor %}"))

    assert again is first
    assert bus.consume("main") == [first]


def test_a_message_without_a_target_is_for_everybody() -> None:
    bus = MessageBus()
    for name in ("a", "b", "c"):
        bus.subscribe(name)

    sent = bus.send(message())

    assert [bus.consume(name) for name in ("a", "b", "c")] == [[sent]] * 3


def test_a_message_with_a_target_is_read_only_by_it() -> None:
    bus = MessageBus()
    bus.subscribe("main")
    bus.subscribe("other")

    sent = bus.send(message(target="main"))

    assert (bus.has_pending("main"), bus.has_pending("other")) == (True, False)
    assert (bus.consume("other"), bus.consume("main")) == ([], [sent])


def test_own_and_common_messages_come_in_the_order_they_were_sent() -> None:
    bus = MessageBus()
    bus.subscribe("main")
    for number in range(6):
        bus.send(message(str(number), target=("main", None, "other")[number % 3]))

    assert contents(bus.peek("main")) == ["0", "1", "3", "4"]
    assert contents(bus.consume("main")) == ["0", "1", "3", "4"]


def test_the_order_holds_from_one_reading_to_the_next() -> None:
    bus = MessageBus()
    bus.subscribe("main")
    for number in range(9):
        bus.send(message(str(number), target=("main", None)[number % 2]))
        if number % 3 == 2:
            assert contents(bus.consume("main")) == [str(number - 2), str(number - 1), str(number)]


def test_peeking_leaves_the_cursor_where_it_is() -> None:
    bus = MessageBus()
    bus.subscribe("main")
    bus.send(message())

    assert bus.peek("main") == bus.peek("main") == bus.consume("main") != []
    assert bus.peek("main") == []
    assert not bus.has_pending("main")


def test_consuming_twice_gives_each_message_once() -> None:
    bus = MessageBus()
    bus.subscribe("main")
    bus.send(message())

    assert len(bus.consume("main")) == 1
    assert bus.consume("main") == []


def test_a_stranger_that_consumes_is_subscribed_at_the_end() -> None:
    bus = MessageBus()
    bus.send(message("before"))

    assert bus.consume("stranger") == []
    bus.send(message("after"))

    assert contents(bus.consume("stranger")) == ["after"]


def test_looking_does_not_subscribe_a_stranger() -> None:
    bus = MessageBus()
    bus.send(message())

    assert (bus.peek("stranger"), bus.has_pending("stranger"), bus.lag("stranger")) == ([], False, 0)
    assert bus.subscribers == ()


def test_a_known_id_is_not_stored_again() -> None:
    bus = MessageBus()
    bus.subscribe("main")
    first = bus.send(message("Hello", name="msg-001"))

    again = bus.send(BusMessage(id="msg-001", content="Different", source="other"))

    assert again is first
    assert len(bus) == 1
    assert contents(bus.consume("main")) == ["Hello"]


def test_a_full_bus_drops_its_oldest_and_forgets_its_id() -> None:
    bus = MessageBus(maxlen=2)
    bus.subscribe("main")
    for name in ("id-001", "id-002", "id-003"):
        bus.send(message(name=name))
    assert [found.id for found in bus.peek("main")] == ["id-002", "id-003"]

    bus.send(message("First retry", name="id-001"))

    assert [found.id for found in bus.peek("main")] == ["id-003", "id-001"]
    assert contents(bus.consume("main"))[-1] == "First retry"
    assert bus.lag("main") == 2


def test_lag_counts_what_was_lost_of_either_kind_and_nothing_else() -> None:
    bus = MessageBus(maxlen=2)
    bus.subscribe("main")
    bus.subscribe("reader")
    bus.send(message("own", target="main"))
    bus.send(message("common"))
    bus.consume("reader")
    assert bus.lag("main") == 0

    for _ in range(2):
        bus.send(message("for somebody else", target="other"))

    assert (bus.lag("main"), bus.lag("reader")) == (2, 0)
    assert bus.consume("main") == []
    assert bus.lag("main") == 2  # told until it leaves


def test_clearing_removes_messages_subscribers_and_ids() -> None:
    bus = MessageBus()
    bus.subscribe("main")
    bus.send(message("one", name="same"))

    bus.clear()

    assert (len(bus), bus.subscribers, bus.peek("main")) == (0, (), [])
    bus.subscribe("main")
    bus.send(message("two", name="same"))
    assert contents(bus.consume("main")) == ["two"]
    assert bus.lag("main") == 0


def test_a_sweep_removes_only_messages_that_no_subscriber_can_read() -> None:
    bus = MessageBus()
    bus.subscribe("main")
    bus.subscribe("slow")
    bus.send(message("read by both"))
    bus.consume("slow")
    bus.send(message("for slow", target="slow"))
    bus.send(message("for nobody", target="gone"))
    bus.send(message("for all"))
    bus.consume("main")

    bus.sweep()

    assert len(bus) == 2
    assert contents(bus.consume("slow")) == ["for slow", "for all"]
    assert bus.lag("slow") == bus.lag("main") == 0


def test_a_full_bus_goes_on_trimming_after_a_sweep() -> None:
    bus = MessageBus(maxlen=3)
    bus.subscribe("main")
    for number in range(3):
        bus.send(message(str(number), target=("other", "main", None)[number]))
    bus.sweep()

    for number in range(3, 6):
        bus.send(message(str(number)))

    assert contents(bus.consume("main")) == ["3", "4", "5"]
    assert bus.lag("main") == 2


def test_a_bad_template_is_refused_at_the_door() -> None:
    bus = MessageBus()
    bus.subscribe("main")

    with pytest.raises(TemplateRefused, match="loop"):
        bus.send(BusMessage(content="x", source="user", template="{% for a in b %}{% endfor %}"))

    assert len(bus) == 0
    assert not bus.has_pending("main")
