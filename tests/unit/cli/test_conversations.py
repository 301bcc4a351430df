"""The pace of a replay."""

from __future__ import annotations

from magent2.cli.conversations import PAUSE_MAX_S, with_pauses
from magent2.client import ConversationEvent


def test_a_replay_keeps_the_pace_and_shortens_long_pauses() -> None:
    times = ("2026-01-01T00:00:00Z", None, "2026-01-01T00:00:02Z", "2026-01-02T00:00:00Z")
    events = [ConversationEvent(1, "output", {"created_at": moment}) for moment in times]

    assert [pause_s for _, pause_s in with_pauses(iter(events), 2.0)] == [0.0, 0.0, 1.0, PAUSE_MAX_S]
