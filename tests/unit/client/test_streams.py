from __future__ import annotations

import json
from typing import Any

import pytest
from httpx2 import ServerSentEvent

from magent2.client import ConversationEvent, SentMessage
from magent2.client.streams import ReplyMatcher, StreamCursor
from magent2.errors import GatewayFailed, Gone, RunFailed, RunStopped

SENT = SentMessage("c1", "e1", 4)


def frame(kind: str, seq: int | None = None, **data: Any) -> ServerSentEvent:
    return ServerSentEvent(kind, json.dumps({"event": kind, **data}), "" if seq is None else str(seq))


def event(seq: int, kind: str, **data: Any) -> ConversationEvent:
    return ConversationEvent(seq, kind, data)


# --- the cursor


def test_a_follower_asks_for_what_it_has_not_seen() -> None:
    cursor = StreamCursor("c1", kinds=("output", "run"))
    before = cursor.params
    cursor.advance(frame("output", 7))

    assert before == {"kinds": "output,run"}
    assert cursor.params == {"since": "7", "kinds": "output,run"}


def test_an_id_alone_moves_the_cursor() -> None:
    cursor = StreamCursor("c1", since=3)

    assert cursor.advance(ServerSentEvent(id="9")) is None
    assert cursor.seq == 9


def test_a_gap_moves_the_cursor_to_the_floor_and_is_told() -> None:
    cursor = StreamCursor("c1", since=3)
    gap = cursor.advance(ServerSentEvent("gap", json.dumps({"cursor": "3", "floor": 12}), "3"))

    assert gap == ConversationEvent(12, "gap", {"cursor": "3", "floor": 12})
    assert cursor.params["since"] == "12"


@pytest.mark.parametrize("reason", ["deleted", "revoked", "max_events"])
def test_an_end_ends_the_stream_and_is_told(reason: str) -> None:
    cursor = StreamCursor("c1", since=3)
    end = cursor.advance(frame("end", reason=reason))

    assert cursor.ended
    assert end is not None
    assert (end.seq, end.data["reason"]) == (3, reason)


def test_after_a_drain_it_goes_on() -> None:
    cursor = StreamCursor("c1", since=3)

    assert cursor.advance(frame("end", reason="drain")) is None
    assert not cursor.ended


def test_the_gateway_says_how_long_to_wait_within_reason() -> None:
    cursor = StreamCursor("c1")
    for given, taken in ((500, 0.5), (0, 0.05), (10**9, 10.0)):
        cursor.advance(ServerSentEvent(retry=given))
        assert cursor.retry_s == taken


@pytest.mark.parametrize("bad", [ServerSentEvent("token", "{", "1"), ServerSentEvent("token", "{}", "one")])
def test_a_stream_that_makes_no_sense_is_an_error(bad: ServerSentEvent) -> None:
    with pytest.raises(GatewayFailed):
        StreamCursor("c1").advance(bad)


# --- the reply


def test_the_answer_is_that_of_the_run_of_this_message() -> None:
    matcher = ReplyMatcher(SENT)
    others = [
        event(5, "run", envelope_id="e0", run_id="r0", status="started"),
        event(6, "run", envelope_id="e1", run_id="r1", status="started"),
        event(7, "output", run_id="r0", text="not this"),
    ]

    assert [matcher.reply(other) for other in others] == [None, None, None]
    answer = matcher.reply(event(8, "output", run_id="r1", text="this", usage={"total_tokens": 3}))
    assert answer is not None
    assert (answer.text, answer.seq, answer.run_id, answer.usage) == ("this", 8, "r1", {"total_tokens": 3})


def test_a_run_that_ends_otherwise_is_an_error() -> None:
    for status, kind in (("failed", RunFailed), ("stopped", RunStopped)):
        with pytest.raises(kind, match="because"):
            ReplyMatcher(SENT).reply(event(5, "run", envelope_id="e1", run_id="r1", status=status, reason="because"))


def test_a_conversation_that_is_gone_has_no_answer() -> None:
    with pytest.raises(Gone):
        ReplyMatcher(SENT).reply(event(5, "end", reason="deleted"))
