"""Events as a person sees them."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from magent2.cli.bench import BenchPlan, quantiles_ms
from magent2.cli.conversations import PAUSE_MAX_S, with_pauses
from magent2.cli.event_display import MarkdownDisplay, PlainDisplay, event_line, event_text
from magent2.cli.output import print_table, printable, shortened
from magent2.client import ConversationEvent


def event(kind: str, seq: int = 1, **data: Any) -> ConversationEvent:
    return ConversationEvent(seq, kind, {"event": kind, **data})


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (event("user_message", sender="user:a", recipient="agent:B", text="hi"), "user:a → agent:B: hi"),
        (event("output", agent="B", text="hello"), "B: hello"),
        (event("run", agent="B", status="failed", reason="no key"), "B run failed (no key)"),
        (event("tool_step", agent="B", name="add", status="start", args={"a": 1}), 'B calls add {"a": 1}'),
        (event("tool_step", agent="B", name="add", status="success", result_summary="2"), "B add → 2"),
        (event("tool_step", agent="B", name="add", status="error", error="bad"), "B add failed: bad"),
        (event("handoff", source="B", target="C"), "B hands over to C"),
        (event("error", code="run_failed", message="slow", retry_in_s=2.0), "error run_failed: slow (retry in 2 s)"),
        (event("session", status="created"), "conversation created"),
        (event("gap", floor=7), "gap: events up to 7 have been deleted"),
        (event("end", reason="deleted"), "end: deleted"),
        (event("weather", sky="blue"), 'weather {"event": "weather", "sky": "blue"}'),
    ],
)
def test_an_event_is_a_line(shown: ConversationEvent, text: str) -> None:
    assert event_text(shown) == text


def test_a_line_has_number_and_time_and_cannot_steer_a_terminal() -> None:
    line = event_line(event("output", 42, agent="B", text="a\nb\x1b[2J", created_at="2026-01-02T03:04:05Z"))

    assert line == "   42 03:04:05 B: a b [2J"


def test_words_come_once_also_where_the_whole_text_follows(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    for shown in (
        event("token", message_id="m", attempt=1, text="one "),
        event("token", message_id="m", attempt=1, text="two"),
        event("output", message_id="m", text="one two"),
        event("output", message_id="n", text="whole"),
    ):
        display.show(shown)
    display.close()

    assert capsys.readouterr().out == "one two\nwhole\n"


def test_words_of_an_attempt_that_was_lost_are_not_taken_for_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    display.show(event("token", message_id="m", attempt=1, text="on"))
    display.show(event("run", agent="B", status="restarted"))
    display.show(event("token", message_id="m", attempt=2, text="one"))
    display.show(event("output", message_id="m", text="one"))

    captured = capsys.readouterr()
    assert captured.out == "on\none\n"
    assert "B run restarted" in captured.err


def test_markdown_is_rendered_as_it_grows() -> None:
    console = Console(record=True, width=40, force_terminal=True, color_system=None)
    display = MarkdownDisplay(console)
    display.show(event("token", message_id="m", attempt=1, text="**bo"))
    display.show(event("token", message_id="m", attempt=1, text="ld**"))
    display.show(event("output", message_id="m", text="**bold**"))
    display.show(event("tool_step", name="add", status="success", result_summary="[red]2"))

    text = console.export_text()
    assert "bold" in text
    assert "[add → [red]2]" in text


def test_a_table_is_as_wide_as_it_must_be(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "LONG"), [("wide cell", 1), ("x", "a\nb")])

    assert capsys.readouterr().out == "A          LONG\nwide cell  1\nx          a b\n"


def test_texts_are_kept_short_and_clean() -> None:
    assert shortened("a  b\nc", 5) == "a b c"
    assert shortened("abcdef", 5) == "abcd…"
    assert printable("family 👨‍👩‍👧 \x9b") == "family 👨‍👩‍👧  "


def test_a_replay_keeps_the_pace_and_cuts_long_silences() -> None:
    times = ("2026-01-01T00:00:00Z", None, "2026-01-01T00:00:02Z", "2026-01-02T00:00:00Z")
    events = [event("output", created_at=moment) for moment in times]

    assert [pause_s for _, pause_s in with_pauses(iter(events), 2.0)] == [0.0, 0.0, 1.0, PAUSE_MAX_S]


def test_quantiles_of_nothing_are_nothing_and_messages_are_shared_out() -> None:
    plan = BenchPlan("a", 10, 3, None, 1.0, False)

    assert quantiles_ms([]) == {"p50": None, "p95": None, "p99": None}
    assert quantiles_ms([n / 1000 for n in range(1, 101)]) == {"p50": 51.0, "p95": 96.0, "p99": 100.0}
    assert [plan.share(number) for number in range(3)] == [4, 3, 3]
