from __future__ import annotations

import json
from typing import Any

import pytest
from httpx2 import ServerSentEvent

from magent2.client.following import Awaiting, Following, Patience, may_repeat
from magent2.client.values import Sent, StreamEvent
from magent2.errors import GatewayBusy, GatewayFailed, GatewayUnreachable, Gone, RunFailed, RunStopped

LOST = GatewayUnreachable("gone", sent=True)
SENT = Sent("c1", "e1", 4)


def frame(kind: str, seq: int | None = None, **data: Any) -> ServerSentEvent:
    return ServerSentEvent(kind, json.dumps({"event": kind, **data}), "" if seq is None else str(seq))


def event(seq: int, kind: str, **data: Any) -> StreamEvent:
    return StreamEvent(seq, kind, data)


# --- the cursor


def test_a_follower_asks_for_what_it_has_not_seen() -> None:
    following = Following("c1", kinds=("output", "run"))
    before = following.params
    following.take(frame("output", 7))

    assert before == {"kinds": "output,run"}
    assert following.params == {"since": "7", "kinds": "output,run"}


def test_an_id_alone_moves_the_cursor() -> None:
    following = Following("c1", since=3)

    assert following.take(ServerSentEvent(id="9")) is None
    assert following.cursor == 9


def test_a_gap_moves_the_cursor_to_the_floor_and_is_told() -> None:
    following = Following("c1", since=3)
    gap = following.take(ServerSentEvent("gap", json.dumps({"cursor": "3", "floor": 12}), "3"))

    assert gap == StreamEvent(12, "gap", {"cursor": "3", "floor": 12})
    assert following.params["since"] == "12"


@pytest.mark.parametrize("reason", ["deleted", "revoked", "max_events"])
def test_an_end_ends_the_stream_and_is_told(reason: str) -> None:
    following = Following("c1", since=3)
    end = following.take(frame("end", reason=reason))

    assert following.ended
    assert end is not None
    assert (end.seq, end.data["reason"]) == (3, reason)


def test_after_a_drain_it_goes_on() -> None:
    following = Following("c1", since=3)

    assert following.take(frame("end", reason="drain")) is None
    assert not following.ended


def test_the_gateway_says_how_long_to_wait_within_reason() -> None:
    following = Following("c1")
    for given, taken in ((500, 0.5), (0, 0.05), (10**9, 10.0)):
        following.take(ServerSentEvent(retry=given))
        assert following.retry_s == taken


@pytest.mark.parametrize("bad", [ServerSentEvent("token", "{", "1"), ServerSentEvent("token", "{}", "one")])
def test_a_stream_that_makes_no_sense_is_an_error(bad: ServerSentEvent) -> None:
    with pytest.raises(GatewayFailed):
        Following("c1").take(bad)


# --- the answer


def test_the_answer_is_that_of_the_run_of_this_message() -> None:
    awaiting = Awaiting(SENT)
    others = [
        event(5, "run", envelope_id="e0", run_id="r0", status="started"),
        event(6, "run", envelope_id="e1", run_id="r1", status="started"),
        event(7, "output", run_id="r0", text="not this"),
    ]

    assert [awaiting.take(other) for other in others] == [None, None, None]
    answer = awaiting.take(event(8, "output", run_id="r1", text="this", usage={"total_tokens": 3}))
    assert answer is not None
    assert (answer.text, answer.seq, answer.run_id, answer.usage) == ("this", 8, "r1", {"total_tokens": 3})


def test_a_run_that_ends_otherwise_is_an_error() -> None:
    for status, kind in (("failed", RunFailed), ("stopped", RunStopped)):
        with pytest.raises(kind, match="because"):
            Awaiting(SENT).take(event(5, "run", envelope_id="e1", run_id="r1", status=status, reason="because"))


def test_a_conversation_that_is_gone_has_no_answer() -> None:
    with pytest.raises(Gone):
        Awaiting(SENT).take(event(5, "end", reason="deleted"))


# --- patience


def test_pauses_grow_and_end() -> None:
    patience = Patience(10.0)
    pauses = [patience.pause(LOST, now) for now in (0.0, 1.0, 2.0)]

    assert pauses[0] < pauses[1] < pauses[2]
    assert patience.pause(LOST, 9.9) <= 0.1 + 1e-9
    with pytest.raises(GatewayUnreachable):
        patience.pause(LOST, 10.0)


def test_a_success_begins_anew() -> None:
    patience = Patience(10.0)
    patience.pause(LOST, 0.0)
    patience.reset()

    assert patience.pause(LOST, 100.0) < 0.2


def test_a_busy_gateway_is_left_alone_as_long_as_it_asks() -> None:
    assert Patience(60.0).pause(GatewayBusy(503, "busy", "busy", {"retry_after_s": 5}), 0.0) >= 4.0


def test_what_may_have_happened_is_repeated_only_where_that_does_no_harm() -> None:
    assert may_repeat(LOST, repeatable=True)
    assert not may_repeat(LOST, repeatable=False)
    assert may_repeat(GatewayUnreachable("refused"), repeatable=False)
