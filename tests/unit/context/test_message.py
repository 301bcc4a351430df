"""A message is a value."""

from __future__ import annotations

import subprocess
import sys
import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import ValidationError

from magent2.context import BusMessage
from magent2.context.bus import CONTENT_MAX_CHARS, NAME_MAX_CHARS


def test_a_message_has_the_fields_of_the_reference() -> None:
    message = BusMessage(content="Hello", source="user")

    assert list(BusMessage.model_fields) == ["id", "content", "source", "target", "template", "timestamp"]
    assert str(uuid.UUID(message.id)) == message.id
    assert (message.target, message.template) == (None, None)
    assert message.timestamp.tzinfo is UTC
    assert message.render() == "Hello"


def test_two_messages_have_two_ids() -> None:
    assert BusMessage(content="a", source="b").id != BusMessage(content="a", source="b").id


def test_a_message_does_not_change() -> None:
    message = BusMessage(content="Hello", source="user")

    with pytest.raises(ValidationError, match="frozen"):
        message.content = "other"

    assert len({message, message.model_copy()}) == 1


def test_times_become_utc() -> None:
    noon = datetime(2026, 1, 1, 12, tzinfo=timezone(timedelta(hours=2)))

    assert BusMessage(content="a", source="b", timestamp=noon).timestamp == datetime(2026, 1, 1, 10, tzinfo=UTC)
    naive = BusMessage(content="a", source="b", timestamp=noon.replace(tzinfo=None))
    assert naive.timestamp.tzinfo is UTC


def test_a_message_survives_json() -> None:
    message = BusMessage(content="Hello", source="user", target="main", template="[{{ source }}] {{ content }}")

    again = BusMessage.model_validate_json(message.model_dump_json())

    assert again == message
    assert again.render() == "[user] Hello"


@pytest.mark.parametrize(
    ("field", "size"),
    [("content", CONTENT_MAX_CHARS), ("source", NAME_MAX_CHARS), ("target", NAME_MAX_CHARS), ("id", NAME_MAX_CHARS)],
)
def test_every_field_has_a_limit(field: str, size: int) -> None:
    fields: dict[str, Any] = {"content": "a", "source": "b"}
    BusMessage(**{**fields, field: "x" * size})

    with pytest.raises(ValidationError, match=f"at most {size}"):
        BusMessage(**{**fields, field: "x" * (size + 1)})


def test_showing_a_block_brings_in_neither_pydantic_nor_jinja() -> None:
    code = "import sys, magent2.context.block; print(*{'pydantic', 'jinja2', 'agents'} & sys.modules.keys())"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""


def test_a_message_without_a_template_does_not_bring_in_jinja() -> None:
    code = (
        "import sys; from magent2.context import AgentContext, BusMessage, MessageBus;"
        "bus = MessageBus(); bus.subscribe('a'); bus.send(BusMessage(content='x', source='y'));"
        "bus.consume('a')[0].render(); print(*{'jinja2', 'agents'} & sys.modules.keys())"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == ""
