from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magent2.bus.records import Record
from magent2.gateway.streaming.sse import (
    BATCH_MAX_BYTES,
    CURSOR_MAX,
    RECORD_FORMAT,
    BadCursor,
    EventFrame,
    UnknownKind,
    batches,
    parse_cursor,
    parse_kinds,
    payload_frame,
)
from magent2.sessions.stream import kind_of
from tests.support.gateway import last_id, parse_frames

PAYLOADS = st.dictionaries(st.text(max_size=8), st.text() | st.integers(0, 2**53) | st.none() | st.lists(st.text()))


def frames(*kinds: str, size: int = 10) -> list[EventFrame]:
    return [
        payload_frame(number, {"event": kind, "text": "x" * size}) if kind else EventFrame(number, "", b"")
        for number, kind in enumerate(kinds, start=1)
    ]


@given(PAYLOADS, st.integers(1, CURSOR_MAX))
def test_a_frame_carries_the_payload_and_its_seq_whatever_the_text_holds(payload: dict[str, object], seq: int) -> None:
    frame = payload_frame(seq, payload)

    (event,) = parse_frames(frame.data.decode())

    assert (event.id, event.data) == (seq, {**payload, "seq": seq})
    assert frame.data.count(b"\n") == 4


@given(st.text() | st.integers() | st.none())
def test_a_kind_never_breaks_the_frame(kind: object) -> None:
    assert kind_of({"event": kind}).isprintable()


def test_an_erased_record_keeps_its_place_and_says_nothing() -> None:
    assert RECORD_FORMAT.record(Record("stream:a", {}, seq=7, erased=True)) == EventFrame(7, "", b"")


def test_gap_and_end_move_no_cursor() -> None:
    text = (RECORD_FORMAT.gap("one", 3, 9) + RECORD_FORMAT.end("one", "deleted")).decode()

    gap, end = parse_frames(text)

    assert (gap.kind, gap.data["cursor"], gap.data["floor"]) == ("gap", "3", 9)
    assert (end.kind, end.data["reason"]) == ("end", "deleted")
    assert last_id(text) is None


@pytest.mark.parametrize(("text", "seq"), [("0", 0), ("17", 17), (" 5 ", 5), (str(CURSOR_MAX), CURSOR_MAX)])
def test_a_cursor_is_a_whole_number(text: str, seq: int) -> None:
    assert parse_cursor(text) == seq


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1e3", "abc", str(CURSOR_MAX + 1), "9" * 5000, "٣", "0x10", "1 2"])
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(BadCursor, match="whole number"):
        parse_cursor(text)


@given(st.text())
def test_no_text_upsets_the_reader_of_cursors(text: str) -> None:
    with contextlib.suppress(BadCursor):
        assert 0 <= parse_cursor(text) <= CURSOR_MAX


def test_kinds_are_names_of_events() -> None:
    assert parse_kinds("token, output") == {"token", "output"}
    with pytest.raises(UnknownKind, match="'tokens'"):
        parse_kinds("token,tokens")
    with pytest.raises(UnknownKind):
        parse_kinds("")


def test_frames_that_are_ready_together_are_one_write() -> None:
    (batch,) = batches(frames("token", "token", "output"), None, None)

    assert [event.id for event in parse_frames(batch.data.decode())] == [1, 2, 3]
    assert (batch.cursor, batch.shown) == (3, 3)


def test_what_a_filter_leaves_out_moves_the_cursor_all_the_same() -> None:
    (batch,) = batches(frames("token", "output", "token", "token"), frozenset({"output"}), None)

    assert [event.id for event in parse_frames(batch.data.decode())] == [2]
    assert last_id(batch.data.decode()) == 4


def test_a_limit_ends_right_after_its_last_event() -> None:
    (batch,) = batches(frames("token", "token", "token"), None, 2)

    assert (last_id(batch.data.decode()), batch.cursor, batch.shown) == (2, 2, 2)


def test_much_is_sent_in_several_writes() -> None:
    found = list(batches(frames("token", "token", "token", size=BATCH_MAX_BYTES), None, None))

    assert [batch.cursor for batch in found] == [1, 2, 3]


def test_nothing_is_no_write_and_erased_records_are_a_mark() -> None:
    assert list(batches([], None, None)) == []
    (batch,) = batches(frames("", ""), None, None)
    assert (batch.data, batch.shown) == (b"id: 2\n\n", 0)


@given(st.lists(st.sampled_from(["token", "output", "run", ""])), st.sets(st.sampled_from(["token", "output", "run"])))
def test_a_filtered_stream_shows_just_what_was_asked_for_and_ends_at_the_end(
    kinds: list[str], wanted: set[str]
) -> None:
    text = b"".join(batch.data for batch in batches(frames(*kinds), frozenset(wanted), None)).decode()

    assert [event.kind for event in parse_frames(text)] == [kind for kind in kinds if kind in wanted]
    assert last_id(text) == (len(kinds) or None)
