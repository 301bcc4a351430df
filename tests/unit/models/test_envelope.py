from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from magent2.models.envelope import (
    BaseStreamEvent,
    MessageEnvelope,
    OutputEvent,
    TokenEvent,
    ToolStepEvent,
    utc_timestamp,
)

V1_ENVELOPE = {
    "id": "7f3f",
    "conversation_id": "conv1",
    "sender": "user:ann",
    "recipient": "agent:DevAgent",
    "type": "message",
    "content": "hello",
    "metadata": {"k": [1]},
    "created_at": "2026-01-02T03:04:05Z",
}


def envelope(**fields: Any) -> MessageEnvelope:
    return MessageEnvelope(**{"conversation_id": "conv1", "sender": "user:ann", "recipient": "agent:A"} | fields)


def test_an_envelope_of_version_1_parses_and_comes_back_the_same() -> None:
    assert MessageEnvelope.model_validate(V1_ENVELOPE).model_dump(mode="json") == V1_ENVELOPE


def test_an_envelope_needs_only_its_addresses() -> None:
    made = envelope()

    assert (made.type, made.content, made.metadata) == ("message", None, {})
    assert made.created_at.tzinfo is UTC
    assert made.id != envelope().id


def test_defaults_are_not_shared() -> None:
    envelope().metadata["k"] = 1

    assert envelope().metadata == {}


@pytest.mark.parametrize("missing", ["conversation_id", "sender", "recipient"])
def test_an_envelope_without_an_address_is_refused(missing: str) -> None:
    fields = {name: value for name, value in V1_ENVELOPE.items() if name != missing}

    with pytest.raises(ValidationError, match=missing):
        MessageEnvelope.model_validate(fields)


def test_an_envelope_is_a_message_or_a_control() -> None:
    assert envelope(type="control").type == "control"
    with pytest.raises(ValidationError):
        envelope(type="whisper")


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2026, 1, 1, 12),  # noqa: DTZ001  # a time without a zone is the point
        datetime(2026, 1, 1, 12, tzinfo=UTC),
        datetime(2026, 1, 1, 14, tzinfo=timezone(timedelta(hours=2))),
        "2026-01-01T12:00:00",
        "2026-01-01T07:00:00-05:00",
    ],
)
def test_times_are_in_utc_whatever_zone_they_came_with(moment: Any) -> None:
    made = envelope(created_at=moment)

    assert made.created_at == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert made.model_dump(mode="json")["created_at"] == "2026-01-01T12:00:00Z"


@pytest.mark.parametrize(
    ("event", "shape"),
    [
        (TokenEvent(conversation_id="c", text="he", index=0), {"event": "token", "text": "he", "index": 0}),
        (
            ToolStepEvent(conversation_id="c", name="search", args={"q": 1}),
            {
                "event": "tool_step",
                "name": "search",
                "args": {"q": 1},
                "result_summary": None,
                "status": None,
                "error": None,
                "duration_ms": None,
                "tool_call_id": None,
            },
        ),
        (OutputEvent(conversation_id="c", text="done"), {"event": "output", "text": "done", "usage": None}),
    ],
)
def test_the_shape_of_the_events_is_frozen(event: BaseStreamEvent, shape: dict[str, Any]) -> None:
    dumped = event.model_dump(mode="json")

    assert dumped == {"id": event.id, "conversation_id": "c", "created_at": dumped["created_at"], **shape}


@pytest.mark.parametrize("status", ["start", "success", "error", None])
def test_a_tool_step_has_one_of_three_statuses_or_none(status: Any) -> None:
    assert ToolStepEvent(conversation_id="c", name="search", status=status).status == status


def test_another_status_is_refused() -> None:
    with pytest.raises(ValidationError):
        ToolStepEvent.model_validate({"conversation_id": "c", "name": "search", "status": "maybe"})


@pytest.mark.parametrize("model", [MessageEnvelope, TokenEvent, ToolStepEvent, OutputEvent])
def test_unknown_fields_of_later_versions_do_no_harm(model: type[BaseModel]) -> None:
    known = V1_ENVELOPE | {"text": "x", "index": 1, "name": "search"}
    fields = {name: value for name, value in known.items() if name in model.model_fields}

    assert model.model_validate(fields | {"seq": 7}).model_dump(exclude_unset=True).keys() == fields.keys()


# --- timestamps


def test_a_timestamp_is_what_pydantic_reads_and_writes() -> None:
    before = datetime.now(UTC)
    text = utc_timestamp()
    after = datetime.now(UTC)

    adapter = TypeAdapter(datetime)
    parsed = adapter.validate_python(text)

    assert before <= parsed <= after
    assert parsed.tzinfo is not None


def test_timestamps_keep_the_order_in_which_they_were_taken() -> None:
    texts = [utc_timestamp() for _ in range(10_000)]

    assert texts == sorted(texts)
