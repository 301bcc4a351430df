from __future__ import annotations

from typing import Any

import pytest

from magent2.errors import AddressError, TopicError
from magent2.models.address import (
    NAME_MAX_CHARS,
    TOPIC_MAX_CHARS,
    Address,
    _is_name,
    agent_topic,
    chat_topic,
    check_name,
    check_topic,
    checked_topic,
    control_topic,
    conversation_topics,
    dead_topic,
    history_topic,
    is_name,
    outbox_topic,
    stream_topic,
)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("chat:conv1", Address("chat", "conv1")),
        ("agent:DevAgent", Address("agent", "DevAgent")),
        ("  chat: conv 1 ", Address("chat", "conv 1")),
        ("chat:a:b", Address("chat", "a:b")),
    ],
)
def test_a_recipient_is_a_conversation_or_an_agent(text: str, address: Address) -> None:
    assert Address.parse(text) == address


def test_an_address_prints_as_it_is_written() -> None:
    assert str(Address.parse(" agent:DevAgent")) == "agent:DevAgent"


@pytest.mark.parametrize("text", ["room:123", "agent:", "chat: ", "", "chat", "conv1", "Chat:conv1", ":x"])
def test_any_other_recipient_is_refused_with_the_two_forms(text: str) -> None:
    with pytest.raises(AddressError, match=r"recipient must be 'chat:\{conversation_id\}' or 'agent:\{Name\}'"):
        Address.parse(text)


@pytest.mark.parametrize(("text", "what"), [("chat:a\nb", "conversation id"), (f"agent:{'x' * 481}", "agent name")])
def test_a_name_that_cannot_be_a_topic_is_refused_with_what_can(text: str, what: str) -> None:
    with pytest.raises(AddressError, match=f"{what} .* cannot be used: take 1 to {NAME_MAX_CHARS} printable"):
        Address.parse(text)


@pytest.mark.parametrize("name", ["a", "conv 1", "ä🦉", "a:b", "x" * NAME_MAX_CHARS])
def test_printable_text_is_a_name(name: str) -> None:
    assert is_name(name)
    assert check_name(name, "agent name") == name


@pytest.mark.parametrize("value", ["", " a", "a ", "a\n", "a\0b", "x" * (NAME_MAX_CHARS + 1), None, 7, b"a", ["a"]])
def test_anything_else_is_no_name(value: Any) -> None:
    assert not is_name(value)


def test_every_kind_of_topic_takes_the_longest_name() -> None:
    name = "x" * NAME_MAX_CHARS
    makers = (chat_topic, control_topic, stream_topic, history_topic, dead_topic, agent_topic, outbox_topic)

    topics = [check_topic(make(name)) for make in makers]

    assert len(set(topics)) == len(makers)
    assert max(map(len, topics)) <= TOPIC_MAX_CHARS


def test_the_topics_of_version_1_keep_their_names() -> None:
    assert (chat_topic("c"), stream_topic("c"), control_topic("A")) == ("chat:c", "stream:c", "control:A")
    assert conversation_topics("c") == ("stream:c", "chat:c", "history:c")


def test_a_topic_is_split_at_its_first_colon() -> None:
    assert checked_topic("chat:a:b") == ("chat", "a:b")
    assert checked_topic("plain") == ("plain", "")


@pytest.mark.parametrize(
    ("topic", "advice"),
    [
        ("", "non-empty string"),
        (None, "non-empty string"),
        (7, "non-empty string"),
        ("x" * (TOPIC_MAX_CHARS + 1), "513 characters, the limit is 512"),
        ("chat:a\nb", "remove them"),
    ],
)
def test_a_topic_that_no_log_can_have_is_refused_with_the_reason(topic: Any, advice: str) -> None:
    with pytest.raises(TopicError, match=advice):
        check_topic(topic)


def test_a_refusal_of_input_is_a_value_error_too() -> None:
    with pytest.raises(ValueError, match="recipient must be"):
        Address.parse("room:123")


def test_a_text_that_is_too_long_for_a_name_is_not_cached() -> None:
    before = _is_name.cache_info()

    assert not is_name("x" * 1_000_000)

    assert _is_name.cache_info() == before
