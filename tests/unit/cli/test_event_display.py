"""How events are shown: as lines, and as a run that goes on."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from magent2.cli.event_display import MarkdownDisplay, PlainDisplay, event_line, event_text
from magent2.client import ConversationEvent


def event(kind: str, seq: int = 1, **data: Any) -> ConversationEvent:
    return ConversationEvent(seq, kind, {"event": kind, **data})


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (event("user_message", sender="user:a", recipient="agent:B", text="hi"), "user:a → agent:B: hi"),
        (event("output", agent="B", text="hello"), "B: hello"),
        (event("run", agent="B", status="failed", reason="no key"), "B run failed (no key)"),
        (event("tool_step", agent="B", name="add", status="start", args={"a": 1}), "B calls add(a=1)"),
        (event("tool_step", agent="B", name="add", status="success", result_summary="2"), "B add → 2"),
        (event("tool_step", agent="B", name="add", status="error", error="bad"), "B add failed: bad"),
        (event("handoff", source="B", target="C"), "B hands over to C"),
        (event("error", code="run_failed", message="slow", retry_in_s=2.0), "error run_failed: slow (retry in 2 s)"),
        (event("session", status="created"), "conversation created"),
        (
            event(
                "message_received", agent="B", messages=[{"source": "user:a", "outcome": "seen", "text": "be brief"}]
            ),
            "B: the message of user:a (be brief) was read",
        ),
        (
            event(
                "message_received",
                agent="B",
                messages=[
                    {"source": "user:a", "outcome": "nothing_to_stop", "command": "stop"},
                    {"source": "user:b", "outcome": "too_late", "command": "stop_after_turn"},
                ],
            ),
            "B: the stop of user:a found nothing to stop;"
            " the stop after turn of user:b came too late: the run had ended",
        ),
        (event("message_received", messages=["odd"]), "agent: received no message"),
        (
            event(
                "approval",
                agent="B",
                status="requested",
                name="pay",
                args={"eur": 5, "to": "Zoë"},
                tool_call_id="k 1",
                conversation_id="c1",
            ),
            "B needs approval for pay(eur=5, to=\"Zoë\"): magent2 approve c1 'k 1' or magent2 reject c1 'k 1'",
        ),
        (
            event("approval", status="rejected", name="pay", tool_call_id="k1", decided_by="user:a", reason="no"),
            "rejected by user:a: pay() (k1): no",
        ),
        (
            event("block", agent="B", status="success", held=2, sent=1),
            "B ran a Python block: success, 1 of 2 messages sent",
        ),
        (
            event("subagent", agent="B", name="C", subagent_id="s1", task="dig"),
            "B started the subagent C (magent2 tail s1): dig",
        ),
        (event("gap", floor=7), "gap: events were deleted or lost; the stream continues after 7"),
        (event("end", reason="deleted"), "end: deleted"),
        (event("weather", sky="blue"), "weather sky: blue"),
    ],
)
def test_an_event_is_described_in_one_line(shown: ConversationEvent, text: str) -> None:
    assert event_text(shown) == text


def test_the_id_of_a_call_and_both_commands_stay_whole_behind_long_arguments() -> None:
    asked = event("approval", status="requested", name="pay", args={"x": "y" * 9000}, tool_call_id="k1")
    text = event_text(ConversationEvent(1, "approval", {**asked.data, "conversation_id": "c1"}))

    assert text.endswith("magent2 approve c1 k1 or magent2 reject c1 k1")
    assert len(text) < 2200


def test_a_line_has_number_and_time_and_no_control_characters() -> None:
    line = event_line(event("output", 42, agent="B", text="a\nb\x1b[2J", created_at="2026-01-02T03:04:05Z"))

    assert line == r"   42 03:04:05 B: a b\x1b[2J"


def test_a_text_whose_tokens_were_printed_is_not_printed_again(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_tokens_of_a_lost_attempt_are_not_taken_for_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    display = PlainDisplay()
    display.show(event("token", message_id="m", attempt=1, text="on"))
    display.show(event("run", agent="B", status="restarted"))
    display.show(event("token", message_id="m", attempt=2, text="one"))
    display.show(event("output", message_id="m", text="one"))

    captured = capsys.readouterr()
    assert captured.out == "on\none\n"
    assert "B run restarted" in captured.err


def test_markdown_is_rendered_with_each_token() -> None:
    console = Console(record=True, width=40, force_terminal=True, color_system=None)
    display = MarkdownDisplay(console)
    display.show(event("token", message_id="m", attempt=1, text="**bo"))
    display.show(event("token", message_id="m", attempt=1, text="ld**"))
    display.show(event("output", message_id="m", text="**bold**"))
    display.show(event("tool_step", name="add", status="success", result_summary="[red]2"))

    text = console.export_text()
    assert "bold" in text
    assert "[add → [red]2]" in text
