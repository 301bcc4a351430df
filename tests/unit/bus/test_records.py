from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magent2.bus.records import (
    BLOBS_PER_RECORD_MAX,
    NewRecord,
    Record,
    assigned_id,
    assigned_seq,
    canonical,
    check_id,
    decode_object,
    digest_of,
    encode_object,
    lane_of,
)
from magent2.errors import IdError, LimitError, PayloadError, TopicError

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
json_objects = st.dictionaries(st.text(), json_values, max_size=4)


# --- payloads


@given(json_objects)
def test_every_json_object_survives_the_way_to_the_log_and_back(value: dict[str, Any]) -> None:
    assert decode_object(encode_object(value, "payload")) == value


@pytest.mark.parametrize(
    ("value", "advice"),
    [
        ([1], "must be a JSON object .* not list"),
        ("text", "not str"),
        (None, "not NoneType"),
        ({1: 2}, "is not JSON: .*str"),
        ({"x": datetime(2026, 1, 1, tzinfo=UTC)}, "is not JSON"),
        ({"x": 2**64}, "is not JSON"),
        ({"x": float("nan")}, "JSON cannot carry; send null or a string"),
        ({"x": [{"y": float("-inf")}]}, "JSON cannot carry"),
        ({"x": (1.0, float("nan"))}, "JSON cannot carry"),
    ],
)
def test_what_is_no_json_object_is_refused_with_the_reason(value: Any, advice: str) -> None:
    with pytest.raises(PayloadError, match=advice):
        NewRecord("stream:a", value)


def test_a_payload_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["x"] = value

    with pytest.raises(PayloadError):
        NewRecord("stream:a", value)


def test_the_word_null_in_a_text_does_no_harm() -> None:
    assert NewRecord("stream:a", {"x": "null", "y": None, "z": 1.5}).body == b'{"x":"null","y":null,"z":1.5}'


@pytest.mark.parametrize("text", [b"[1]", b"7", b"null", b"{", b"", b"\xff"])
def test_stored_text_that_is_no_object_is_a_value_error(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # the words are the decoder's
        decode_object(text)


# --- digests


@given(json_objects)
def test_a_digest_depends_on_content_and_not_on_order(value: dict[str, Any]) -> None:
    assert digest_of(value) == digest_of(dict(reversed(value.items())))
    assert digest_of(value) != digest_of(value | {"another field": 1}) or "another field" in value


def test_a_digest_passes_over_the_time_of_making_at_the_top_only() -> None:
    assert digest_of({"x": 1, "created_at": "now"}) == digest_of({"x": 1})
    assert digest_of({"x": {"created_at": "now"}}) != digest_of({"x": {}})


def test_only_a_named_record_has_a_digest() -> None:
    assert NewRecord("stream:a", {}).digest == ""
    assert NewRecord("stream:a", {"x": 1}, "id").digest == digest_of({"x": 1})
    assert NewRecord("stream:a", {"x": 1}, "id", digest="own").digest == "own"


@given(json_values)
def test_equal_values_have_one_canonical_text(value: Any) -> None:
    assert canonical(value) == canonical(decode_object(encode_object({"v": value}, "x"))["v"])


# --- ids


@pytest.mark.parametrize("record_id", ["a", "x" * 256, "ä 🦉", "a@1"])
def test_printable_text_is_an_id(record_id: str) -> None:
    assert check_id(record_id) == record_id


@pytest.mark.parametrize(
    ("record_id", "advice"),
    [
        ("", "non-empty"),
        (7, "non-empty string"),
        ("x" * 257, "257 characters, the limit is 256"),
        ("@1", "assigned by the log; choose another"),
        ("a\nb", "cannot be printed"),
    ],
)
def test_any_other_id_is_refused_with_the_reason(record_id: Any, advice: str) -> None:
    with pytest.raises(IdError, match=advice):
        NewRecord("stream:a", {}, record_id)


@given(st.integers(0, 10**18 - 1))
def test_an_assigned_id_names_its_number(seq: int) -> None:
    assert assigned_seq(assigned_id(seq)) == seq


@pytest.mark.parametrize("record_id", ["", "1", "@", "@x", "@-1", "@1.5", "@²", "@" + "9" * 19, "x@1"])
def test_any_other_id_names_no_number(record_id: str) -> None:
    assert assigned_seq(record_id) is None


# --- lanes and copies


@pytest.mark.parametrize(
    ("topic", "payload", "lane"),
    [
        ("chat:A", {"conversation_id": "c"}, "c"),
        ("chat:A", {"conversation_id": "c", "sender": "agent:B"}, "c"),
        ("control:A", {"conversation_id": "c"}, "c"),
        ("control:A", {"conversation_id": "A", "sender": "agent:A"}, "A"),
        ("chat:A", {}, ""),
        ("chat:A", {"conversation_id": 7}, ""),
        ("chat:A", {"conversation_id": " c"}, ""),
        ("control:A", {}, ""),
        ("chat:A", {"conversation_id": "c", "sender": "agent:A"}, None),
        ("chat:c", {"conversation_id": "c"}, None),
        ("stream:c", {"conversation_id": "c"}, None),
        ("dead:A", {"conversation_id": "c"}, None),
    ],
)
def test_what_is_mail_is_decided_by_topic_sender_and_conversation(
    topic: str, payload: dict[str, Any], lane: str | None
) -> None:
    assert lane_of(topic, payload) == NewRecord(topic, payload).lane == lane


@pytest.mark.parametrize(
    ("topic", "copy"), [("chat:c", ""), ("stream:c", ""), ("chat:A", "c"), ("dead:A", "c"), ("outbox:web", "c")]
)
def test_a_record_outside_the_logs_of_its_conversation_is_a_copy(topic: str, copy: str) -> None:
    assert NewRecord(topic, {"conversation_id": "c"}).copy == copy


# --- the rest of a record


def test_a_record_needs_a_topic_that_a_log_can_have() -> None:
    with pytest.raises(TopicError):
        NewRecord("", {})


def test_headers_are_small() -> None:
    assert NewRecord("stream:a", {}, headers={"steer": True}).header_text == b'{"steer":true}'
    assert NewRecord("stream:a", {}).header_text == b""
    with pytest.raises(LimitError, match="put content into the payload"):
        NewRecord("stream:a", {}, headers={"x": "y" * 2048})
    with pytest.raises(PayloadError, match="headers"):
        NewRecord("stream:a", {}, headers={"x": float("nan")})


@pytest.mark.parametrize("fields", [{"draft": ""}, {"closes": ""}, {"draft": "x" * 257}, {"draft": "a", "closes": "b"}])
def test_a_draft_has_a_short_name_and_closes_nothing(fields: dict[str, str]) -> None:
    with pytest.raises(IdError):
        NewRecord("stream:a", {}, **fields)  # type: ignore[arg-type]  # any of the keyword fields


@pytest.mark.parametrize("name", ["", "abc", "g" * 64, "A" * 64])
def test_a_blob_is_named_by_its_sha256(name: str) -> None:
    with pytest.raises(IdError, match="64 hexadecimal digits"):
        NewRecord("stream:a", {}, blobs=(name,))


def test_a_record_names_only_so_many_blobs() -> None:
    with pytest.raises(LimitError, match=f"at most {BLOBS_PER_RECORD_MAX}"):
        NewRecord("stream:a", {}, blobs=("a" * 64,) * (BLOBS_PER_RECORD_MAX + 1))


def test_a_record_knows_where_it_lies() -> None:
    assert Record("chat:A", {}, "m1", seq=7).ref == ("chat:A", 7)
